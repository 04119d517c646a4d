"""Copies of JSON trees."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def copy_tree(value: T) -> T:
    """Return a copy of a JSON value that shares no dict or list with it."""
    # Faster than copy.deepcopy, whose memo a tree does not need.
    return _copy(value)  # type: ignore[no-any-return]


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value
