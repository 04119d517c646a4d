"""CustomResourceDefinitions: whether one can be installed, and its names and conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from drafter_sandbox import cel
from drafter_sandbox.errors import Cause
from drafter_sandbox.resources import ResourceType
from drafter_sandbox.schemas import (
    INT_OR_STRING,
    LIST_TYPE,
    MAP_KEYS,
    PRESERVE,
    Schema,
    apply_defaults,
    child,
)
from drafter_sandbox.validation import shown, validate

Body = dict[str, Any]


def complete(crd: Body) -> None:
    """Set the defaults of a definition's names."""
    spec = crd["spec"]
    names = spec["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {"strategy": "None"})


def problems(crd: Body) -> list[Cause]:
    """Return why a definition cannot be installed."""
    spec = crd["spec"]
    causes: list[Cause] = []
    wanted = f"{spec['names']['plural']}.{spec['group']}"
    if crd["metadata"]["name"] != wanted:
        causes.append(
            Cause(
                "metadata.name",
                f'Invalid value: "{crd["metadata"]["name"]}": must be spec.names.plural+"."'
                "+spec.group",
            )
        )
    stored = [version for version in spec["versions"] if version.get("storage")]
    if len(stored) != 1:
        causes.append(
            Cause(
                "spec.versions",
                "Invalid value: must have exactly one version marked as storage version",
            )
        )
    for index, version in enumerate(spec["versions"]):
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            causes.append(Cause(path, "Required value: schemas are required", "FieldValueRequired"))
            continue
        if schema.get("type") != "object":
            causes.append(
                Cause(
                    f"{path}.type",
                    f'Invalid value: "{schema.get("type", "")}": must be object at the root',
                )
            )
        for where, node in _nodes(schema, path):
            causes += _node_problems(node, where)
    return causes


def _nodes(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, item in (schema.get("properties") or {}).items():
        yield from _nodes(item, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), dict):
        yield from _nodes(schema["items"], f"{path}.items")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _nodes(schema["additionalProperties"], f"{path}.additionalProperties")


def _node_problems(node: Schema, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if not node.get("type") and not node.get(INT_OR_STRING) and not node.get(PRESERVE):
        causes.append(
            Cause(
                f"{path}.type",
                "Required value: must not be empty for specified object fields",
                "FieldValueRequired",
            )
        )
    if node.get("properties") and node.get("additionalProperties"):
        causes.append(
            Cause(
                f"{path}.additionalProperties",
                "Forbidden: additionalProperties and properties are mutual exclusive",
                "FieldValueForbidden",
            )
        )
    if "$ref" in node:
        causes.append(
            Cause(f"{path}.$ref", "Forbidden: $ref is not supported", "FieldValueForbidden")
        )
    if node.get("uniqueItems"):
        causes.append(
            Cause(
                f"{path}.uniqueItems",
                "Forbidden: uniqueItems cannot be set to true since the runtime complexity"
                " becomes quadratic",
                "FieldValueForbidden",
            )
        )
    if node.get("type") == "array" and "items" not in node:
        causes.append(
            Cause(f"{path}.items", "Required value: must be specified", "FieldValueRequired")
        )
    if node.get(LIST_TYPE) == "map" and not node.get(MAP_KEYS):
        causes.append(
            Cause(
                f"{path}.{MAP_KEYS}",
                f"Required value: must not be empty if {LIST_TYPE} is map",
                "FieldValueRequired",
            )
        )
    if "pattern" in node:
        try:
            re.compile(node["pattern"])
        except re.error as error:
            causes.append(
                Cause(
                    f"{path}.pattern",
                    f"Invalid value: {shown(node['pattern'])}: must be a valid regular expression,"
                    f" but isn't: {error}",
                )
            )
            return causes
    if "default" in node:
        default = node["default"]
        apply_defaults(node, default)
        for cause in validate(node, default, f"{path}.default"):
            causes.append(cause)
    for index, rule in enumerate(node.get(cel.RULES) or []):
        for name in ("rule", "messageExpression"):
            problem = cel.compile_problem(rule[name]) if rule.get(name) else None
            if problem:
                causes.append(
                    Cause(
                        child(f"{path}.{cel.RULES}[{index}]", name),
                        f"Invalid value: {rule[name]}: compilation failed: {problem}",
                    )
                )
    return causes


def established(crd: Body, moment: str) -> None:
    """Set a definition's status: its names are accepted and it is served."""
    status = crd.setdefault("status", {})
    status["acceptedNames"] = dict(crd["spec"]["names"])
    stored = [version["name"] for version in crd["spec"]["versions"] if version.get("storage")]
    kept = status.get("storedVersions") or []
    status["storedVersions"] = kept + [name for name in stored if name not in kept]
    since = {c["type"]: c["lastTransitionTime"] for c in status.get("conditions") or []}
    status["conditions"] = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": since.get(kind, moment),
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]


def scale_paths(resource: ResourceType) -> tuple[str, str, str]:
    """Return where a type keeps spec replicas, status replicas and its selector."""
    if resource.scale:
        return (
            resource.scale["specReplicasPath"],
            resource.scale["statusReplicasPath"],
            resource.scale.get("labelSelectorPath") or "",
        )
    return ".spec.replicas", ".status.replicas", ""
