"""Discovers Pods and Services for a Prometheus that cannot itself.

Debian builds Prometheus without the discovery of Kubernetes. This process writes what it would
find, with the same ``__meta_kubernetes_*`` labels, as files for ``file_sd_configs``, so that the
relabelling of the monitors is Prometheus' own. Labels as in Prometheus' documentation,
``kubernetes_sd_config``, roles pod and endpointslice.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes
import urllib3

Body = Mapping[str, Any]
Target = dict[str, Any]

META = "__meta_kubernetes_"
POLL_SECONDS = 0.5


def sanitised(label: str) -> str:
    """Return the name of a Kubernetes label as Prometheus writes it."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def _object_labels(kind: str, body: Body) -> dict[str, str]:
    found = {f"{META}{kind}_name": body["metadata"]["name"]}
    for name, value in (body["metadata"].get("labels") or {}).items():
        found[f"{META}{kind}_label_{sanitised(name)}"] = value
        found[f"{META}{kind}_labelpresent_{sanitised(name)}"] = "true"
    return found


def _pod_labels(pod: Body) -> dict[str, str]:
    return {
        **_object_labels("pod", pod),
        f"{META}namespace": pod["metadata"]["namespace"],
        f"{META}pod_phase": pod.get("status", {}).get("phase", ""),
        f"{META}pod_ip": pod.get("status", {}).get("podIP", ""),
    }


def pod_targets(pods: Iterable[Body]) -> Iterator[Target]:
    """Yield a target for each port of each container of each Pod that has an address."""
    for pod in pods:
        address = pod.get("status", {}).get("podIP")
        if not address:
            continue
        for container in pod["spec"]["containers"]:
            for port in container.get("ports") or ():
                yield {
                    "targets": [f"{address}:{port['containerPort']}"],
                    "labels": {
                        **_pod_labels(pod),
                        f"{META}pod_container_name": container["name"],
                        f"{META}pod_container_port_name": port.get("name", ""),
                    },
                }


def endpointslice_targets(
    slices: Iterable[Body], services: Iterable[Body], pods: Iterable[Body]
) -> Iterator[Target]:
    """Yield a target for each port of each endpoint, with its Service's and its Pod's labels."""
    by_service = {(s["metadata"]["namespace"], s["metadata"]["name"]): s for s in services}
    by_pod = {(p["metadata"]["namespace"], p["metadata"]["name"]): p for p in pods}
    for found in slices:
        namespace = found["metadata"]["namespace"]
        name = (found["metadata"].get("labels") or {}).get("kubernetes.io/service-name", "")
        service = by_service.get((namespace, name))
        for endpoint in found.get("endpoints") or () if service else ():
            reference = endpoint.get("targetRef") or {}
            pod = by_pod.get((namespace, reference.get("name", "")))
            labels = {**_object_labels("service", service or {}), f"{META}namespace": namespace}
            if pod is not None:
                first = pod["spec"]["containers"][0]["name"]
                labels |= {**_pod_labels(pod), f"{META}pod_container_name": first}
            for port in found.get("ports") or ():
                for address in endpoint["addresses"]:
                    yield {
                        "targets": [f"{address}:{port['port']}"],
                        "labels": labels
                        | {f"{META}endpointslice_port_name": port.get("name") or ""},
                    }


def _write(path: Path, targets: Iterable[Target]) -> None:
    text = json.dumps(list(targets), sort_keys=True)
    if not path.exists() or path.read_text() != text:
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)


def main() -> None:
    """Write the files until SIGTERM, or until the API server is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="for pod.json, …")
    parsed = parser.parse_args()
    client = kubernetes.config.new_client_from_config(str(parsed.kubeconfig))

    core = kubernetes.client.CoreV1Api(client)
    discovery = kubernetes.client.DiscoveryV1Api(client)

    def listed(method: Callable[..., Any]) -> list[Body]:
        # As plain JSON: the client's own models would have to be turned back.
        return list(json.loads(method(_preload_content=False, _request_timeout=10).data)["items"])

    while True:
        try:
            pods = listed(core.list_pod_for_all_namespaces)
            slices = listed(discovery.list_endpoint_slice_for_all_namespaces)
            services = listed(core.list_service_for_all_namespaces)
        except (kubernetes.client.ApiException, urllib3.exceptions.HTTPError):
            pods, slices, services = [], [], []
        _write(parsed.directory / "pod.json", pod_targets(pods))
        _write(
            parsed.directory / "endpointslice.json",
            endpointslice_targets(slices, services, pods),
        )
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
