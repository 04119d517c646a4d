"""Volumes and the environment."""

from __future__ import annotations

import base64
import pathlib
from typing import Any

from node_cluster import NodeCluster, pod, python, shell


def claim(name: str, **spec: Any) -> dict[str, Any]:
    size = {"requests": {"storage": "1Gi"}}
    return {
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": size, **spec},
    }


def mounting(name: str, script: str, volume: dict[str, Any], **spec: Any) -> dict[str, Any]:
    mount = {"name": "v", "mountPath": "/data", **spec.pop("mount", {})}
    container = shell(script, volumeMounts=[mount])
    volumes = [{"name": "v", **volume}]
    return pod(name, container, restartPolicy="Never", volumes=volumes, **spec)


def test_a_claim_keeps_data_between_pods_and_goes_with_its_directory(node: NodeCluster) -> None:
    node.create("persistent_volume_claim", claim("kept"))
    source = {"persistentVolumeClaim": {"claimName": "kept"}}
    node.create("pod", mounting("writer", "echo hello > /data/x", source))
    node.wait_phase("writer", "Succeeded")
    node.create("pod", mounting("reader", "cat /data/x", source))
    node.wait_phase("reader", "Succeeded")
    assert node.log("reader") == "hello\n"
    found = node.get("persistent_volume_claim", "kept")
    assert found["status"]["phase"] == "Bound"
    assert found["spec"]["storageClassName"] == "sandbox-local"
    volume = node.core.read_persistent_volume(found["spec"]["volumeName"])
    assert pathlib.Path(volume.spec.host_path.path).is_dir()
    node.delete("persistent_volume_claim", "kept")
    name = found["spec"]["volumeName"]
    node.sandbox.kubectl("wait", "--for=delete", f"pv/{name}", "--timeout=20s")
    assert not pathlib.Path(volume.spec.host_path.path).exists()


def test_a_claim_in_use_is_removed_only_after_its_pods(node: NodeCluster) -> None:
    node.create("persistent_volume_claim", claim("used"))
    source = {"persistentVolumeClaim": {"claimName": "used"}}
    node.create("pod", mounting("user", "while test ! -e /data/end; do sleep 0.1; done", source))
    node.wait("pod", "user", lambda found: found["status"].get("phase") == "Running")
    bound = node.get("persistent_volume_claim", "used")
    volume = node.core.read_persistent_volume(bound["spec"]["volumeName"])
    node.delete("persistent_volume_claim", "used")
    directory = pathlib.Path(volume.spec.host_path.path)
    assert node.get("persistent_volume_claim", "used")["metadata"]["deletionTimestamp"]
    (directory / "end").touch()
    node.wait_phase("user", "Succeeded")
    node.wait_gone("persistent_volume_claim", "used")


