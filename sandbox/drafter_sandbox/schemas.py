"""The OpenAPI schemas of all types, in the one form the rest of the server reads.

Built-in types come from the schemas inside the package ``kubernetes-validate``
(Kubernetes' own OpenAPI document, split by type). A custom type's schema comes
from its CRD. Both end up as *structural* schemas: plain types, no ``null``
unless ``nullable``, references only to the built-in definitions.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drafter_sandbox.resources import ResourceType

Schema = dict[str, Any]

KUBERNETES_VERSION = "1.37"
REFERENCE = "#/components/schemas/"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
INT_OR_STRING = "x-kubernetes-int-or-string"
PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
LIST_TYPE = "x-kubernetes-list-type"
MAP_KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"
KIND = "x-kubernetes-group-version-kind"

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING_TYPE = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"


@cache
def definitions() -> dict[str, Schema]:
    """Return the schemas of all built-in types by their OpenAPI name."""
    folder = files("kubernetes_validate") / "kubernetes-json-schema"
    path = folder / f"v{KUBERNETES_VERSION}.0-local" / "_definitions.json"
    raw = json.loads(path.read_text(encoding="utf-8"))["$defs"]
    result: dict[str, Schema] = {}
    for name, schema in raw.items():
        if name == _QUANTITY:
            result[name] = {"type": "string", "format": "quantity", INT_OR_STRING: True}
        elif name == _INT_OR_STRING_TYPE:
            result[name] = {"type": "string", "format": "int-or-string", INT_OR_STRING: True}
        else:
            result[name] = _structural(schema)
    return result


def _structural(schema: Schema) -> Schema:
    """Return a built-in schema without the null types and enums of its JSON Schema form."""
    result: Schema = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, list):
            result[key] = next(name for name in value if name != "null")
        elif key == "$ref":
            result[key] = value.replace("#/$defs/", REFERENCE)
        elif key == "properties":
            result[key] = {name: _structural(item) for name, item in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            result[key] = _structural(value)
        elif key in ("allOf", "oneOf", "anyOf"):
            result[key] = [_structural(item) for item in value]
        elif key != "enum":
            result[key] = value
    shapeless = "properties" not in result and "additionalProperties" not in result
    if result.get("type") == "object" and shapeless:
        # A free-form field, such as a runtime.RawExtension.
        result[PRESERVE] = True
    return result


@cache
def _names_by_kind() -> dict[tuple[str, str, str], str]:
    names: dict[tuple[str, str, str], str] = {}
    for name, schema in definitions().items():
        kinds = schema.get(KIND) or []
        if len(kinds) == 1:
            kind = kinds[0]
            names[(kind["group"], kind["version"], kind["kind"])] = name
    return names


def definition_name(group: str, version: str, kind: str) -> str | None:
    """Return the OpenAPI name of a built-in type, or None."""
    return _names_by_kind().get((group, version, kind))


def schema_of(resource: ResourceType) -> Schema:
    """Return the schema of a type's objects; one that accepts anything if it has none."""
    if resource.schema is not None:
        return resource.schema
    name = definition_name(resource.group, resource.version, resource.kind)
    return definitions()[name] if name else {PRESERVE: True}


def custom_schema(declared: Schema) -> Schema:
    """Return a CRD's schema completed with what every object has."""
    properties = {
        **(declared.get("properties") or {}),
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"$ref": REFERENCE + OBJECT_META},
    }
    return {**declared, "type": "object", "properties": properties}


def resolve(schema: Schema) -> Schema:
    """Return a schema with its reference, if it is one, replaced by what it names."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    target = definitions()[reference.removeprefix(REFERENCE)]
    return resolve(target)


def property_schema(schema: Schema, name: str) -> Schema | None:
    """Return the resolved schema of an object's field, or None if it has no such field."""
    found = (schema.get("properties") or {}).get(name)
    if found is None:
        found = schema.get("additionalProperties")
        if found is True:
            return {PRESERVE: True}
    if isinstance(found, dict):
        resolved = resolve(found)
        if resolved is not found:
            # Siblings of a reference carry the merge strategy of the field.
            extra = {k: v for k, v in found.items() if k.startswith("x-")}
            return {**resolved, **extra} if extra else resolved
        return found
    return None


def item_schema(schema: Schema) -> Schema:
    """Return the resolved schema of a list's items."""
    items = schema.get("items")
    return resolve(items) if isinstance(items, dict) else {PRESERVE: True}


def accepts_anything(schema: Schema) -> bool:
    """Whether unknown fields of an object are kept."""
    if schema.get(PRESERVE):
        return True
    return "type" not in schema and "properties" not in schema and INT_OR_STRING not in schema


def child(path: str, name: str | int) -> str:
    """Return the path of a field or list item below ``path``."""
    if isinstance(name, int):
        return f"{path}[{name}]"
    if not path:
        return name
    return f"{path}.{name}"


def prune(schema: Schema, value: Any, path: str = "") -> list[str]:
    """Remove, in place, the fields a schema does not have.

    Returns
    -------
    list of str
        Paths of what was removed.
    """
    schema = resolve(schema)
    unknown: list[str] = []
    if isinstance(value, dict):
        keep_all = accepts_anything(schema)
        embedded = ("apiVersion", "kind", "metadata") if schema.get(EMBEDDED) else ()
        for name in list(value):
            below = property_schema(schema, name)
            if below is not None:
                unknown += prune(below, value[name], child(path, name))
            elif not keep_all and name not in embedded:
                unknown.append(child(path, name))
                del value[name]
    elif isinstance(value, list):
        items = item_schema(schema)
        for index, item in enumerate(value):
            unknown += prune(items, item, child(path, index))
    return unknown


def drop_nulls(schema: Schema, value: Any, *, custom: bool) -> None:
    """Remove, in place, fields set to null where null means absent."""
    schema = resolve(schema)
    if isinstance(value, dict):
        for name in list(value):
            below = property_schema(schema, name)
            if value[name] is None:
                if not custom or (below is not None and not below.get("nullable")):
                    del value[name]
            elif below is not None:
                drop_nulls(below, value[name], custom=custom)
    elif isinstance(value, list):
        for item in value:
            drop_nulls(item_schema(schema), item, custom=custom)


def apply_defaults(schema: Schema, value: Any) -> None:
    """Set, in place, the defaults of absent fields, those of nested defaults included."""
    from drafter_sandbox.trees import copy_tree

    schema = resolve(schema)
    if isinstance(value, dict):
        for name, below in (schema.get("properties") or {}).items():
            if name not in value and "default" in below:
                value[name] = copy_tree(below["default"])
        for name, item in value.items():
            found = property_schema(schema, name)
            if found is not None:
                apply_defaults(found, item)
    elif isinstance(value, list):
        for item in value:
            apply_defaults(item_schema(schema), item)
