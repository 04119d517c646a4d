"""What all rows of a batch begin with: computed once, it is a fifth of the work or more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def shared_prefix(rows: Sequence[Sequence[int]]) -> int:
    """Length of the longest common prefix that leaves each row at least one token."""
    first, last = (bound(rows, key=list) for bound in (min, max))
    limit = min(len(row) for row in rows) - 1
    pairs = zip(first[:limit], last[:limit], strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), limit)


def attends_in_full(config: Any) -> bool:
    """Whether every layer of a model attends to all earlier tokens.

    Layers with a window or a recurrent state keep caches of other forms.

    Parameters
    ----------
    config
        Config of a model of transformers.
    """
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and getattr(text, "sliding_window", None) is None
