import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drafter_jobs import extract
from drafter_jobs.hidden_state_files import StateShape, find_damage, human_bytes, state_path
from drafter_jobs.job import JobError
from job_process import Ended, run_here, start, wait_for_event

LENGTHS = [7, 31, 12, 31, 5, 18, 2, 24, 9, 16]
SHAPE = StateShape(vectors=4, hidden_size=64, dtype="float32")
Run = Callable[..., Ended]


def token_ids(row: int) -> list[int]:
    return [(row * 37 + position * 11) % 640 for position in range(LENGTHS[row])]


def write_dataset(directory: Path, rows: list[list[int]]) -> Path:
    import datasets

    columns = {
        "input_ids": rows,
        "loss_mask": [[0] + [1] * (len(row) - 1) for row in rows],
        "seq_len": [len(row) for row in rows],
    }
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns).with_format("torch").save_to_disk(directory)
    return directory


@pytest.fixture
def settings(tiny_target: Path, tmp_path: Path) -> dict[str, object]:
    rows = [token_ids(row) for row in range(len(LENGTHS))]
    return {
        "--target": tiny_target,
        "--dataset": write_dataset(tmp_path / "dataset", rows),
        "--output": tmp_path / "hidden-states",
        "--dtype": "float32",
        "--batch-tokens": 64,
    }


@pytest.fixture
def run(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ended]:
    def run_with(**changes: object) -> Ended:
        chosen = settings | {f"--{k.replace('_', '-')}": v for k, v in changes.items()}
        flags = [part for pair in chosen.items() for part in pair]
        return run_here(extract.main, flags, monkeypatch, tmp_path)

    return run_with


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Any]:
    from transformers import AutoModelForCausalLM

    yield AutoModelForCausalLM.from_pretrained(tiny_target).eval()


