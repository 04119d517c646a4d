"""Recognise outputs that fell into a loop of a few tokens.

A drafter guesses a loop easily, so a looping server shows a splendid acceptance length.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 16
"""Longest loop looked for, in tokens."""

FEWEST_REPEATS = 4
FEWEST_TOKENS = 16
"""A loop counts from this many repeats and this many tokens on."""


def is_degenerate(tokens: Sequence[int]) -> bool:
    """Whether a stretch of the output repeats a short sequence over and over.

    Parameters
    ----------
    tokens
        Output token ids.
    """
    return any(
        _longest_stretch(tokens, period) >= max(FEWEST_TOKENS, FEWEST_REPEATS * period)
        for period in range(1, LONGEST_PERIOD + 1)
    )


def _longest_stretch(tokens: Sequence[int], period: int) -> int:
    longest = run = 0
    for index in range(period, len(tokens)):
        run = run + 1 if tokens[index] == tokens[index - period] else 0
        longest = max(longest, run)
    return longest + period if longest else 0