def test_a_static_volume_is_bound_by_name_and_kept(
    node: NodeCluster, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "model").write_text("weights")
    name = f"static-{node.namespace}"
    node.core.create_persistent_volume(
        {
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "capacity": {"storage": "1Gi"},
                "storageClassName": "",
                "hostPath": {"path": str(tmp_path)},
            },
        }
    )
    fixed = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": name}
    node.create("persistent_volume_claim", claim("models") | {"spec": claim("m", **fixed)["spec"]})
    source = {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    node.create("pod", mounting("reading", "cat /data/model", source))
    node.wait_phase("reading", "Succeeded")
    assert node.log("reading") == "weights"
    node.delete("persistent_volume_claim", "models")
    node.sandbox.kubectl(
        "wait", "--for=jsonpath={.status.phase}=Released", f"pv/{name}", "--timeout=20s"
    )
    assert (tmp_path / "model").exists()


def test_a_pod_waits_for_a_claim_that_no_volume_fits(node: NodeCluster) -> None:
    node.create("persistent_volume_claim", claim("nothing", storageClassName="elsewhere"))
    source = {"persistentVolumeClaim": {"claimName": "nothing"}}
    node.create("pod", mounting("waits", "true", source))

    def refused(found: dict[str, Any]) -> bool:
        conditions = found["status"].get("conditions") or []
        return any("unbound immediate" in item.get("message", "") for item in conditions)

    found = node.wait("pod", "waits", refused)
    assert found["status"]["phase"] == "Pending"


def test_config_maps_and_secrets_are_directories(node: NodeCluster) -> None:
    node.create(
        "config_map",
        {
            "metadata": {"name": "c"},
            "data": {"a.txt": "text"},
            "binaryData": {"b.bin": base64.b64encode(b"\xff\x00").decode()},
        },
    )
    node.create(
        "secret",
        {"metadata": {"name": "s"}, "data": {"key": base64.b64encode(b"\xfe").decode()}},
    )
    text = "cat /data/a.txt; wc -c < /data/b.bin; stat -L -c %a /data/a.txt"
    node.create("pod", mounting("map", text, {"configMap": {"name": "c"}}))
    script = "wc -c < /data/sub/key; stat -L -c %a /data/sub/key"
    items = [{"key": "key", "path": "sub/key", "mode": 0o440}]
    source = {"secret": {"secretName": "s", "items": items, "defaultMode": 0o400}}
    node.create("pod", mounting("secret", script, source))
    node.wait_phase("map", "Succeeded")
    node.wait_phase("secret", "Succeeded")
    assert node.log("map").split() == ["text2", "644"]
    assert node.log("secret").split() == ["1", "440"]


def test_a_missing_config_map_is_named_and_waited_for(node: NodeCluster) -> None:
    node.create("pod", mounting("early", "cat /data/k", {"configMap": {"name": "later"}}))

    def told(found: dict[str, Any]) -> bool:
        statuses = found["status"].get("containerStatuses") or [{"state": {}}]
        return '"later" not found' in statuses[0]["state"].get("waiting", {}).get("message", "")

    node.wait("pod", "early", told)
    node.create("config_map", {"metadata": {"name": "later"}, "data": {"k": "v"}})
    node.wait_phase("early", "Succeeded")
    assert node.log("early") == "v"


def test_a_path_cannot_leave_its_volume(node: NodeCluster) -> None:
    node.create("config_map", {"metadata": {"name": "c"}, "data": {"k": "v"}})
    items = [{"key": "k", "path": "../../outside"}]
    node.create("pod", mounting("out", "true", {"configMap": {"name": "c", "items": items}}))
    mount = {"subPath": "../.."}
    node.create("pod", mounting("sub", "true", {"emptyDir": {}}, mount=mount))

    def told(found: dict[str, Any]) -> bool:
        statuses = found["status"].get("containerStatuses") or [{"state": {}}]
        return ".." in statuses[0]["state"].get("waiting", {}).get("message", "")

    for name in ("out", "sub"):
        assert node.wait("pod", name, told)["status"]["phase"] == "Pending"
        node.delete("pod", name)


def test_paths_in_variables_are_replaced_once_wherever_they_are_used(node: NodeCluster) -> None:
    container = shell(
        'echo "$(TARGET)" > "$(TARGET)"; echo "$LIST"; cat "$TARGET" > /data/copy',
        env=[
            {"name": "TARGET", "value": "/tmp/file"},
            {"name": "LIST", "value": "/data/a:/database:/tmp"},
        ],
        volumeMounts=[
            {"name": "one", "mountPath": "/tmp"},
            {"name": "two", "mountPath": "/data", "subPath": "deep"},
        ],
    )
    body = pod("paths", container, restartPolicy="Never")
    body["spec"]["volumes"] = [{"name": "one", "emptyDir": {}}, {"name": "two", "emptyDir": {}}]
    node.create("pod", body)
    node.wait_phase("paths", "Succeeded")
    first, second, third = node.log("paths").strip().split(":")
    assert first.endswith("/two/deep/a")
    assert (second, pathlib.Path(third).name) == ("/database", "one")
    assert (pathlib.Path(third) / "file").read_text().strip() == f"{third}/file"


def test_a_pod_reaches_the_api_server_with_its_service_accounts_rights(node: NodeCluster) -> None:
    program = (
        "import kubernetes\n"
        "kubernetes.config.load_config()\n"
        "core = kubernetes.client.CoreV1Api()\n"
        f"print(core.list_namespaced_pod('{node.namespace}').items[0].metadata.name)\n"
        "try:\n"
        "    core.list_namespaced_pod('default')\n"
        "except kubernetes.client.ApiException as error:\n"
        "    print(error.status)\n"
    )
    create = ("create", "-n", node.namespace)
    account = f"--serviceaccount={node.namespace}:default"
    node.sandbox.kubectl(*create, "role", "lists", "--verb=list", "--resource=pods")
    node.sandbox.kubectl(*create, "rolebinding", "lists", "--role=lists", account)
    node.create("pod", pod("client", python(program), restartPolicy="Never"))
    node.wait("pod", "client", lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
    assert node.log("client") == "client\n403\n"


def test_nothing_of_the_sandboxs_own_environment_reaches_a_pod(node: NodeCluster) -> None:
    node.create("pod", pod("clean", shell("env"), restartPolicy="Never"))
    node.wait_phase("clean", "Succeeded")
    names = {line.split("=")[0] for line in node.log("clean").splitlines()}
    assert not names & {"VIRTUAL_ENV", "DRAFTER_SANDBOX_BACKOFF_SECONDS", "PYTEST_CURRENT_TEST"}
