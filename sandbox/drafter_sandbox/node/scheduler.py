"""Which Pods fit on the node, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from drafter_sandbox.quantities import parse_quantity

FINISHED = ("Succeeded", "Failed")


def requests_of(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """Return what a Pod asks for: its containers together, or its largest init container."""
    total: dict[str, Decimal] = {}
    for container in pod["spec"].get("containers") or []:
        for name, amount in _requests(container).items():
            total[name] = total.get(name, Decimal(0)) + amount
    for container in pod["spec"].get("initContainers") or []:
        for name, amount in _requests(container).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def _requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(amount) for name, amount in merged.items()}


def unschedulable(
    pod: Mapping[str, Any], node: Mapping[str, Any], scheduled: Iterable[Mapping[str, Any]]
) -> str | None:
    """Return the scheduler's message if a Pod does not fit, else None.

    Parameters
    ----------
    pod
        The Pod to place.
    node
        The only node.
    scheduled
        Pods that are on it.
    """
    tolerations = pod["spec"].get("tolerations") or []
    offer = node.get("spec") or {}
    if offer.get("unschedulable"):
        return "0/1 nodes are available: 1 node(s) were unschedulable."
    for taint in offer.get("taints") or []:
        if taint["effect"] != "PreferNoSchedule" and not _tolerated(taint, tolerations):
            words = f"{{{taint['key']}: {taint.get('value', '')}}}"
            return f"0/1 nodes are available: 1 node(s) had untolerated taint {words}."
    if not _selected(pod, node):
        return "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    free = {name: parse_quantity(amount) for name, amount in node["status"]["allocatable"].items()}
    for other in scheduled:
        if other["status"].get("phase") not in FINISHED:
            for name, amount in requests_of(other).items():
                free[name] = free.get(name, Decimal(0)) - amount
            free["pods"] = free.get("pods", Decimal(0)) - 1
    if free.get("pods", Decimal(1)) < 1:
        return "0/1 nodes are available: 1 Too many pods."
    lacking = [
        name
        for name, amount in sorted(requests_of(pod).items())
        if amount > free.get(name, Decimal(0))
    ]
    if lacking:
        words = ", ".join(f"1 Insufficient {name}" for name in lacking)
        return f"0/1 nodes are available: {words}."
    return None


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    for toleration in tolerations:
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        exists = toleration.get("operator") == "Exists"
        if toleration.get("key") not in (taint["key"], *((None, "") if exists else ())):
            continue
        if exists or toleration.get("value", "") == taint.get("value", ""):
            return True
    return False


def _selected(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Return whether a Pod's node selector and required node affinity fit a node."""
    labels = node["metadata"].get("labels") or {}
    selector = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(name) != value for name, value in selector.items()):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    fields = {"metadata.name": node["metadata"].get("name", "")}
    return any(
        all(_holds(wanted, labels) for wanted in term.get("matchExpressions") or [])
        and all(_holds(wanted, fields) for wanted in term.get("matchFields") or [])
        for term in required["nodeSelectorTerms"]
    )


def _holds(wanted: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    value, listed = values.get(wanted["key"]), wanted.get("values") or []
    match wanted["operator"]:
        case "In":
            return value in listed
        case "NotIn":
            return value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    if value is None or not value.lstrip("-").isdigit():
        return False
    bound = int(listed[0])
    return int(value) > bound if wanted["operator"] == "Gt" else int(value) < bound
