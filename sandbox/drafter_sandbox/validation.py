"""Checks of values against structural schemas, with the API server's own wording."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from drafter_sandbox.errors import Cause
from drafter_sandbox.schemas import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_TYPE,
    MAP_KEYS,
    Schema,
    child,
    item_schema,
    property_schema,
    resolve,
)

_QUANTITY = re.compile(r"^[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?$")
_DURATION = re.compile(r"^[+-]?(0|(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+)$")
_UUID = re.compile(r"^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$", re.IGNORECASE)
_HOST = re.compile(r"^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9][-a-zA-Z0-9]*)*$")


def shown(value: Any) -> str:
    """Return a value as an error message quotes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def validate(schema: Schema, value: Any, path: str = "") -> list[Cause]:
    """Return what is wrong with a value, each with the path of the field.

    Unknown fields are not looked at: they are pruned before.
    """
    schema = resolve(schema)
    causes = _check_type(schema, value, path)
    if causes or (value is None and schema.get("nullable")):
        return causes
    causes += _check_value(schema, value, path)
    if isinstance(value, dict):
        causes += _check_object(schema, value, path)
    elif isinstance(value, list):
        causes += _check_list(schema, value, path)
    elif isinstance(value, str):
        causes += _check_string(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        causes += _check_number(schema, value, path)
    return causes + _check_combinations(schema, value, path)


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _check_type(schema: Schema, value: Any, path: str) -> list[Cause]:
    actual = _type_name(value)
    if actual == "null" and schema.get("nullable"):
        return []
    if schema.get(INT_OR_STRING):
        wanted = "integer,string"
        # Quantities may also be written as plain numbers.
        numbers = ("integer", "number") if schema.get("format") == "quantity" else ("integer",)
        fits = actual in (*numbers, "string")
    else:
        wanted = schema.get("type", "")
        fits = not wanted or actual == wanted
        fits = fits or (wanted == "number" and actual == "integer")
        fits = fits or (wanted == "integer" and isinstance(value, float) and value.is_integer())
    if fits:
        return []
    return [
        Cause(
            path,
            f"Invalid value: {shown(actual)}: {path} in body must be of type {wanted}: "
            f"{shown(actual)}",
            "FieldValueTypeInvalid",
        )
    ]


def _invalid(path: str, value: Any, rule: str) -> Cause:
    return Cause(path, f"Invalid value: {shown(value)}: {path} in body {rule}")


def _check_value(schema: Schema, value: Any, path: str) -> list[Cause]:
    allowed = schema.get("enum")
    if allowed is None or value in allowed:
        return []
    listed = ", ".join(shown(item) for item in allowed)
    return [
        Cause(
            path,
            f"Unsupported value: {shown(value)}: supported values: {listed}",
            "FieldValueNotSupported",
        )
    ]


def _check_object(schema: Schema, value: dict[str, Any], path: str) -> list[Cause]:
    causes = [
        Cause(child(path, name), "Required value", "FieldValueRequired")
        for name in schema.get("required") or []
        if name not in value
    ]
    if schema.get(EMBEDDED):
        causes += [
            Cause(child(path, name), "Required value: must not be empty", "FieldValueRequired")
            for name in ("apiVersion", "kind")
            if not value.get(name)
        ]
    if len(value) > schema.get("maxProperties", math.inf):
        limit = schema["maxProperties"]
        causes.append(
            Cause(
                path,
                f"Too many: {len(value)}: must have at most {limit} items",
                "FieldValueTooMany",
            )
        )
    if len(value) < schema.get("minProperties", 0):
        causes.append(
            _invalid(path, value, f"should have at least {schema['minProperties']} properties")
        )
    for name, item in value.items():
        below = property_schema(schema, name)
        if below is not None:
            causes += validate(below, item, child(path, name))
    return causes


def _check_list(schema: Schema, value: list[Any], path: str) -> list[Cause]:
    causes: list[Cause] = []
    if len(value) > schema.get("maxItems", math.inf):
        causes.append(
            Cause(
                path,
                f"Too many: {len(value)}: must have at most {schema['maxItems']} items",
                "FieldValueTooMany",
            )
        )
    if len(value) < schema.get("minItems", 0):
        causes.append(_invalid(path, value, f"should have at least {schema['minItems']} items"))
    items = item_schema(schema)
    for index, item in enumerate(value):
        causes += validate(items, item, child(path, index))
    kind = schema.get(LIST_TYPE)
    if kind == "set" or schema.get("uniqueItems"):
        identities = [shown(item) for item in value]
    elif kind == "map":
        keys = schema.get(MAP_KEYS) or []
        identities = [
            shown({key: _key_value(items, item, key) for key in keys})
            for item in value
            if isinstance(item, dict)
        ]
    else:
        return causes
    seen: set[str] = set()
    for index, identity in enumerate(identities):
        if identity in seen:
            causes.append(
                Cause(child(path, index), f"Duplicate value: {identity}", "FieldValueDuplicate")
            )
        seen.add(identity)
    return causes


def _key_value(items: Schema, item: dict[str, Any], key: str) -> Any:
    if key in item:
        return item[key]
    return (property_schema(items, key) or {}).get("default")


def _check_string(schema: Schema, value: str, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if len(value) > schema.get("maxLength", math.inf):
        causes.append(
            Cause(
                path,
                f"Too long: may not be more than {schema['maxLength']} bytes",
                "FieldValueTooLong",
            )
        )
    if len(value) < schema.get("minLength", 0):
        causes.append(_invalid(path, value, f"should be at least {schema['minLength']} chars long"))
    pattern = schema.get("pattern")
    if pattern and not _compiled(pattern).search(value):
        causes.append(_invalid(path, value, f"should match '{pattern}'"))
    form = schema.get("format")
    if form and not _FORMATS.get(form, _anything)(value):
        if form == "quantity":
            causes.append(
                Cause(
                    path,
                    f"Invalid value: {shown(value)}: quantities must match the regular"
                    f" expression '{_QUANTITY.pattern}'",
                )
            )
        else:
            causes.append(_invalid(path, value, f"must be of type {form}: {shown(value)}"))
    return causes


def _check_number(schema: Schema, value: float, path: str) -> list[Cause]:
    causes: list[Cause] = []
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None:
        if schema.get("exclusiveMinimum") and value <= low:
            causes.append(_invalid(path, value, f"should be greater than {low}"))
        elif value < low:
            causes.append(_invalid(path, value, f"should be greater than or equal to {low}"))
    if high is not None:
        if schema.get("exclusiveMaximum") and value >= high:
            causes.append(_invalid(path, value, f"should be less than {high}"))
        elif value > high:
            causes.append(_invalid(path, value, f"should be less than or equal to {high}"))
    step = schema.get("multipleOf")
    if step and not math.isclose(value / step, round(value / step), abs_tol=1e-9):
        causes.append(_invalid(path, value, f"should be a multiple of {step}"))
    bits = {"int32": 31, "int64": 63}.get(schema.get("format", ""))
    if bits and not -(2**bits) <= value < 2**bits:
        causes.append(_invalid(path, value, f"must be of type {schema['format']}: {shown(value)}"))
    return causes


def _check_combinations(schema: Schema, value: Any, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for part in schema.get("allOf") or []:
        causes += validate(part, value, path)
    if "anyOf" in schema and not any(not validate(p, value, path) for p in schema["anyOf"]):
        causes.append(
            Cause(
                path,
                f'Invalid value: {shown(value)}: "{path}" must validate at least one'
                " schema (anyOf)",
            )
        )
    if "oneOf" in schema:
        fitting = sum(not validate(part, value, path) for part in schema["oneOf"])
        if fitting != 1:
            found = "none" if fitting == 0 else str(fitting)
            causes.append(
                Cause(
                    path,
                    f'Invalid value: {shown(value)}: "{path}" must validate one and only'
                    f" one schema (oneOf). Found {found} valid",
                )
            )
    if "not" in schema and not validate(schema["not"], value, path):
        causes.append(
            Cause(
                path, f'Invalid value: {shown(value)}: "{path}" must not validate the schema (not)'
            )
        )
    return causes


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Go spells the ends of the text \A and \z.
    return re.compile(pattern.replace(r"\z", r"\Z"))


def _anything(_: str) -> bool:
    return True


def _parses(parser: Callable[[str], object]) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        try:
            parser(text)
        except ValueError:
            return False
        return True

    return accepts


def _date_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if "T" not in text or moment.tzinfo is None:
        raise ValueError(text)
    return moment


def _uri(text: str) -> None:
    parts = urlsplit(text)
    if not parts.scheme and not text.startswith("/"):
        raise ValueError(text)


def _byte(text: str) -> None:
    import base64

    base64.b64decode(text, validate=True)


def _date(text: str) -> None:
    datetime.strptime(text, "%Y-%m-%d")


_FORMATS: dict[str, Callable[[str], bool]] = {
    "quantity": lambda text: bool(_QUANTITY.match(text)),
    "date-time": _parses(_date_time),
    "date": _parses(_date),
    "duration": lambda text: bool(_DURATION.match(text)),
    "uuid": lambda text: bool(_UUID.match(text)),
    "hostname": lambda text: bool(_HOST.match(text)),
    "ipv4": _parses(lambda text: ip_address(text)),
    "ipv6": _parses(lambda text: ip_address(text)),
    "cidr": _parses(lambda text: ip_network(text, strict=False)),
    "uri": _parses(_uri),
    "byte": _parses(_byte),
    "email": lambda text: "@" in text,
}
