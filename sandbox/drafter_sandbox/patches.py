"""JSON patch, JSON merge patch and strategic merge patch."""

from __future__ import annotations

from typing import Any

import jsonpatch

from drafter_sandbox.errors import ApiError, bad_request
from drafter_sandbox.schemas import Schema, item_schema, property_schema, resolve
from drafter_sandbox.trees import copy_tree

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_DELETE_ITEMS = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def json_patch(original: dict[str, Any], operations: Any) -> dict[str, Any]:
    """Apply an RFC 6902 patch.

    Raises
    ------
    ApiError
        400 when the patch is malformed, 422 when it does not fit the object.
    """
    if not isinstance(operations, list):
        raise bad_request("a JSON patch must be a list of operations")
    try:
        result: dict[str, Any] = jsonpatch.apply_patch(copy_tree(original), operations)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise ApiError(
            422,
            "Invalid",
            f"the server rejected our request due to an error in our request: {error}",
        ) from error
    return result


def merge_patch(original: Any, patch: Any) -> Any:
    """Apply an RFC 7386 patch."""
    if not isinstance(patch, dict):
        return copy_tree(patch)
    result = dict(original) if isinstance(original, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def strategic_merge_patch(
    schema: Schema, original: dict[str, Any], patch: dict[str, Any]
) -> dict[str, Any]:
    """Apply a strategic merge patch: lists merge by the keys that their schema names."""
    return _merge_map(resolve(schema), original, patch)


def _merge_map(schema: Schema, original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch.get(_DIRECTIVE)
    if directive == "delete":
        return {}
    if directive == "replace":
        return {name: copy_tree(v) for name, v in patch.items() if name != _DIRECTIVE}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch type found: {directive!r}")
    result = dict(original)
    if _RETAIN in patch:
        kept = set(patch[_RETAIN])
        result = {name: value for name, value in result.items() if name in kept}
    for name, value in patch.items():
        if name in (_DIRECTIVE, _RETAIN) or name.startswith(_ORDER):
            continue
        if name.startswith(_DELETE_ITEMS):
            field = name.removeprefix(_DELETE_ITEMS)
            result[field] = [item for item in result.get(field) or [] if item not in value]
            continue
        if value is None:
            result.pop(name, None)
            continue
        below = property_schema(schema, name) or {}
        if isinstance(value, dict):
            current = result.get(name)
            result[name] = _merge_map(below, current if isinstance(current, dict) else {}, value)
        elif isinstance(value, list):
            order = patch.get(_ORDER + name)
            result[name] = _merge_list(below, result.get(name) or [], value, order)
        else:
            result[name] = value
    # An order may come for a list that is not changed otherwise.
    for name, order in patch.items():
        if name.startswith(_ORDER) and name.removeprefix(_ORDER) not in patch:
            field = name.removeprefix(_ORDER)
            below = property_schema(schema, field) or {}
            if isinstance(result.get(field), list):
                result[field] = _ordered(below, result[field], order)
    return result


def _merge_list(
    schema: Schema, original: list[Any], patch: list[Any], order: list[Any] | None
) -> list[Any]:
    strategy = str(schema.get("x-kubernetes-patch-strategy") or "")
    if "merge" not in strategy.split(","):
        return [copy_tree(item) for item in patch]
    key = schema.get("x-kubernetes-patch-merge-key")
    if not key:
        merged = original + [item for item in patch if item not in original]
        return _ordered(schema, merged, order)
    items = item_schema(schema)
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [
            copy_tree(item)
            for item in patch
            if not (isinstance(item, dict) and item.get(_DIRECTIVE) == "replace")
        ]
    result = list(original)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        places = [i for i, other in enumerate(result) if other.get(key) == item[key]]
        if item.get(_DIRECTIVE) == "delete":
            result = [other for other in result if other.get(key) != item[key]]
        elif places:
            result[places[0]] = _merge_map(items, result[places[0]], item)
        else:
            result.append(_merge_map(items, {}, item))
    return _ordered(schema, result, order)


def _ordered(schema: Schema, items: list[Any], order: list[Any] | None) -> list[Any]:
    """Return the items in the patch's order; those it does not name keep their places after."""
    if not order:
        return items
    key = schema.get("x-kubernetes-patch-merge-key")

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    named = sorted(
        (item for item in items if identity(item) in wanted),
        key=lambda item: wanted.index(identity(item)),
    )
    return named + [item for item in items if identity(item) not in wanted]
