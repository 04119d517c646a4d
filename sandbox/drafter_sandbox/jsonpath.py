"""The part of JSONPath that printer columns use.

``.a.b``, ``['a']``, ``[0]``, ``[-1]``, ``[*]`` and filters such as
``[?(@.type=="Ready")]``.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any

Step = Callable[[Any], list[Any]]

_TOKEN = re.compile(
    r"""\.?\*                                  # every child
      | \.(?P<name>(?:\\.|[^.\[\]\\])+)        # .field, dots escaped
      | \['(?P<quoted>[^']*)'\]                # ['field']
      | \[(?P<index>-?\d+)\]
      | \[\*\]
      | \[\?\(\s*@(?P<left>[^=!<>]*?)\s*(?P<operator>==|!=|>=|<=|>|<)\s*(?P<right>.+?)\s*\)\]
    """,
    re.VERBOSE,
)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list) else []


def _field(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _index(index: int) -> Step:
    def step(value: Any) -> list[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            return [value[index]]
        return []

    return step


def _filter(left: str, symbol: str, right: str) -> Step:
    path = _steps(left)
    literal = json.loads('"' + right[1:-1] + '"') if right[0] in "'\"" else json.loads(right)
    compare = _OPERATORS[symbol]

    def step(value: Any) -> list[Any]:
        kept = []
        for item in _children(value):
            found = _walk(path, item)
            try:
                if found and compare(found[0], literal):
                    kept.append(item)
            except TypeError:
                continue
        return kept

    return step


@cache
def _steps(path: str) -> tuple[Step, ...]:
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _TOKEN.match(path, position)
        if match is None:
            raise ValueError(f"{path!r} is no JSONPath of the supported kind")
        groups = match.groupdict()
        if groups["name"] is not None:
            steps.append(_field(re.sub(r"\\(.)", r"\1", groups["name"])))
        elif groups["quoted"] is not None:
            steps.append(_field(groups["quoted"]))
        elif groups["index"] is not None:
            steps.append(_index(int(groups["index"])))
        elif groups["operator"] is not None:
            steps.append(_filter(groups["left"], groups["operator"], groups["right"]))
        else:
            steps.append(_children)
        position = match.end()
    return tuple(steps)


def _walk(steps: tuple[Step, ...], value: Any) -> list[Any]:
    found = [value]
    for step in steps:
        found = [item for current in found for item in step(current)]
    return found


def find(path: str, value: Any) -> list[Any]:
    """Return the values at a path.

    Raises
    ------
    ValueError
        When the path is not of the supported kind.
    """
    path = path.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1]
    return _walk(_steps(path.removeprefix("$")), value)