def files(directory: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each file of hidden states."""
    return {
        file.name: (file.stat().st_ino, file.stat().st_mtime_ns)
        for file in directory.glob("hs_*.safetensors")
    }


@pytest.mark.parametrize("beginning", [[], [3, 14, 15, 92]])
def test_a_padded_batch_gives_what_each_row_gives_alone(model: Any, beginning: list[int]) -> None:
    import torch

    from drafter_jobs.layer_capture import LayerCapture

    rows = [beginning + token_ids(row) for row in range(len(LENGTHS))]
    capture = LayerCapture(model, [2, 4, 5])
    together = capture.run(rows)
    for row, states in zip(rows, together, strict=True):
        (alone,) = capture.run([row])
        assert states.shape == (len(row), 4, 64)
        torch.testing.assert_close(states, alone, rtol=1e-4, atol=1e-5)
    capture.close()


def test_layers_count_by_their_input_and_the_last_is_before_the_norm(model: Any) -> None:
    import torch

    from drafter_jobs.layer_capture import LayerCapture

    ids = token_ids(1)
    capture = LayerCapture(model, [2, 4, 5])
    (states,) = capture.run([ids])
    capture.close()
    with torch.inference_mode():
        expected = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        normed = model.model.norm(states[:, 3])
    for slot, layer in enumerate([2, 4, 5]):
        torch.testing.assert_close(states[:, slot], expected[layer][0])
    torch.testing.assert_close(normed, expected[-1][0])
    assert not torch.allclose(states[:, 3], expected[-1][0], rtol=0.01, atol=0.01)


def test_speculators_reads_every_row(run: Run, tmp_path: Path) -> None:
    import torch
    from hs_connectors import FileTransfer
    from speculators.data_generation.offline import check_hidden_states
    from speculators.train.data import ArrowDataset

    ended = run(dtype="bfloat16")

    assert ended.exit_code == 0
    result = ended.result
    assert (result["input"], result["written"], result["skipped"]) == (10, 10, 0)
    assert result["tokens"] == sum(LENGTHS)
    assert result["auxiliaryLayers"] == [2, 4, 5]
    output = tmp_path / "hidden-states"
    assert result["bytes"] == sum(f.stat().st_size for f in output.glob("hs_*.safetensors"))
    transfer = FileTransfer(output)
    table = ArrowDataset(64, tmp_path / "dataset", transfer, on_missing="raise")
    for row in range(10):
        check_hidden_states(transfer.get_cached(row), token_ids(row))
        sample = table[row]
        assert sample["input_ids"].tolist() == token_ids(row)
        assert sample["hidden_states"].shape == (LENGTHS[row], 3 * 64)
        assert sample["verifier_last_hidden_states"].dtype == torch.bfloat16
    record = json.loads((output / "extract.json").read_bytes())
    assert record["auxiliary_layers"] == [2, 4, 5]
    assert (record["hidden_size"], record["dtype"]) == (64, "bfloat16")


def test_chosen_layers_are_extracted_and_recorded(run: Run, model: Any, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    assert run(auxiliary_layers="1,3,7").result["auxiliaryLayers"] == [1, 3, 7]
    states = load_file(tmp_path / "hidden-states/hs_3.safetensors")["hidden_states"]
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids(3)]), output_hidden_states=True).hidden_states
    for slot, layer in enumerate([1, 3, 7]):
        torch.testing.assert_close(states[:, slot], expected[layer][0], rtol=1e-4, atol=1e-5)


def test_resume_makes_only_what_is_missing_or_damaged(run: Run, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load, load_file, save_file

    run()
    output = tmp_path / "hidden-states"
    whole = {row: state_path(output, row).read_bytes() for row in range(10)}
    state_path(output, 0).unlink()
    state_path(output, 1).write_bytes(whole[1][:-8])
    state_path(output, 2).write_bytes(whole[4])
    state_path(output, 3).write_bytes(b"")
    tensors = load_file(state_path(output, 5))
    save_file({**tensors, "token_ids": tensors["token_ids"].flip(0)}, state_path(output, 5))
    (output / ".hs_7.safetensors.4711.part").write_bytes(b"half")
    untouched = {name: seen for name, seen in files(output).items() if name[3] in "46789"}

    ended = run()

    assert (ended.result["written"], ended.result["skipped"]) == (5, 5)
    for row in range(10):
        made, first = (load(part) for part in (state_path(output, row).read_bytes(), whole[row]))
        assert torch.equal(made["token_ids"], first["token_ids"])
        # Rows were batched otherwise, which rounds otherwise.
        torch.testing.assert_close(
            made["hidden_states"], first["hidden_states"], rtol=1e-4, atol=1e-5
        )
    assert {name: files(output)[name] for name in untouched} == untouched
    assert not list(output.glob(".*"))


@pytest.mark.parametrize(
    ("kill", "exit_code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)]
)
def test_a_killed_extraction_resumes_without_doing_anything_twice(
    settings: dict[str, object],
    run: Run,
    tmp_path: Path,
    kill: signal.Signals,
    exit_code: int,
) -> None:
    arguments = [part for pair in (settings | {"--batch-tokens": 1}).items() for part in pair]
    log = tmp_path / "killed"
    process = start("drafter_jobs.extract", arguments, log)
    wait_for_event(process, "batch extracted", 3)
    process.send_signal(kill)
    assert process.wait() == exit_code
    output = tmp_path / "hidden-states"
    finished = files(output)
    assert len(finished) >= 3
    assert not (output / "extract.json").exists() or len(finished) == 10
    if kill == signal.SIGTERM:
        assert json.loads(log.read_bytes())["reason"] == "Interrupted"

    ended = run()

    assert ended.exit_code == 0
    assert ended.result["skipped"] == len(finished)
    assert ended.result["written"] == 10 - len(finished)
    assert {name: files(output)[name] for name in finished} == finished
    for row in range(10):
        assert find_damage(state_path(output, row), token_ids(row), SHAPE) is None


def test_a_full_disk_keeps_what_was_finished(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = extract.write_atomically
    calls = []

    def fill_up(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(extract, "write_atomically", fill_up)
        ended = run()
    assert (ended.exit_code, ended.reason) == (13, "DiskFull")
    finished = files(tmp_path / "hidden-states")
    assert len(finished) == 4

    ended = run()

    assert (ended.result["written"], ended.result["skipped"]) == (6, 4)
    after = files(tmp_path / "hidden-states")
    assert {name: after[name] for name in finished} == finished


def test_a_volume_that_cannot_hold_it_is_refused_before_any_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "load_model", None)
    ended = run(volume_headroom_bytes=1 << 60)
    assert (ended.exit_code, ended.reason) == (13, "VolumeTooSmall")
    assert "1024.00 PiB must stay free" in ended.message
    assert not files(tmp_path / "hidden-states")


def test_the_estimate_is_that_of_the_files(run: Run, tmp_path: Path) -> None:
    written = run().result["bytes"]
    assert written <= SHAPE.file_bytes(LENGTHS) <= written * 1.05


def test_the_estimate_of_a_large_run() -> None:
    shape = StateShape(vectors=4, hidden_size=7168, dtype="bfloat16")
    needed = shape.bytes_of(87_800_000)
    assert human_bytes(needed) == "4.58 TiB"
    with pytest.raises(JobError, match=r"need 4\.58 TiB and 1\.00 GiB.*has 4\.00 TiB free"):
        extract.check_volume(needed, 4 << 40, 1 << 30, "/data")
    extract.check_volume(needed, 5 << 40, 1 << 30, "/data")


@pytest.mark.parametrize(
    ("changes", "exit_code", "reason", "words"),
    [
        ({"auxiliary_layers": "2,2,5"}, 10, "ConfigurationError", "ascending"),
        ({"auxiliary_layers": "2,4,8"}, 10, "ConfigurationError", "has 8 layers"),
        ({"auxiliary_layers": "a"}, 10, "ConfigurationError", "not a whole number"),
        ({"batch_tokens": 0}, 10, "ConfigurationError", "--batch-tokens"),
        ({"dataset": "nowhere"}, 11, "DatasetInvalid", "run drafter-prepare again"),
        ({"dataset": "foreign"}, 11, "DatasetInvalid", "token id 640"),
        ({"target": "nowhere/at/all"}, 11, "TargetInvalid", "neither a directory"),
    ],
)
def test_bad_input_is_named(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    exit_code: int,
    reason: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "foreign", [[1, 640]])
    ended = run(**changes)
    assert (ended.exit_code, ended.reason) == (exit_code, reason), ended.message
    assert words in ended.message


def test_other_settings_are_refused_and_nothing_is_touched(run: Run, tmp_path: Path) -> None:
    run()
    before = files(tmp_path / "hidden-states")
    ended = run(auxiliary_layers="1,3,6")
    assert (ended.exit_code, ended.reason) == (10, "HiddenStatesInvalid")
    assert "auxiliary_layers [2, 4, 5] there, [1, 3, 6] now" in ended.message
    assert files(tmp_path / "hidden-states") == before


def test_hidden_states_that_are_not_finite_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drafter_jobs.layer_capture import LayerCapture

    compute = LayerCapture.run

    def overflow(self: LayerCapture, rows: list[list[int]]) -> Any:
        states = compute(self, rows)
        return [
            state / 0 if ids == token_ids(6) else state
            for ids, state in zip(rows, states, strict=True)
        ]

    with monkeypatch.context() as patched:
        patched.setattr(LayerCapture, "run", overflow)
        ended = run()
    assert (ended.exit_code, ended.reason) == (11, "HiddenStatesInvalid")
    assert "1 of 10 samples" in ended.message
    assert "rows 6)" in ended.message
    assert len(files(tmp_path / "hidden-states")) == 9
    assert not (tmp_path / "hidden-states/extract.json").exists()
