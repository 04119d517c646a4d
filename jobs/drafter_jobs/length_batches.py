"""Which samples go into one batch: those of like length, so that padding is little."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def batches_by_rows(lengths: Sequence[int], rows: int) -> list[list[int]]:
    """Put indices in batches of equal size, at most ``rows``, of neighbouring lengths.

    The longest come first, so that a lack of memory shows at once.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    count = -(-len(order) // rows)
    bounds = [len(order) * i // count for i in range(count + 1)] if count else [0]
    return [order[a:b] for a, b in itertools.pairwise(bounds)]


def batches_by_tokens(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Put indices in batches of at most ``tokens`` token places, padding included.

    A sample longer than ``tokens`` is a batch of its own. The longest come first.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
