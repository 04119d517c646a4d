"""Deployments with real kubectl: rollout, scale, undo, deadline."""

from __future__ import annotations

from typing import Any

from node_cluster import NodeCluster, condition, deployment, shell


def complete(found: dict[str, Any]) -> bool:
    status = found.get("status", {})
    return (
        status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("updatedReplicas", 0) == found["spec"]["replicas"]
        and status.get("readyReplicas", 0) == found["spec"]["replicas"]
        and status.get("replicas", 0) == found["spec"]["replicas"]
    )


def kubectl(node: NodeCluster, *arguments: str) -> str:
    return node.sandbox.kubectl(*arguments, "-n", node.namespace)


def revision(node: NodeCluster, name: str) -> str:
    annotations = node.get("deployment", name)["metadata"]["annotations"]
    return str(annotations["deployment.kubernetes.io/revision"])


def command(node: NodeCluster, name: str) -> str:
    found = node.get("deployment", name)
    return str(found["spec"]["template"]["spec"]["containers"][0]["command"][-1])


def change(node: NodeCluster, name: str, script: str) -> None:
    containers = [{"name": "main", "command": ["sh", "-c", script]}]
    node.patch("deployment", name, {"spec": {"template": {"spec": {"containers": containers}}}})


def test_a_rollout_replaces_the_pods_and_can_be_undone_twice(node: NodeCluster) -> None:
    node.create("deployment", deployment("web", shell("sleep 901"), replicas=2))
    assert "successfully rolled out" in kubectl(node, "rollout", "status", "deployment/web")
    change(node, "web", "sleep 902")
    node.wait("deployment", "web", complete)
    assert revision(node, "web") == "2"
    kubectl(node, "rollout", "undo", "deployment/web")
    node.wait("deployment", "web", complete)
    assert (command(node, "web"), revision(node, "web")) == ("sleep 901", "3")
    kubectl(node, "rollout", "undo", "deployment/web")
    node.wait("deployment", "web", complete)
    assert (command(node, "web"), revision(node, "web")) == ("sleep 902", "4")
    node.delete("deployment", "web")


def test_a_deployment_scales_to_nothing_and_back(node: NodeCluster) -> None:
    node.create("deployment", deployment("size", shell("sleep 99"), replicas=1))
    node.wait("deployment", "size", complete)
    kubectl(node, "scale", "deployment/size", "--replicas=0")
    node.wait("deployment", "size", complete)
    kubectl(node, "wait", "--for=delete", "pods", "-l", "app=size", "--timeout=20s")
    kubectl(node, "scale", "deployment/size", "--replicas=2")
    found = node.wait("deployment", "size", complete)
    assert condition(found, "Available")["status"] == "True"
    assert len(node.list("pod", "app=size")) == 2
    node.delete("deployment", "size")


def test_recreate_never_runs_old_and_new_side_by_side(node: NodeCluster) -> None:
    body = deployment("alone", shell("trap 'sleep 0.5; exit' TERM; sleep 99 & wait"), replicas=1)
    body["spec"]["strategy"] = {"type": "Recreate"}
    node.create("deployment", body)
    node.wait("deployment", "alone", complete)
    (old,) = node.list("pod", "app=alone")
    change(node, "alone", "sleep 98")
    node.wait("deployment", "alone", complete)
    (new,) = node.list("pod", "app=alone")
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    node.delete("deployment", "alone")


def test_a_rollout_that_does_not_progress_says_so(node: NodeCluster) -> None:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1}
    container = shell("sleep 99", readinessProbe=probe)
    node.create("deployment", deployment("never", container, progressDeadlineSeconds=1))

    def late(found: dict[str, Any]) -> bool:
        conditions = found.get("status", {}).get("conditions") or []
        return any(item["reason"] == "ProgressDeadlineExceeded" for item in conditions)

    found = node.wait("deployment", "never", late)
    assert condition(found, "Available")["status"] == "False"
    node.delete("deployment", "never")


def test_a_deleted_deployment_takes_its_pods_with_it(node: NodeCluster) -> None:
    node.create("deployment", deployment("gone", shell("sleep 99"), replicas=1))
    node.wait("deployment", "gone", complete)
    node.delete("deployment", "gone")
    kubectl(node, "wait", "--for=delete", "pods", "-l", "app=gone", "--timeout=20s")
    assert node.list("replica_set") == []
