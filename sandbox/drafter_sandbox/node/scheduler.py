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
    labels = node["metadata"].get("labels") or {}
    for name, value in (pod["spec"].get("nodeSelector") or {}).items():
        if labels.get(name) != value:
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
