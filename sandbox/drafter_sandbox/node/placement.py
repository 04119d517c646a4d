"""Places Pods on the node, or says why they wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafter_sandbox.metadata import timestamp
from drafter_sandbox.node.recorder import EventRecorder
from drafter_sandbox.node.scheduler import unschedulable
from drafter_sandbox.store import Store


class PlacementController:
    """The scheduler of a cluster with one node."""

    def __init__(self, store: Store, node_name: str, events: EventRecorder) -> None:
        self._store = store
        self._node_name = node_name
        self._events = events

    def reconcile(self) -> float | None:
        """Look at every Pod that has no node."""
        node = self._store.get("nodes", None, self._node_name)
        assert node is not None, "the node registers itself before it places Pods"
        pods = self._store.list("pods")
        placed = [pod for pod in pods if pod["spec"].get("nodeName")]
        for pod in pods:
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            reason = self._unbound_claim(pod) or unschedulable(pod, node, placed)
            if reason is None:
                placed.append(self._place(pod))
            else:
                self._refuse(pod, reason)
        return None

    def _unbound_claim(self, pod: Mapping[str, Any]) -> str | None:
        for volume in pod["spec"].get("volumes") or []:
            source = volume.get("persistentVolumeClaim")
            if source is None:
                continue
            name = source["claimName"]
            claim = self._store.get("persistentvolumeclaims", pod["metadata"]["namespace"], name)
            if claim is None:
                return f'0/1 nodes are available: persistentvolumeclaim "{name}" not found.'
            if claim["status"].get("phase") != "Bound":
                return (
                    "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims"
                    f" ({name})."
                )
        return None

    def _place(self, pod: dict[str, Any]) -> dict[str, Any]:
        metadata = pod["metadata"]
        pod["spec"]["nodeName"] = self._node_name
        self._store.update("pods", metadata["namespace"], metadata["name"], pod)
        condition = {
            "type": "PodScheduled",
            "status": "True",
            "lastTransitionTime": timestamp(),
        }
        place = f"{metadata['namespace']}/{metadata['name']}"
        self._events.post(
            pod, "Normal", "Scheduled", f"Successfully assigned {place} to {self._node_name}"
        )
        return self._store.patch_status(
            "pods",
            metadata["namespace"],
            metadata["name"],
            lambda status: status.update(conditions=[condition]),
        )

    def _refuse(self, pod: Mapping[str, Any], reason: str) -> None:
        known = pod["status"].get("conditions") or []
        if any(item.get("message") == reason for item in known):
            return
        metadata = pod["metadata"]
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": reason,
            "lastTransitionTime": timestamp(),
        }
        self._store.patch_status(
            "pods",
            metadata["namespace"],
            metadata["name"],
            lambda status: status.update(conditions=[condition]),
        )
        self._events.post(pod, "Warning", "FailedScheduling", reason)
