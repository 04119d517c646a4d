"""The ``scale`` subresource."""

from __future__ import annotations

from typing import Any

from drafter_sandbox import jsonpath
from drafter_sandbox.crd import scale_paths
from drafter_sandbox.errors import Cause, invalid
from drafter_sandbox.resources import ResourceType
from drafter_sandbox.trees import copy_tree

Body = dict[str, Any]


def scale_of(resource: ResourceType, body: Body) -> Body:
    """Return an object's ``Scale``."""
    spec_path, status_path, selector_path = scale_paths(resource)
    wanted, current = jsonpath.find(spec_path, body), jsonpath.find(status_path, body)
    status: Body = {"replicas": (current or [0])[0] or 0}
    if selector_path:
        selector = (jsonpath.find(selector_path, body) or [""])[0]
    else:
        labels = ((body.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    if selector:
        status["selector"] = selector
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    meta = {key: body["metadata"][key] for key in names if key in body["metadata"]}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": meta,
        "spec": {"replicas": (wanted or [0])[0] or 0},
        "status": status,
    }


def scaled(resource: ResourceType, body: Body, scale: Body) -> Body:
    """Return an object with the replicas of a ``Scale``.

    Raises
    ------
    ApiError
        422 when the number of replicas is none.
    """
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        cause = Cause(
            "spec.replicas",
            f"Invalid value: {replicas}: must be greater than or equal to 0",
        )
        raise invalid("Scale", "autoscaling", body["metadata"]["name"], [cause])
    result: Body = copy_tree(body)
    *parents, last = scale_paths(resource)[0].strip(".").split(".")
    node = result
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = replicas
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        result["metadata"]["resourceVersion"] = version
    return result
