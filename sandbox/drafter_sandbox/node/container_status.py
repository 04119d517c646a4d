"""The status of a Pod's containers, and the phase and conditions that follow from it.

Source of the rules: Kubernetes, "Pod Lifecycle".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafter_sandbox.metadata import timestamp

MESSAGE_LIMIT_BYTES = 4096
Status = dict[str, Any]


def waiting(reason: str, message: str = "") -> Status:
    """Return the state of a container that does not run yet."""
    state = {"reason": reason}
    if message:
        state["message"] = message
    return {"waiting": state}


def running(started_at: str) -> Status:
    """Return the state of a running container."""
    return {"running": {"startedAt": started_at}}


def terminated(exit_code: int, started_at: str, message: str = "", reason: str = "") -> Status:
    """Return the state of a container that has ended."""
    state: dict[str, Any] = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if exit_code == 0 else "Error"),
        "startedAt": started_at,
        "finishedAt": timestamp(),
    }
    if exit_code > 128:
        state["signal"] = exit_code - 128
    if message:
        state["message"] = message
    return {"terminated": state}


def new_status(container: Mapping[str, Any], reason: str) -> Status:
    """Return the status of a container before its first start."""
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 0,
        "state": waiting(reason),
        "lastState": {},
    }


def pod_phase(
    restart_policy: str, statuses: Sequence[Status], initialised: bool, init_failed: bool
) -> str:
    """Return the phase of a Pod.

    Parameters
    ----------
    restart_policy
        Always, OnFailure or Never.
    statuses
        Of the ordinary containers.
    initialised
        Whether every init container has succeeded.
    init_failed
        Whether one has failed for good.
    """
    if init_failed:
        return "Failed"
    if not initialised or not statuses:
        return "Pending"
    ended = [status["state"].get("terminated") for status in statuses]
    if all(ended) and restart_policy != "Always":
        codes = [end["exitCode"] for end in ended if end]
        if all(code == 0 for code in codes):
            return "Succeeded"
        if restart_policy == "Never":
            return "Failed"
    if any("running" in status["state"] or status["restartCount"] for status in statuses):
        return "Running"
    return "Running" if any(ended) else "Pending"


def conditions(
    known: Sequence[Mapping[str, Any]], phase: str, initialised: bool, ready: bool
) -> list[Status]:
    """Return the conditions of a scheduled Pod; times change with the status only."""
    reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")
    found = []
    for kind, holds in (
        ("PodScheduled", True),
        ("Initialized", initialised),
        ("ContainersReady", ready),
        ("Ready", ready),
    ):
        status = "True" if holds else "False"
        before = next((item for item in known if item["type"] == kind), None)
        since = (
            before["lastTransitionTime"] if before and before["status"] == status else timestamp()
        )
        condition = {"type": kind, "status": status, "lastTransitionTime": since}
        if not holds and kind != "Initialized":
            condition["reason"] = reason
        found.append(condition)
    others = {"PodScheduled", "Initialized", "ContainersReady", "Ready"}
    return found + [dict(item) for item in known if item["type"] not in others]


def with_disruption(known: Sequence[Mapping[str, Any]]) -> list[Status]:
    """Return conditions that say the node, not the Pod, is to blame for its end."""
    if any(item["type"] == "DisruptionTarget" for item in known):
        return [dict(item) for item in known]
    disruption = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": "the sandbox was restarted",
        "lastTransitionTime": timestamp(),
    }
    return [*(dict(item) for item in known), disruption]


def backoff_seconds(restarts: int, base: float) -> float:
    """Return the pause before a restart: doubled each time, five minutes at most."""
    return float(min(base * 2 ** max(0, restarts - 1), 300.0))


def condition_holds(conditions: Sequence[Mapping[str, Any]], kind: str) -> bool:
    """Return whether a condition is there and true."""
    return any(item["type"] == kind and item["status"] == "True" for item in conditions)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a Pod may be sent traffic."""
    return condition_holds(pod["status"].get("conditions") or [], "Ready")
