"""The CustomResourceDefinition, from the models.

Rules of a structural schema: Kubernetes, "Extend the Kubernetes API with
CustomResourceDefinitions". pydantic's schema is inlined, stripped of titles, and optional
fields are absent instead of null.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from drafter_operator.api.base import (
    CATEGORIES,
    GROUP,
    KIND,
    PLURAL,
    SHORT_NAMES,
    SINGULAR,
    VERSION,
)
from drafter_operator.api.rules import run_rules
from drafter_operator.api.spec import DrafterRunSpec
from drafter_operator.api.status import DrafterRunStatus

Schema = dict[str, Any]

DEFAULT_MAP_ITEMS = 64
DEFAULT_LIST_ITEMS = 256
DEFAULT_TEXT_LENGTH = 4096
"""Bounds where a model states none: the API server estimates the cost of CEL rules from them."""

PRINTER_COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("Phase", "string", ".status.phase", "Summary"),
    ("Step", "string", ".status.step", "Present step"),
    ("Progress", "string", ".status.progress", "Steps done of all"),
    ("Best", "string", ".status.best.candidate", "Winner of the benchmark"),
    ("Accept", "string", ".status.best.acceptanceLength", "Acceptance length of the winner"),
    ("Speedup", "string", ".status.best.speedup", "Throughput of the winner over the baseline's"),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the run was created"),
)


def custom_resource_definition() -> Schema:
    """Return the CustomResourceDefinition of DrafterRun."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": list(SHORT_NAMES),
                "categories": list(CATEGORIES),
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "description": text}
                        for name, kind, path, text in PRINTER_COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": _run_schema()},
                }
            ],
        },
    }


def _run_schema() -> Schema:
    return {
        "type": "object",
        "description": "The life of one drafter: from prompts to a promoted, measured server.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(DrafterRunSpec),
            "status": structural_schema(DrafterRunStatus, with_defaults=False),
        },
        "x-kubernetes-validations": run_rules(),
    }


def structural_schema(model: type[BaseModel], *, with_defaults: bool = True) -> Schema:
    """Return a model's structural schema.

    Parameters
    ----------
    model
        The model.
    with_defaults
        Whether the API server shall fill in what a user leaves out.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = schema.pop("$defs", {})
    return _structural(schema, definitions, with_defaults)


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Any], defaults: bool) -> Schema:
    schema = _resolved(node, definitions)
    schema.pop("title", None)
    schema.pop("additionalProperties", None) if "properties" in schema else None
    preserve = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if "properties" in schema:
        required = schema.get("required", [])
        schema["properties"] = {
            name: _property(child, definitions, defaults, optional=name not in required)
            for name, child in schema["properties"].items()
        }
    values = schema.get("additionalProperties")
    if preserve:
        schema.pop("additionalProperties", None)
    elif isinstance(values, Mapping):
        schema["additionalProperties"] = _structural(values, definitions, defaults)
        schema.setdefault("maxProperties", DEFAULT_MAP_ITEMS)
    if "items" in schema:
        schema["items"] = _structural(schema["items"], definitions, defaults)
        schema.setdefault("maxItems", DEFAULT_LIST_ITEMS)
    if schema.get("type") == "string" and "enum" not in schema and "format" not in schema:
        schema.setdefault("maxLength", DEFAULT_TEXT_LENGTH)
    if schema.get("default") is None or not defaults:
        schema.pop("default", None)
    return schema


def _property(
    node: Mapping[str, Any], definitions: Mapping[str, Any], defaults: bool, *, optional: bool
) -> Schema:
    """Return a property's schema; an absent object gets the defaults of its fields."""
    schema = _structural(node, definitions, defaults)
    if defaults and optional and "properties" in schema and "anyOf" not in node:
        schema.setdefault("default", {})
    return schema


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Inline references and turn "or null" into absence."""
    schema: Schema = copy.deepcopy(dict(node))
    if "anyOf" in schema:
        present = [option for option in schema.pop("anyOf") if option.get("type") != "null"]
        if len(present) != 1:
            raise ValueError(f"no structural schema for a union: {node}")
        schema = _resolved(present[0], definitions) | schema
    reference = schema.pop("$ref", None)
    if reference is not None:
        named = _resolved(definitions[reference.rsplit("/", 1)[-1]], definitions)
        # The field's own description says more than the class's.
        schema = named | schema
    return schema
