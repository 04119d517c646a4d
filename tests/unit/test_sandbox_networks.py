from __future__ import annotations

from pathlib import Path

import pytest

from drafter_sandbox.networks import NetworkTakenError, claim


def test_two_sandboxes_have_different_addresses_and_keep_them(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one, two = claim(first), claim(second)
    assert not one.services.overlaps(two.services)
    assert not one.pods.overlaps(two.pods)
    assert not one.pods.overlaps(one.services)
    with pytest.raises(NetworkTakenError):
        claim(first)
    one.release()
    again = claim(first)
    assert (again.pods, again.services) == (one.pods, one.services)
    again.release()
    two.release()
