"""Types of command-line arguments, for argparse."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value


def not_negative(text: str) -> int:
    """Read a whole number of at least 0."""
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def share(text: str) -> float:
    """Read a number within [0, 1)."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number within [0, 1)")
    return value


def open_share(text: str) -> str:
    """Check a number within (0, 1), and return its text."""
    if not 0 < _number(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number within (0, 1)")
    return text


def positive_number(text: str) -> str:
    """Check a finite number above 0, and return its text."""
    if not 0 < _number(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return text


def layer_ids(text: str) -> list[int]:
    """Read a list of ids separated by commas; empty text is an empty list."""
    return [not_negative(part) for part in text.split(",") if part.strip()]


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
