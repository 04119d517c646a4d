"""Percentiles of small samples."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Percentile by linear interpolation between the closest ranks.

    Parameters
    ----------
    values
        Sample in any order and unit.
    share
        Between 0 and 1.

    Returns
    -------
    float
        In the unit of the values; not a number for an empty sample.
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    weight = position - below
    return ordered[below] * (1 - weight) + ordered[above] * weight
