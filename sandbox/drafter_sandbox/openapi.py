"""The OpenAPI v3 documents that kubectl reads for ``explain`` and for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from drafter_sandbox.requests import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from drafter_sandbox.resources import Registry, ResourceType
from drafter_sandbox.schemas import (
    INT_OR_STRING,
    KIND,
    KUBERNETES_VERSION,
    REFERENCE,
    Schema,
    definition_name,
    definitions,
    schema_of,
)

Body = dict[str, Any]

_METHODS = {
    "get": "get",
    "post": "create",
    "put": "update",
    "patch": "patch",
    "delete": "delete",
}
_PATCHES = (APPLY_PATCH, JSON_PATCH, MERGE_PATCH)


def document_paths(registry: Registry) -> Body:
    """Return the answer to ``/openapi/v3``: where each group version's document is."""
    paths: Body = {}
    for resource in registry.all():
        path = f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"
        if path not in paths:
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={_hash(registry, path)}"}
    return {"paths": paths}


def _hash(registry: Registry, path: str) -> str:
    # Clients keep a document until its hash changes.
    group, _, version = path.removeprefix("apis/").removeprefix("api/").rpartition("/")
    shape = [
        repr((resource.plural, resource.schema))
        for resource in registry.all()
        if (resource.group, resource.version) == (group, version)
    ]
    return hashlib.sha256("".join(shape).encode()).hexdigest()[:32]


def document(registry: Registry, group: str, version: str) -> Body | None:
    """Return the document of a group version, or None if it is not served."""
    types = [r for r in registry.all() if (r.group, r.version) == (group, version)]
    if not types:
        return None
    components: dict[str, Schema] = {}
    paths: Body = {}
    for resource in types:
        name = component_name(resource)
        components[name] = _published(schema_of(resource))
        if resource.custom:
            components[name][KIND] = [{"group": group, "version": version, "kind": resource.kind}]
        paths.update(_paths(resource, name))
    pending = list(components.values())
    while pending:
        for reference in _references(pending.pop()):
            if reference not in components:
                components[reference] = _published(definitions()[reference])
                pending.append(components[reference])
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": f"v{KUBERNETES_VERSION}.0"},
        "paths": paths,
        "components": {"schemas": components},
    }


def component_name(resource: ResourceType) -> str:
    """Return the name of a type's schema in its document."""
    known = definition_name(resource.group, resource.version, resource.kind)
    if known and not resource.custom:
        return known
    reversed_group = ".".join(reversed(resource.group.split(".")))
    return f"{reversed_group}.{resource.version}.{resource.kind}"


def _published(schema: Schema) -> Schema:
    """Return a schema as OpenAPI has it: references with siblings wrapped in ``allOf``."""
    result: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _published(item) for name, item in value.items()}
        elif key in ("items", "additionalProperties", "not") and isinstance(value, dict):
            result[key] = _published(value)
        elif key in ("allOf", "anyOf", "oneOf"):
            result[key] = [_published(item) for item in value]
        else:
            result[key] = value
    if "$ref" in result and len(result) > 1:
        result["allOf"] = [{"$ref": result.pop("$ref")}]
    if result.get(INT_OR_STRING) and "type" in result:
        del result[INT_OR_STRING]
    return result


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.removeprefix(REFERENCE)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)


def _paths(resource: ResourceType, component: str) -> Body:
    root = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
    if resource.namespaced:
        root += "/namespaces/{namespace}"
    collection, item = f"{root}/{resource.plural}", f"{root}/{resource.plural}/{{name}}"
    return {
        collection: {
            method: _operation(resource, method, component)
            for method in (("get", "post") if resource.stored else ("post",))
        },
        **(
            {
                item: {
                    method: _operation(resource, method, component)
                    for method in ("get", "put", "patch", "delete")
                }
            }
            if resource.stored
            else {}
        ),
    }


def _operation(resource: ResourceType, method: str, component: str) -> Body:
    reference = {"schema": {"$ref": REFERENCE + component}}
    parameters = []
    if method in ("post", "put", "patch"):
        # kubectl leaves validation to a server that has this parameter.
        parameters = [
            {"name": name, "in": "query", "schema": {"type": "string"}}
            for name in ("dryRun", "fieldManager", "fieldValidation")
        ]
    operation: Body = {
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {"application/json": reference}}},
        "x-kubernetes-action": _METHODS[method],
        KIND: {"group": resource.group, "version": resource.version, "kind": resource.kind},
    }
    if method in ("post", "put"):
        operation["requestBody"] = {"content": {"*/*": reference}}
    elif method == "patch":
        # kubectl sends a strategic patch to whatever claims to take one.
        kinds = _PATCHES if resource.custom else (*_PATCHES, STRATEGIC_PATCH)
        operation["requestBody"] = {
            "content": {kind: {"schema": {"type": "object"}} for kind in kinds}
        }
    return operation
