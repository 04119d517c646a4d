"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from drafter_sandbox.errors import bad_request

Predicate = Callable[[dict[str, Any]], bool]

_SET = re.compile(r"^\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_EQUAL = re.compile(r"^\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s!=,()]+)\s*$")


def _split(text: str) -> list[str]:
    """Split a selector at the commas outside parentheses."""
    parts: list[str] = []
    depth = start = 0
    for index, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def _requirement(text: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.match(text):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.match(text):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _EXISTS.match(text):
        negated, key = match.groups()
        if negated:
            return lambda labels: key not in labels
        return lambda labels: key in labels
    raise bad_request(f"unable to parse requirement: {text!r}")


def label_predicate(selector: str | dict[str, Any] | None) -> Predicate:
    """Return a test of an object's labels.

    Parameters
    ----------
    selector
        A selector in kubectl's syntax (``a=b,c in (d,e),!f``), a
        ``LabelSelector`` with ``matchLabels`` and ``matchExpressions``, or a
        plain mapping of labels. None matches everything.

    Raises
    ------
    ApiError
        400 when the text is no selector.
    """
    if not selector:
        return lambda _: True
    if isinstance(selector, str):
        tests = [_requirement(part) for part in _split(selector)]
    elif "matchLabels" in selector or "matchExpressions" in selector:
        tests = [_equals(k, v) for k, v in (selector.get("matchLabels") or {}).items()]
        for expression in selector.get("matchExpressions") or []:
            tests.append(_expression(expression))
    else:
        tests = [_equals(key, value) for key, value in selector.items()]

    def matches(body: dict[str, Any]) -> bool:
        labels = body["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _equals(key: str, value: str) -> Callable[[dict[str, str]], bool]:
    return lambda labels: labels.get(key) == value


def _expression(expression: dict[str, Any]) -> Callable[[dict[str, str]], bool]:
    key, operator = expression["key"], expression["operator"]
    values = set(expression.get("values") or [])
    if operator == "In":
        return lambda labels: labels.get(key) in values
    if operator == "NotIn":
        return lambda labels: labels.get(key) not in values
    if operator == "Exists":
        return lambda labels: key in labels
    if operator == "DoesNotExist":
        return lambda labels: key not in labels
    raise bad_request(f'"{operator}" is not a valid label selector operator')


def _at(body: dict[str, Any], path: str) -> str:
    value: Any = body
    for name in path.split("."):
        if not isinstance(value, dict):
            return ""
        value = value.get(name)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def field_predicate(selector: str | None) -> Predicate:
    """Return a test of an object's fields, such as ``metadata.name=x,status.phase!=Failed``.

    Raises
    ------
    ApiError
        400 when the text is no field selector.
    """
    if not selector:
        return lambda _: True
    tests: list[tuple[str, bool, str]] = []
    for part in selector.split(","):
        if not part.strip():
            continue
        match = _EQUAL.match(part)
        if not match:
            raise bad_request(f"unable to parse field selector: {part!r}")
        path, operator, value = match.groups()
        tests.append((path, operator == "!=", value))

    def matches(body: dict[str, Any]) -> bool:
        return all((_at(body, path) == value) is not negated for path, negated, value in tests)

    return matches
