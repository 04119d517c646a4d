"""Kubernetes quantities, such as ``500m`` or ``2Gi``."""

from __future__ import annotations

import re
from decimal import Decimal

_FORM = re.compile(r"^([+-]?[0-9.]+)([a-zA-Z]*)(?:([eE])([+-]?\d+))?$")
_SCALE = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def parse_quantity(value: str | int | float) -> Decimal:
    """Return a quantity's value in its base unit (cores, bytes, pieces).

    Raises
    ------
    ValueError
        When the text is no quantity.
    """
    text = str(value)
    exponent = re.fullmatch(r"([+-]?[0-9.]+)[eE]([+-]?\d+)", text)
    if exponent:
        return Decimal(exponent[1]).scaleb(int(exponent[2]))
    match = _FORM.match(text)
    if not match or match[2] not in _SCALE:
        raise ValueError(f"{text!r} is not a quantity, such as 500m or 2Gi")
    return Decimal(match[1]) * _SCALE[match[2]]
