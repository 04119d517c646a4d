"""``docs/api.md``: every field of spec and status, from the schema of the CRD."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from drafter_operator.api.base import GROUP, KIND, VERSION
from drafter_operator.api.crd import custom_resource_definition

_BOUNDS = (
    ("minimum", "≥ {}"),
    ("maximum", "≤ {}"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("pattern", "`{}`"),
)


def api_reference() -> str:
    """Return the Markdown text."""
    version = custom_resource_definition()["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    parts = [
        f"# {KIND}",
        "",
        f"`{GROUP}/{VERSION}`. Written from the models by `make generate`; do not edit.",
        "",
        "## Rules",
        "",
        *_rules(schema),
        *(f"- {message}" for message in _nested_rules(schema["properties"]["spec"])),
        "",
        "## spec",
        "",
        *_table(schema["properties"]["spec"], "spec"),
        "",
        "## status",
        "",
        *_table(schema["properties"]["status"], "status"),
        "",
    ]
    return "\n".join(parts)


def _rules(schema: Mapping[str, Any]) -> list[str]:
    return [f"- {rule['message']}" for rule in schema.get("x-kubernetes-validations", [])]


def _nested_rules(schema: Mapping[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield rule["message"]
    for child in schema.get("properties", {}).values():
        yield from _nested_rules(child)
    if "items" in schema:
        yield from _nested_rules(schema["items"])


def _table(schema: Mapping[str, Any], path: str) -> list[str]:
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    return lines + [
        f"| `{name}` | {kind} | {default} | {meaning} |"
        for name, kind, default, meaning in _rows(schema, path)
    ]


def _rows(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", [])
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        default = _default(child) or ("required" if name in required else "")
        yield here, _type(child), default, _meaning(child)
        yield from _rows(child, here)
        yield from _rows(child.get("items", {}), f"{here}[]")


def _default(schema: Mapping[str, Any]) -> str:
    # The default of an object is that of its fields, which have rows of their own.
    if "default" not in schema or "properties" in schema:
        return ""
    return f"`{json.dumps(schema['default'])}`"


def _type(schema: Mapping[str, Any]) -> str:
    if "x-kubernetes-int-or-string" in schema:
        return "integer or string"
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"map of {_type(schema['additionalProperties'])}"
    return kind


def _meaning(schema: Mapping[str, Any]) -> str:
    words = [str(schema.get("description", ""))]
    if "enum" in schema:
        words.append("One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".")
    bounds = [text.format(schema[name]) for name, text in _BOUNDS if name in schema]
    if bounds:
        words.append("(" + ", ".join(bounds) + ")")
    return " ".join(words).replace("|", "\\|").replace("\n", " ")
