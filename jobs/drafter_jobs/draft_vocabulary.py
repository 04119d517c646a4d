"""Whether a corpus can fill the draft vocabulary.

The trainer takes the most frequent response tokens, and fills up with the lowest ids of the
target when there are too few: entries that are never trained and never right.
"""

from __future__ import annotations

import decimal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


class VocabularyNotFilledError(ValueError):
    """There are fewer distinct response tokens than entries."""


def response_token_counts(
    samples: Iterable[tuple[Sequence[int], Sequence[int]]],
) -> Counter[int]:
    """Count the tokens under the loss mask.

    Parameters
    ----------
    samples
        Token ids and loss mask (0 or 1), of equal length.
    """
    counts: Counter[int] = Counter()
    for token_ids, loss_mask in samples:
        counts.update(t for t, m in zip(token_ids, loss_mask, strict=True) if m)
    return counts


def check_filled(counts: Mapping[int, int], size: int) -> None:
    """Check that the corpus fills a draft vocabulary.

    Parameters
    ----------
    counts
        Occurrences by token id.
    size
        Entries of the draft vocabulary; 0 for the target's whole vocabulary.

    Raises
    ------
    VocabularyNotFilledError
        With the numbers and the ways out.
    """
    if len(counts) < size:
        raise VocabularyNotFilledError(
            f"the responses hold {len(counts)} distinct tokens, but draftVocabularySize asks for"
            f" {size}: give more or more varied prompts, allow longer responses, or lower"
            f" draftVocabularySize to at most {len(counts)}"
        )


def coverage(counts: Mapping[int, int], size: int) -> str:
    """Share of response tokens inside the draft vocabulary, a decimal string."""
    total = sum(counts.values())
    kept = sum(sorted(counts.values(), reverse=True)[: size or None])
    return str(
        (decimal.Decimal(kept) / max(1, total)).quantize(
            decimal.Decimal("0.0001"), rounding=decimal.ROUND_DOWN
        )
    )
