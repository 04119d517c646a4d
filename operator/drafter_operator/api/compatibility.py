"""Whether a schema only adds to another, so that stored objects and written manifests stay valid.

The rules are those of Kubernetes' API change policy for a version that is served:
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api_changes.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LOWER_BOUNDS = ("minimum", "minLength", "minItems")
_UPPER_BOUNDS = ("maximum", "maxLength", "maxItems")
_FIXED = ("type", "pattern", "format", "default", "x-kubernetes-list-type")


def breaking_changes(
    released: Mapping[str, Any], present: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    """Say what a schema refuses or changes that a released one accepted.

    Parameters
    ----------
    released, present
        ``openAPIV3Schema`` of a CustomResourceDefinition, or a part of it.
    path
        Where the part is.

    Yields
    ------
    str
        One change, with the path of its field.
    """
    where = path or "the object"
    for keyword in _FIXED:
        # Each release names its own images; a run keeps those it was made with.
        if keyword == "default" and path.endswith(".image"):
            continue
        if keyword in released and released[keyword] != present.get(keyword):
            yield f"{where}: {keyword} {released[keyword]!r} became {present.get(keyword)!r}"
    if "pattern" in present and "pattern" not in released:
        yield f"{where}: a pattern was added"
    for keyword in _LOWER_BOUNDS:
        if present.get(keyword, 0) > released.get(keyword, 0):
            yield f"{where}: {keyword} rose from {released.get(keyword)} to {present[keyword]}"
    for keyword in _UPPER_BOUNDS:
        if keyword in present and present[keyword] < released.get(keyword, float("inf")):
            yield f"{where}: {keyword} fell from {released.get(keyword)} to {present[keyword]}"
    if "enum" in present:
        if "enum" not in released:
            yield f"{where}: an enum was added"
        elif gone := [value for value in released["enum"] if value not in present["enum"]]:
            yield f"{where}: {', '.join(map(str, gone))} left the enum"
    known = set(released.get("required", []))
    for name in present.get("required", []):
        if name not in known:
            yield f"{where}: {name} became required"
    rules = {rule["rule"] for rule in released.get("x-kubernetes-validations", [])}
    for rule in present.get("x-kubernetes-validations", []):
        if rule["rule"] not in rules and not _speaks_of_new_fields_only(rule["rule"], released):
            yield f"{where}: a rule was added: {rule['rule']}"
    for name, schema in released.get("properties", {}).items():
        if name not in present.get("properties", {}):
            yield f"{path}.{name}: the field was removed"
        else:
            yield from breaking_changes(schema, present["properties"][name], f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(released.get(keyword), Mapping):
            yield from breaking_changes(
                released[keyword], present.get(keyword) or {}, f"{path}.{keyword}"
            )


def _speaks_of_new_fields_only(rule: str, released: Mapping[str, Any]) -> bool:
    """Whether a rule holds of every object that lacks the fields that were added."""
    field = rule.removeprefix("!has(self.").split(")", 1)[0]
    return rule.startswith("!has(self.") and field.split(".")[0] not in released.get(
        "properties", {}
    )
