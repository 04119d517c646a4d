"""Server-side apply: who manages which fields, conflicts, and merging.

A set of fields is kept in the API's own form (``FieldsV1``): nested mappings
with ``f:<name>`` for a field or map key, ``k:<keys>`` for an item of a list
with keys, ``v:<value>`` for an item of a set, and ``.`` for the object or item
itself. Lists and maps marked atomic are one field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from drafter_sandbox.errors import ApiError
from drafter_sandbox.schemas import (
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    Schema,
    item_schema,
    property_schema,
    resolve,
)
from drafter_sandbox.trees import copy_tree

Body = dict[str, Any]
Fields = dict[str, Any]
Path = tuple[str, ...]

_SELF = "."
# What the server sets and nobody manages.
_UNMANAGED = (
    ("f:apiVersion",),
    ("f:kind",),
    *(
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "managedFields",
            "generateName",
        )
    ),
)


@dataclass(frozen=True)
class Manager:
    """Who writes, and how.

    Attributes
    ----------
    operation
        ``Apply`` or ``Update``.
    subresource
        Empty for the object itself.
    """

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    def matches(self, entry: Body) -> bool:
        """Whether an entry of ``managedFields`` is this manager's."""
        return (
            entry.get("manager") == self.name
            and entry.get("operation") == self.operation
            and (entry.get("subresource") or "") == self.subresource
            and (self.operation == "Apply" or entry.get("apiVersion") == self.api_version)
        )

    def entry(self, fields: Fields, time: str) -> Body:
        """Return an entry of ``managedFields``."""
        entry = {
            "manager": self.name,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
        if self.subresource:
            entry["subresource"] = self.subresource
        return entry


# Sets of fields


def fields_of(schema: Schema, body: Body) -> Fields:
    """Return the fields that an object sets, without those nobody manages."""
    fields = _fields(schema, body)
    fields.pop(_SELF, None)
    return _without(fields, _UNMANAGED)


def _fields(schema: Schema, value: Any) -> Fields:
    schema = resolve(schema)
    if isinstance(value, dict) and schema.get(MAP_TYPE) != "atomic" and value:
        result: Fields = {}
        if "properties" not in schema:
            result[_SELF] = {}
        for name, item in value.items():
            below = property_schema(schema, name) or {}
            result[f"f:{name}"] = _fields(below, item)
        return result
    if isinstance(value, list):
        keys = _list_keys(schema)
        if keys is not None:
            items = item_schema(schema)
            result = {}
            for item in value:
                key = _item_key(keys, items, item)
                result[key] = {_SELF: {}, **(_fields(items, item) if keys else {})}
                if not keys:
                    result[key] = {}
            return result
    return {}


def _list_keys(schema: Schema) -> list[str] | None:
    """Return the keys of a list's items, none for a set, None for an atomic list."""
    kind = schema.get(LIST_TYPE)
    if kind == "map":
        return list(schema.get(MAP_KEYS) or [])
    if kind == "set":
        return []
    return None


def _item_key(keys: list[str], items: Schema, item: Any) -> str:
    if not keys:
        return "v:" + json.dumps(item, separators=(",", ":"), sort_keys=True)
    values = {}
    for key in keys:
        default = (property_schema(items, key) or {}).get("default")
        values[key] = item.get(key, default) if isinstance(item, dict) else None
        if values[key] is None:
            del values[key]
    # Ports merge by port and protocol, whose default no schema states.
    if "protocol" in keys:
        values.setdefault("protocol", "TCP")
    return "k:" + json.dumps(values, separators=(",", ":"), sort_keys=True)


def _without(fields: Fields, paths: tuple[Path, ...]) -> Fields:
    for path in paths:
        _discard(fields, path)
    return fields


def _discard(fields: Fields, path: Path) -> None:
    """Remove a path from a set, and the parents that become empty."""
    trail: list[tuple[Fields, str]] = []
    node = fields
    for step in path:
        if step not in node:
            return
        trail.append((node, step))
        node = node[step]
    for parent, step in reversed(trail):
        del parent[step]
        if parent:
            return


def leaves(fields: Fields, prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths in a set."""
    for step, below in fields.items():
        if step == _SELF:
            yield (*prefix, _SELF)
        elif not below:
            yield (*prefix, step)
        else:
            yield from leaves(below, (*prefix, step))


def _contains(fields: Fields, path: Path) -> bool:
    """Whether a set owns a path itself; what only leads to owned fields is not owned."""
    node = fields
    for step in path:
        if step not in node:
            return False
        node = node[step]
    return not node


def _present(fields: Fields, path: Path) -> bool:
    """Whether a set has a path or anything below it."""
    node = fields
    for step in path:
        if step not in node:
            return False
        node = node[step]
    return True


def _add(fields: Fields, path: Path) -> None:
    for step in path:
        fields = fields.setdefault(step, {})


# Values at paths

_MISSING: Any = object()


def _value_at(schema: Schema, value: Any, path: Path) -> Any:
    for step in path:
        schema = resolve(schema)
        if step == _SELF:
            return True
        if step.startswith("f:"):
            name = step[2:]
            if not isinstance(value, dict) or name not in value:
                return _MISSING
            value, schema = value[name], property_schema(schema, name) or {}
        else:
            found = _find_item(schema, value, step)
            if found is None:
                return _MISSING
            value, schema = value[found], item_schema(schema)
    return value


def _find_item(schema: Schema, value: Any, step: str) -> int | None:
    keys = _list_keys(schema)
    if keys is None or not isinstance(value, list):
        return None
    items = item_schema(schema)
    for index, item in enumerate(value):
        if _item_key(keys, items, item) == step:
            return index
    return None


def _remove_at(schema: Schema, value: Any, path: Path) -> None:
    """Remove a field or item in place; what it leaves empty stays."""
    for position, step in enumerate(path):
        schema = resolve(schema)
        last = position == len(path) - 1 or path[position + 1] == _SELF
        if step.startswith("f:"):
            name = step[2:]
            if not isinstance(value, dict) or name not in value:
                return
            if last:
                del value[name]
                return
            value, schema = value[name], property_schema(schema, name) or {}
        else:
            found = _find_item(schema, value, step)
            if found is None:
                return
            if last:
                del value[found]
                return
            value, schema = value[found], item_schema(schema)


def merged(schema: Schema, live: Any, applied: Any) -> Any:
    """Return the live value with the applied one merged into it."""
    schema = resolve(schema)
    if isinstance(applied, dict) and isinstance(live, dict) and schema.get(MAP_TYPE) != "atomic":
        result = dict(live)
        for name, value in applied.items():
            below = property_schema(schema, name) or {}
            result[name] = merged(below, live[name], value) if name in live else copy_tree(value)
        return result
    keys = _list_keys(schema)
    if isinstance(applied, list) and isinstance(live, list) and keys is not None:
        items = item_schema(schema)
        known = {_item_key(keys, items, item): item for item in live}
        wanted: dict[str, Any] = {}
        for item in applied:
            key = _item_key(keys, items, item)
            wanted[key] = merged(items, known[key], item) if key in known else copy_tree(item)
        # Live items keep their places; applied ones follow in their own order.
        result_list = [wanted.pop(key, item) for key, item in known.items()]
        return result_list + list(wanted.values())
    return copy_tree(applied)


def shown(path: Path) -> str:
    """Return a path as a conflict names it, such as ``.spec.containers[name="a"].image``."""
    text = ""
    for step in path:
        if step.startswith("f:"):
            text += f".{step[2:]}"
        elif step.startswith("k:"):
            keys = json.loads(step[2:])
            inner = ",".join(f"{key}={json.dumps(value)}" for key, value in keys.items())
            text += f"[{inner}]"
        elif step.startswith("v:"):
            text += f"[={step[2:]}]"
    return text


# Writing


def apply(
    schema: Schema,
    live: Body | None,
    applied: Body,
    manager: Manager,
    *,
    force: bool,
    time: str,
) -> Body:
    """Return the live object after a manager applied its fields to it.

    Raises
    ------
    ApiError
        409 when another manager owns one of the fields with another value,
        unless ``force`` is set.
    """
    applied = copy_tree(applied)
    (applied.get("metadata") or {}).pop("managedFields", None)
    fields = fields_of(schema, applied)
    entries = copy_tree(((live or {}).get("metadata") or {}).get("managedFields") or [])
    if live is None:
        result = applied
    else:
        own = next((entry for entry in entries if manager.matches(entry)), None)
        others = [entry for entry in entries if entry is not own]
        conflicts = _conflicts(schema, live, applied, fields, others)
        if conflicts and not force:
            raise _conflict_error(conflicts)
        for entry, path in conflicts:
            _discard(entry["fieldsV1"], path)
        # Of its own: what is abandoned is removed from it in place.
        result = copy_tree(merged(schema, live, applied))
        if own is not None:
            _drop_abandoned(schema, result, own["fieldsV1"], fields, others)
        entries = [entry for entry in others if entry.get("fieldsV1")]
        if own is not None and own["fieldsV1"] == fields:
            time = own["time"]
    result["metadata"]["managedFields"] = [*entries, manager.entry(fields, time)]
    return result


def _conflicts(
    schema: Schema, live: Body, applied: Body, fields: Fields, others: list[Body]
) -> list[tuple[Body, Path]]:
    found: list[tuple[Body, Path]] = []
    for path in leaves(fields):
        if path[-1] == _SELF:
            continue
        wanted = _value_at(schema, applied, path)
        if wanted == _value_at(schema, live, path):
            continue
        found += [(entry, path) for entry in others if _contains(entry["fieldsV1"], path)]
    return found


def _removal_order(path: Path) -> tuple[int, int]:
    """Deepest first; an item before its fields, which identify it, and a map after them."""
    if path[-1] != _SELF:
        return (-len(path), 1)
    return (-len(path), 0 if path[-2].startswith("k:") else 2)


def _drop_abandoned(
    schema: Schema, result: Body, before: Fields, after: Fields, others: list[Body]
) -> None:
    """Remove the fields a manager no longer applies and nobody else owns."""
    for path in sorted(leaves(before), key=_removal_order):
        if _present(after, path):
            continue
        bare = path[:-1] if path[-1] == _SELF else path
        if any(_present(entry["fieldsV1"], bare) for entry in others):
            continue
        if path[-1] == _SELF:
            left = _value_at(schema, result, bare)
            if isinstance(left, dict) and not bare[-1].startswith("k:") and left:
                continue
        _remove_at(schema, result, bare)


def _conflict_error(conflicts: list[tuple[Body, Path]]) -> ApiError:
    by_manager: dict[str, list[str]] = {}
    causes = []
    for entry, path in conflicts:
        who = f'"{entry["manager"]}"'
        if entry.get("subresource"):
            who += f' with subresource "{entry["subresource"]}"'
        who += f" using {entry['apiVersion']}"
        if entry["operation"] == "Update" and entry.get("time"):
            who += f" at {entry['time']}"
        by_manager.setdefault(who, []).append(shown(path))
        causes.append(
            {
                "reason": "FieldManagerConflict",
                "message": f"conflict with {who}",
                "field": shown(path),
            }
        )
    count = len(conflicts)
    if count == 1:
        who, paths = next(iter(by_manager.items()))
        text = f"conflict with {who}: {paths[0]}"
    else:
        text = "\n".join(
            f"conflicts with {who}:" + "".join(f"\n- {path}" for path in sorted(paths))
            for who, paths in sorted(by_manager.items())
        )
    noun = "conflict" if count == 1 else "conflicts"
    return ApiError(
        409, "Conflict", f"Apply failed with {count} {noun}: {text}", {"causes": causes}
    )


def track_update(schema: Schema, old: Body | None, new: Body, manager: Manager, time: str) -> None:
    """Set ``managedFields`` of an object, in place, after a write that is not an apply.

    The writer becomes the owner of every field whose value it changed; fields
    that are gone have no owner any more.
    """
    meta = new["metadata"]
    entries = copy_tree(meta.get("managedFields") or [])
    fields = fields_of(schema, new)
    changed: Fields = {}
    for path in leaves(fields):
        before = _value_at(schema, old, path) if old is not None else _MISSING
        if before is _MISSING or before != _value_at(schema, new, path):
            _add(changed, path)
    changed_paths = list(leaves(changed))
    own = next((entry for entry in entries if manager.matches(entry)), None)
    for entry in entries:
        for path in list(leaves(entry.get("fieldsV1") or {})):
            bare = path[:-1] if path[-1] == _SELF else path
            gone = _value_at(schema, new, bare) is _MISSING
            taken = entry is not own and path[-1] != _SELF and path in changed_paths
            if gone or taken:
                _discard(entry["fieldsV1"], path)
    if changed_paths:
        if own is None:
            own = manager.entry({}, time)
            entries.append(own)
        for path in changed_paths:
            _add(own["fieldsV1"], path)
        own["time"] = time
    meta["managedFields"] = [entry for entry in entries if entry.get("fieldsV1")]
    if not meta["managedFields"]:
        del meta["managedFields"]
