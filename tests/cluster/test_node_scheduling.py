"""What the node has room for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node_cluster import NodeCluster, condition, pod, shell


def asking(name: str, script: str = "sleep 99", **requests: str) -> dict[str, Any]:
    resources = {"requests": requests, "limits": requests}
    return pod(name, shell(script, resources=resources), restartPolicy="Never")


def refused(words: str) -> Callable[[dict[str, Any]], bool]:
    def check(found: dict[str, Any]) -> bool:
        conditions = found["status"].get("conditions") or []
        return any(words in item.get("message", "") for item in conditions)

    return check


def test_a_pod_that_asks_for_a_gpu_waits_and_an_event_says_why(node: NodeCluster) -> None:
    node.create("pod", asking("gpu", **{"nvidia.com/gpu": "1"}))
    found = node.wait("pod", "gpu", refused("0/1 nodes are available: 1 Insufficient nvidia.com"))
    assert found["status"]["phase"] == "Pending"
    assert condition(found, "PodScheduled")["reason"] == "Unschedulable"
    assert node.events("gpu", "FailedScheduling")


def test_a_pod_starts_when_another_makes_room(node: NodeCluster) -> None:
    node.create("pod", asking("big", memory="3Gi"))
    node.wait_ready("big")
    node.create("pod", asking("next", "true", memory="2Gi", **{"ephemeral-storage": "1Mi"}))
    node.wait("pod", "next", refused("Insufficient memory"))
    node.delete("pod", "big")
    node.wait_phase("next", "Succeeded")


def test_a_cordoned_or_tainted_node_takes_only_pods_that_tolerate_it(node: NodeCluster) -> None:
    body = pod("plain", shell("true"), restartPolicy="Never")
    node.sandbox.kubectl("cordon", "sandbox")
    try:
        node.create("pod", body)
        node.wait("pod", "plain", refused("were unschedulable"))
    finally:
        node.sandbox.kubectl("uncordon", "sandbox")
    node.wait_phase("plain", "Succeeded")
    node.sandbox.kubectl("taint", "nodes", "sandbox", "gpu=yes:NoSchedule")
    try:
        toleration = {"key": "gpu", "operator": "Exists"}
        node.create("pod", pod("tolerant", shell("true"), tolerations=[toleration]))
        node.create("pod", pod("intolerant", shell("true"), restartPolicy="Never"))
        node.wait("pod", "intolerant", refused("untolerated taint"))
        node.wait("pod", "tolerant", lambda found: bool(found["spec"].get("nodeName")))
    finally:
        node.sandbox.kubectl("taint", "nodes", "sandbox", "gpu-")
    node.wait_phase("intolerant", "Succeeded")
    node.delete("pod", "tolerant", 0)


def test_a_pod_with_an_affinity_for_other_nodes_waits(node: NodeCluster) -> None:
    def affinity(value: str) -> dict[str, Any]:
        term = {"key": "kubernetes.io/os", "operator": "In", "values": [value]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    for name, system in (("here", "linux"), ("elsewhere", "windows")):
        body = pod(name, shell("true"), restartPolicy="Never", affinity=affinity(system))
        node.create("pod", body)
    node.wait("pod", "elsewhere", refused("node affinity/selector"))
    node.wait_phase("here", "Succeeded")
