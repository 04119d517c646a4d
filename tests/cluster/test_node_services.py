"""Services: names, ready Pods, headless ones."""

from __future__ import annotations

from typing import Any

from node_cluster import NodeCluster, pod, python

SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ['HOSTNAME'].encode())
    def log_message(self, *_):
        pass
http.server.HTTPServer((os.environ['BIND'], 8000), Handler).serve_forever()
"""


def server(name: str, app: str, **spec: Any) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1}
    container = python(
        SERVER,
        env=[{"name": "BIND", "value": "0.0.0.0"}],
        ports=[{"name": "web", "containerPort": 8000}],
        readinessProbe=probe,
    )
    return pod(name, container, labels={"app": app}, **spec)


def service(name: str, app: str, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "web", "port": 80, "targetPort": "web"}]
    return {"metadata": {"name": name}, "spec": {"selector": {"app": app}, "ports": ports, **spec}}


def ask(node: NodeCluster, name: str, *urls: str) -> list[str]:
    """Return what a Pod gets from some addresses, one line each."""
    program = (
        "import urllib.request\n"
        f"for url in {urls!r}:\n"
        "    print(urllib.request.urlopen(url, timeout=10).read().decode())\n"
    )
    node.create("pod", pod(name, python(program), restartPolicy="Never"))
    node.wait_phase(name, "Succeeded")
    return node.log(name).split()


def test_a_service_reaches_its_ready_pods_in_turn_by_each_of_its_names(node: NodeCluster) -> None:
    node.create("service", service("web", "web"))
    for name in ("a", "b"):
        node.create("pod", server(name, "web"))
    for name in ("a", "b"):
        node.wait_ready(name)
    home = node.namespace
    names = ("web", f"web.{home}", f"web.{home}.svc", f"web.{home}.svc.cluster.local")
    assert set(ask(node, "asker", *(f"http://{name}" for name in names))) == {"a", "b"}
    slices = node.sandbox.get("endpointslices", "-n", home)["items"]
    (found,) = [item for item in slices if item["metadata"]["name"].startswith("web-")]
    assert len(found["endpoints"]) == 2
    assert found["ports"][0]["port"] == 8000
    for name in ("a", "b"):
        node.delete("pod", name, 0)


def test_a_headless_service_names_its_own_namespaces_pods(node: NodeCluster) -> None:
    other = NodeCluster(node.sandbox, f"{node.namespace}-other")
    other.core.create_namespace({"metadata": {"name": other.namespace}})
    other.create("pod", server("stranger", "peers"))
    other.wait_ready("stranger")
    node.create(
        "service", service("peers", "peers", clusterIP="None", publishNotReadyAddresses=True)
    )
    node.create("pod", server("first", "peers", hostname="rank-0", subdomain="peers"))
    node.wait_ready("first")
    found = ask(node, "asker", "http://rank-0.peers:8000", "http://peers:8000")
    assert found == ["rank-0", "rank-0"]
    node.delete("pod", "first", 0)
    other.delete("pod", "stranger", 0)
