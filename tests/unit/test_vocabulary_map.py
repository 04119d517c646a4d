import numpy as np
import pytest
from checkpoint_files import DRAFT_VOCABULARY, VOCABULARY, vocabulary_ids

from drafter_jobs.vocabulary_map import IntegerArray, find_faults

IDS = vocabulary_ids()
OFFSETS = IDS - np.arange(DRAFT_VOCABULARY)
MEMBERS = np.isin(np.arange(VOCABULARY), IDS).astype(np.int64)


@pytest.mark.parametrize("members", [MEMBERS, None])
def test_sound_map_has_no_faults(members: IntegerArray | None) -> None:
    assert find_faults(OFFSETS, VOCABULARY, members) == []


@pytest.mark.parametrize("members", [MEMBERS, None])
def test_absolute_ids_are_named(members: IntegerArray | None) -> None:
    (fault,) = find_faults(IDS, VOCABULARY, members)
    assert "absolute target ids" in fault


def test_absolute_ids_that_stay_in_range_as_offsets_are_named() -> None:
    ids = np.arange(0, 40, 2)
    (fault,) = find_faults(ids, 1000, None)
    assert "absolute target ids" in fault


def test_identity_map_is_sound() -> None:
    assert find_faults(np.zeros(50, dtype=np.int64), 50, None) == []


def test_ids_outside_the_target_are_named() -> None:
    offsets = OFFSETS.copy()
    offsets[-1] = VOCABULARY
    (fault,) = find_faults(offsets, VOCABULARY, None)
    assert f"{DRAFT_VOCABULARY - 1} -> {VOCABULARY + DRAFT_VOCABULARY - 1}" in fault


def test_repeated_id_is_named() -> None:
    offsets = OFFSETS.copy()
    offsets[5] = offsets[4] - 1
    faults = find_faults(offsets, VOCABULARY, None)
    assert any("draft ids 4 and 5" in fault for fault in faults)


def test_map_regenerated_after_training_began_is_recognised() -> None:
    other = np.arange(DRAFT_VOCABULARY)
    faults = find_faults(other - np.arange(DRAFT_VOCABULARY), VOCABULARY, MEMBERS)
    assert any("d2t and t2d disagree" in fault for fault in faults)
