"""Check the map from draft to target token ids (``d2t``).

The engine computes ``target id = draft id + d2t[draft id]`` (``load_weights`` in
``models/llama_eagle3.py`` of sglang 0.5.23) and checks nothing.
"""

from __future__ import annotations

import numpy as np

_ENOUGH_TO_TELL = 8
"""Entries from which on a map without any repeated offset is taken for absolute ids."""

IntegerArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def find_faults(
    offsets: IntegerArray, target_vocabulary: int, members: IntegerArray | None = None
) -> list[str]:
    """List what is wrong with a map of offsets.

    Parameters
    ----------
    offsets
        ``d2t``, shape ``(draft vocabulary,)``.
    target_vocabulary
        Number of token ids of the target.
    members
        ``t2d``, shape ``(target vocabulary,)``, nonzero for target ids inside the draft
        vocabulary; ``None`` if the checkpoint has none.

    Returns
    -------
    list of str
        One sentence for each fault; empty if the map is sound.
    """
    ids = offsets + np.arange(offsets.shape[0], dtype=np.int64)
    marked = None
    if members is not None and members.shape == (target_vocabulary,):
        marked = np.flatnonzero(members)
    if marked is not None and np.array_equal(marked, ids):
        return []
    if _looks_absolute(offsets, target_vocabulary, marked):
        return [
            "d2t holds absolute target ids, the engine adds them to the draft ids; store "
            "offsets (target id - draft id) instead"
        ]
    faults = []
    outside = np.flatnonzero((ids < 0) | (ids >= target_vocabulary))
    if outside.size:
        first = int(outside[0])
        faults.append(
            f"d2t maps {outside.size} draft ids outside the target's vocabulary of "
            f"{target_vocabulary}; the first is {first} -> {int(ids[first])}"
        )
    falling = np.flatnonzero(np.diff(ids) <= 0)
    if falling.size:
        first = int(falling[0])
        faults.append(
            f"d2t is not strictly ascending at {falling.size} places; draft ids {first} and "
            f"{first + 1} map to target ids {int(ids[first])} and {int(ids[first + 1])}"
        )
    if not faults and marked is not None:
        faults.append(
            f"d2t and t2d disagree: d2t maps to {ids.size} target ids, t2d marks {marked.size}, "
            f"{np.intersect1d(ids, marked).size} are in both; the vocabulary map was replaced "
            "after training began"
        )
    return faults


def _looks_absolute(
    offsets: IntegerArray, target_vocabulary: int, marked: IntegerArray | None
) -> bool:
    if marked is not None:
        return np.array_equal(marked, offsets)
    # Offsets repeat wherever neighbouring target ids are both in the draft vocabulary, which
    # absolute ids never do.
    return bool(
        offsets.size >= _ENOUGH_TO_TELL
        and offsets[0] >= 0
        and offsets[-1] < target_vocabulary
        and np.all(np.diff(offsets) > 0)
    )
