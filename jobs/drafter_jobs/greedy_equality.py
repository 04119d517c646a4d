"""Compare a candidate's greedy outputs with the baseline's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drafter_jobs.degeneration import is_degenerate

OutputKey = tuple[str, int]
"""Prompt id and concurrency."""


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison.

    Attributes
    ----------
    compared
        Outputs present on both sides.
    equal
        Outputs equal token for token.
    first_differences
        Position of the first differing token by prompt id and concurrency.
    degenerate
        Outputs that loop in the candidate, but not in the baseline.
    degenerate_in_both
        Outputs that loop in both: the target's own doing.
    """

    compared: int
    equal: int
    first_differences: dict[OutputKey, int]
    degenerate: list[OutputKey]
    degenerate_in_both: list[OutputKey]


def compare_outputs(
    candidate: Mapping[OutputKey, Sequence[int]], baseline: Mapping[OutputKey, Sequence[int]]
) -> Comparison:
    """Compare outputs by prompt and concurrency.

    Parameters
    ----------
    candidate, baseline
        Output token ids.

    Returns
    -------
    Comparison
        Looping outputs without a counterpart count as the candidate's own.
    """
    shared = [key for key in candidate if key in baseline]
    differences = {
        key: _first_difference(candidate[key], baseline[key])
        for key in shared
        if list(candidate[key]) != list(baseline[key])
    }
    looping = [key for key, tokens in candidate.items() if is_degenerate(tokens)]
    in_both = [key for key in looping if key in baseline and is_degenerate(baseline[key])]
    return Comparison(
        compared=len(shared),
        equal=len(shared) - len(differences),
        first_differences=differences,
        degenerate=[key for key in looping if key not in in_both],
        degenerate_in_both=in_both,
    )


def _first_difference(first: Sequence[int], second: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))
