"""Validation rules of CRDs (``x-kubernetes-validations``), evaluated with cel-python."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import celpy
from celpy import celtypes

from drafter_sandbox.errors import Cause
from drafter_sandbox.quantities import parse_quantity
from drafter_sandbox.schemas import (
    EMBEDDED,
    LIST_TYPE,
    MAP_KEYS,
    Schema,
    child,
    item_schema,
    property_schema,
    resolve,
)

RULES = "x-kubernetes-validations"

_RESERVED = frozenset(
    [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
_TRANSITION = re.compile(r"\boldSelf\b")


@dataclass(frozen=True)
class OptionalValue:
    """A value that may be absent: ``oldSelf`` of a rule with ``optionalOldSelf``."""

    held: Any
    present: bool


def _bool(value: object) -> celtypes.BoolType:
    return celtypes.BoolType(bool(value))


def _text(function: Callable[..., str]) -> Callable[..., celtypes.StringType]:
    return lambda *arguments: celtypes.StringType(function(*map(_plain, arguments)))


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) else str(value)


def _substring(text: str, start: int, end: int | None = None) -> str:
    return text[start:end]


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    return text.replace(old, new, count)


def _find(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    return match[0] if match else ""


def _find_all(text: Any, pattern: Any) -> celtypes.ListType:
    found = re.finditer(str(pattern), str(text))
    return celtypes.ListType([celtypes.StringType(match[0]) for match in found])


def _split(text: Any, separator: Any) -> celtypes.ListType:
    return celtypes.ListType([celtypes.StringType(x) for x in str(text).split(str(separator))])


def _join(items: Any, separator: Any = "") -> celtypes.StringType:
    return celtypes.StringType(str(separator).join(str(item) for item in items))


def _sum(items: Any) -> Any:
    total: Any = celtypes.IntType(0)
    for index, item in enumerate(items):
        total = item if index == 0 else total + item
    return total


def _is_sorted(items: Any) -> celtypes.BoolType:
    return _bool(all(left <= right for left, right in itertools.pairwise(items)))


def _index_of(items: Any, wanted: Any) -> celtypes.IntType:
    if isinstance(items, str):
        return celtypes.IntType(str(items).find(str(wanted)))
    places = [index for index, item in enumerate(items) if item == wanted]
    return celtypes.IntType(places[0] if places else -1)


def _quantity(value: Any) -> celtypes.DoubleType:
    return celtypes.DoubleType(float(parse_quantity(str(value))))


def _is_quantity(value: Any) -> celtypes.BoolType:
    try:
        parse_quantity(str(value))
    except ValueError:
        return _bool(False)
    return _bool(True)


# Kubernetes' extensions of the language, beside what cel-python has itself.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "charAt": _text(lambda text, index: text[index : index + 1]),
    "find": _text(_find),
    "findAll": _find_all,
    "indexOf": _index_of,
    "isSorted": _is_sorted,
    "join": _join,
    "lowerAscii": _text(str.lower),
    "max": lambda items: max(items),
    "min": lambda items: min(items),
    "replace": _text(_replace),
    "split": _split,
    "substring": _text(_substring),
    "sum": _sum,
    "trim": _text(str.strip),
    "upperAscii": _text(str.upper),
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "isGreaterThan": lambda left, right: _bool(left > right),
    "isLessThan": lambda left, right: _bool(left < right),
    "compareTo": lambda left, right: celtypes.IntType((left > right) - (left < right)),
    "hasValue": lambda optional: _bool(optional.present),
    "value": lambda optional: optional.held,
    "orValue": lambda optional, other: optional.held if optional.present else other,
}


@cache
def _program(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule), functions=_FUNCTIONS)


def compile_problem(rule: str) -> str | None:
    """Return why a rule is no CEL expression, or None if it is one."""
    try:
        _program(rule)
    except celpy.CELParseError as error:
        return str(error.args[0]) if error.args else "syntax error"
    return None


def _escaped(name: str) -> str:
    if name in _RESERVED:
        return f"__{name}__"
    name = name.replace("__", "__underscores__").replace(".", "__dot__")
    return name.replace("-", "__dash__").replace("/", "__slash__")


def to_cel(schema: Schema, value: Any) -> Any:
    """Return a JSON value as CEL sees it through its schema."""
    schema = resolve(schema)
    if isinstance(value, dict):
        named = schema.get("properties") or {}
        result = celtypes.MapType()
        for key, item in value.items():
            below = property_schema(schema, key) or {}
            shown = _escaped(key) if key in named else key
            result[celtypes.StringType(shown)] = to_cel(below, item)
        return result
    if isinstance(value, list):
        items = item_schema(schema)
        return celtypes.ListType([to_cel(items, item) for item in value])
    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, int | float) and schema.get("type") == "number":
        return celtypes.DoubleType(value)
    if isinstance(value, float) and schema.get("type") == "integer":
        return celtypes.IntType(int(value))
    if isinstance(value, str) and schema.get("format") in ("date-time", "date"):
        return celtypes.TimestampType(value)
    if isinstance(value, str) and schema.get("format") == "duration":
        return celtypes.DurationType(value)
    return celpy.json_to_cel(value)


_ABSENT: Any = object()
# As the API server names the whole object.
_ROOT = "<nil>"


def check_rules(schema: Schema, value: Any, old: Any = None) -> list[Cause]:
    """Return the rules that a custom object breaks.

    Parameters
    ----------
    old
        The object before the change, None when it is created; transition
        rules (those that name ``oldSelf``) are skipped then.
    """
    visible = dict(value)
    visible["metadata"] = _visible_metadata(value)
    before = _ABSENT
    if old is not None:
        before = {**old, "metadata": _visible_metadata(old)}
    return _check(schema, visible, before, "")


def _visible_metadata(body: Mapping[str, Any]) -> dict[str, Any]:
    meta = body.get("metadata") or {}
    return {key: meta[key] for key in ("name", "generateName") if key in meta}


def _check(schema: Schema, value: Any, old: Any, path: str) -> list[Cause]:
    schema = resolve(schema)
    if value is None:
        return []
    causes: list[Cause] = []
    rules = schema.get(RULES) or []
    if old is not _ABSENT and value == old:
        # What has not changed is not held to rules that came later, as in Kubernetes.
        rules = [rule for rule in rules if _TRANSITION.search(rule["rule"])]
    if rules:
        now = to_cel(schema, value)
        before = _ABSENT if old is _ABSENT else to_cel(schema, old)
        for rule in rules:
            cause = _apply(rule, schema, now, before, path)
            if cause is not None:
                causes.append(cause)
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "metadata" and (path == "" or schema.get(EMBEDDED)):
                continue
            below = property_schema(schema, name)
            if below is not None:
                earlier = old.get(name, _ABSENT) if isinstance(old, dict) else _ABSENT
                causes += _check(below, item, earlier, child(path, name))
    elif isinstance(value, list):
        items = item_schema(schema)
        for index, item in enumerate(value):
            causes += _check(items, item, _previous(schema, item, old), child(path, index))
    return causes


def _previous(schema: Schema, item: Any, old: Any) -> Any:
    """Return the item of an old list that has the same keys; only map lists have any."""
    if schema.get(LIST_TYPE) != "map" or not isinstance(old, list) or not isinstance(item, dict):
        return _ABSENT
    keys = schema.get(MAP_KEYS) or []
    for candidate in old:
        if all(candidate.get(key) == item.get(key) for key in keys):
            return candidate
    return _ABSENT


def _apply(rule: dict[str, Any], schema: Schema, now: Any, before: Any, path: str) -> Cause | None:
    """Return what a rule says of a value, given as CEL sees it, or None if it holds."""
    expression = rule["rule"]
    context: dict[str, Any] = {"self": now}
    if _TRANSITION.search(expression):
        present = before is not _ABSENT
        if rule.get("optionalOldSelf"):
            context["oldSelf"] = OptionalValue(before if present else None, present)
        elif not present:
            return None
        else:
            context["oldSelf"] = before
    kind = schema.get("type", "object")
    try:
        if _program(expression).evaluate(context):
            return None
    except celpy.CELEvalError as error:
        reason = error.args[0] if error.args else "evaluation failed"
        return Cause(
            path or _ROOT, f'Invalid value: "{kind}": {reason} evaluating rule: {expression}'
        )
    message = _message(rule, context)
    where = path + _relative(rule.get("fieldPath") or "")
    where = where.removeprefix(".") or _ROOT
    cause = rule.get("reason") or "FieldValueInvalid"
    prefix = {
        "FieldValueForbidden": "Forbidden",
        "FieldValueRequired": "Required value",
        "FieldValueDuplicate": f'Duplicate value: "{kind}"',
    }.get(cause, f'Invalid value: "{kind}"')
    return Cause(where, f"{prefix}: {message}", cause)


def _relative(field: str) -> str:
    return re.sub(r"\['([^']+)'\]", r".\1", field)


def _message(rule: dict[str, Any], context: dict[str, Any]) -> str:
    expression = rule.get("messageExpression")
    if expression:
        # As the API server does, fall back to the fixed message.
        with contextlib.suppress(celpy.CELEvalError):
            return str(_program(expression).evaluate(context))
    return rule.get("message") or f"failed rule: {rule['rule']}"
