"""What of an object's metadata the server decides."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from drafter_sandbox.resources import ResourceType

Body = dict[str, Any]

_POD_GRACE_SECONDS = 30


def timestamp(moment: datetime | None = None) -> str:
    """Return a moment (now by default) as the API writes it, in seconds and UTC."""
    moment = moment or datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def same(old: Body, new: Body) -> bool:
    """Whether a write changes nothing but the time of a managed fields entry."""
    if old == new:
        return True
    left, right = dict(old["metadata"]), dict(new["metadata"])
    left["managedFields"] = _untimed(left)
    right["managedFields"] = _untimed(right)
    left.pop("resourceVersion", None)
    right.pop("resourceVersion", None)
    return left == right and {**old, "metadata": 0} == {**new, "metadata": 0}


def _untimed(meta: Body) -> list[Body]:
    return [
        {key: value for key, value in entry.items() if key != "time"}
        for entry in meta.get("managedFields") or []
    ]


def content(body: Body) -> Body:
    """Return the part of an object whose changes count as a new generation."""
    return {
        key: value
        for key, value in body.items()
        if key not in ("metadata", "status", "apiVersion", "kind")
    }


def merged_metadata(old: Body, new: Body) -> Body:
    """Return the new metadata with what only the server may set taken from the old."""
    for name in (
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ):
        if name in old:
            new[name] = old[name]
        else:
            new.pop(name, None)
    if old.get("deletionTimestamp"):
        # No finalizer may be added once the object is being deleted.
        kept = old.get("finalizers") or []
        new["finalizers"] = [name for name in new.get("finalizers") or [] if name in kept]
        if not new["finalizers"]:
            del new["finalizers"]
    if "managedFields" not in new and "managedFields" in old:
        new["managedFields"] = old["managedFields"]
    return new


def grace_seconds(resource: ResourceType, body: Body, asked: int | None) -> int:
    """Return the seconds an object may take to end; only Pods on a node take any."""
    if (resource.group, resource.plural) != ("", "pods"):
        return 0
    spec = body.get("spec") or {}
    if not spec.get("nodeName"):
        return 0
    if (body.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return max(0, asked)
    return int(spec.get("terminationGracePeriodSeconds", _POD_GRACE_SECONDS))
