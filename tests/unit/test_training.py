"""What the train job decides: flags, meanings of log lines, which checkpoints count."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from drafter_jobs.checkpoints import (
    best_checkpoint,
    complete_checkpoints,
    point_to_best,
    publish_checkpoint,
    remove_incomplete,
    rescaled_position,
)
from drafter_jobs.contract.outcome import ExitCode, Reason
from drafter_jobs.train import main
from drafter_jobs.training_events import (
    divergence,
    event_line,
    failure_of_log,
    full_accuracies,
    parse_event,
    was_killed,
)
from drafter_jobs.training_flags import TrainingSettings, training_flags
from job_process import Ended, run_here

SETTINGS = TrainingSettings(
    target="/models/m",
    dataset="/data/d",
    hidden_states="/data/h",
    output="/data/c",
    auxiliary_layers=[2, 15, 27],
    epochs=5,
    ttt_steps=5,
    packed_sequence_length=8192,
    learning_rate="1e-4",
    draft_vocabulary_size=32000,
    optimizer="adamw",
    seed=0,
    train_share="0.95",
    on_cpu=False,
)


def test_speculators_reads_the_flags_as_they_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    config_module = pytest.importorskip("speculators.train.config")
    monkeypatch.setattr("sys.argv", ["train", *training_flags(SETTINGS)])

    config = config_module.TrainConfig.resolve().flatten()

    # SGLang reads the first of these nowhere, and applies no window unless told to.
    assert config["norm_before_residual"] is False
    assert config["full_attention_indices"] == [0]
    assert config["num_layers"] == 1
    assert config["draft_arch"] == "llama"
    assert config["target_layer_ids"] == [2, 15, 27]
    assert config["draft_vocab_size"] == 32000
    assert config["total_seq_len"] == 8192
    assert config["train_data_ratio"] == 0.95
    assert config["on_missing"] == "raise"
    assert config["checkpoint_freq"] == 1
    assert config["lr"] == 1e-4


def test_an_event_survives_the_way_through_standard_output() -> None:
    event = {"train": {"loss": 1.5, "full_acc_0": 0.4}, "epoch": 2}
    assert parse_event(event_line(event)) == event
    assert parse_event("INFO Training epoch 1/5 started") is None
    assert parse_event("DRAFTER-EVENT {half a line") is None


def test_accuracies_are_those_of_the_steps_in_order() -> None:
    metrics = {"full_acc_1_epoch": 0.2, "full_acc_0_epoch": 0.6, "cond_acc_1_epoch": 0.3}
    assert full_accuracies(metrics, "_epoch") == [0.6, 0.2]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_the_training(loss: float) -> None:
    event = parse_event(event_line({"train": {"loss": loss}, "epoch": 3, "global_step": 812}))
    assert event is not None
    reason = divergence(event)
    assert reason is not None
    assert reason.exit_code == ExitCode.TRAINING_DIVERGED
    assert "epoch 3, step 812" in reason.message


def test_no_accuracy_after_a_whole_epoch_ends_the_training() -> None:
    assert divergence({"val": {"full_acc_0_epoch": 0.0}, "epoch": 0}) is not None
    assert divergence({"val": {"full_acc_0_epoch": 0.01}, "epoch": 0}) is None
    assert divergence({"train": {"loss": 3.0}, "epoch": 0, "global_step": 1}) is None


def test_a_validation_loss_that_is_no_number_ends_the_training() -> None:
    reason = divergence({"val": {"loss_epoch": float("nan"), "full_acc_0_epoch": 0.1}, "epoch": 2})
    assert reason is not None
    assert reason.exit_code == ExitCode.TRAINING_DIVERGED
    assert "epoch 2" in reason.message


@pytest.mark.parametrize(
    ("line", "code", "reason", "words"),
    [
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, "
            "Required: 107008, Hardware limit: 101376. Reducing block sizes may help.",
            ExitCode.OUT_OF_GPU_MEMORY,
            Reason.OUT_OF_GPU_MEMORY,
            ("107008", "101376", "packed to 16384 tokens", "training.packedSequenceLength"),
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
            ExitCode.OUT_OF_GPU_MEMORY,
            Reason.OUT_OF_GPU_MEMORY,
            ("CUDA ran out of memory", "16384"),
        ),
        (
            "torch.AcceleratorError: CUDA error: out of memory",
            ExitCode.OUT_OF_GPU_MEMORY,
            Reason.OUT_OF_GPU_MEMORY,
            ("16384",),
        ),
        (
            "OSError: [Errno 30] Read-only file system: '/data/c/0'",
            ExitCode.DISK_FULL,
            Reason.VOLUME_READ_ONLY,
            ("read-only",),
        ),
        (
            "UserWarning: Loaded token ids tensor([1, 2,\n 3]) for index 7 don'tmatch input ids",
            ExitCode.INVALID_INPUT,
            Reason.HIDDEN_STATES_INVALID,
            ("sample 7", "retry Extract"),
        ),
        (
            "drafter_jobs.training_events.VocabularyMapChangedError: the draft vocabulary of the"
            " data is not the one /data/c/2 was trained for",
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            ("/data/c/2", "another directory"),
        ),
        (
            "drafter_jobs.training_events.NonFiniteWeightsError: weights are no longer numbers at"
            " epoch 1, step 40",
            ExitCode.TRAINING_DIVERGED,
            Reason.TRAINING_DIVERGED,
            ("epoch 1, step 40", "training.learningRate"),
        ),
        (
            "ValueError: val split is empty (dataset has 3 rows, train_ratio=0.99)",
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            ("3 rows", "data.validationShare"),
        ),
        (
            "OSError: [Errno 28] No space left on device",
            ExitCode.DISK_FULL,
            Reason.DISK_FULL,
            ("enlarge",),
        ),
        (
            "ValueError: Failed to load hidden states for sample 7",
            ExitCode.INVALID_INPUT,
            Reason.HIDDEN_STATES_INVALID,
            ("sample 7", "retry Extract"),
        ),
    ],
)
def test_the_end_of_a_log_tells_why_training_died(
    line: str, code: ExitCode, reason: Reason, words: tuple[str, ...]
) -> None:
    found = failure_of_log(["step 1", line, "ChildFailedError"], 16384)
    assert found is not None
    assert (found.exit_code, found.reason) == (code, reason)
    assert all(word in found.message for word in words), found.message


def test_an_unknown_end_is_left_to_be_tried_again() -> None:
    assert failure_of_log(["Segmentation fault"], 8192) is None


def test_a_killed_process_is_recognised_in_the_report_of_torchrun() -> None:
    assert was_killed(["  exitcode  : -9 (pid: 71)", "  traceback : none"])
    assert was_killed(["  traceback : Signal 9 (SIGKILL) received by PID 71"])
    assert not was_killed(["  exitcode  : 1 (pid: 71)", "step 9 (SIGKILL is not meant)"])


def checkpoint(root: Path, epoch: int, loss: float | None, local_step: int = 0) -> Path:
    directory = root / str(epoch)
    directory.mkdir(parents=True)
    save_file({"fc.weight": np.zeros((2, 2), np.float32)}, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    for name in ("optimizer_state_dict.pt", "scheduler_state_dict.pt"):
        with zipfile.ZipFile(directory / name, "w") as archive:
            archive.writestr("data.pkl", b"x")
    state = {"epoch": epoch, "local_step": local_step, "global_step": 100 * epoch + local_step}
    (directory / "training_state.json").write_text(json.dumps(state))
    if loss is not None:
        (directory / "validation.json").write_text(json.dumps({"loss_epoch": loss}))
    return directory


def test_the_best_checkpoint_has_the_lowest_loss_of_the_finished_epochs(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, 3.0)
    checkpoint(tmp_path, 1, 2.0)
    checkpoint(tmp_path, 2, 2.5)
    checkpoint(tmp_path, 3, 1.0, local_step=7)
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.epoch == 1
    assert [found.epoch for found in complete_checkpoints(tmp_path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["optimizer_state_dict.pt", "scheduler_state_dict.pt"])
def test_a_checkpoint_without_a_whole_optimizer_state_does_not_count(
    tmp_path: Path, name: str
) -> None:
    checkpoint(tmp_path, 0, 3.0)
    torn = checkpoint(tmp_path, 1, 2.0) / name
    torn.write_bytes(torn.read_bytes()[:-10])
    assert [found.epoch for found in complete_checkpoints(tmp_path)] == [0]


def test_a_checkpoint_put_aside_for_one_that_never_got_its_name_comes_back(tmp_path: Path) -> None:
    checkpoint(tmp_path, 3, None, local_step=7).rename(tmp_path / ".3.old.part")
    (tmp_path / ".3.part").mkdir()
    remove_incomplete(tmp_path)
    (found,) = complete_checkpoints(tmp_path)
    assert (found.epoch, found.local_step) == (3, 7)
    assert list(tmp_path.iterdir()) == [tmp_path / "3"]


def test_a_published_checkpoint_replaces_the_one_inside_its_epoch(tmp_path: Path) -> None:
    checkpoint(tmp_path, 3, None, local_step=7)
    part = checkpoint(tmp_path / "new", 3, None).rename(tmp_path / ".3.part")
    publish_checkpoint(part, tmp_path / "3", {"epoch": 3, "local_step": 0, "global_step": 400})
    (found,) = complete_checkpoints(tmp_path)
    assert (found.local_step, found.global_step) == (0, 400)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["3", "new"]


def test_the_link_to_the_best_is_mended(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, 3.0)
    checkpoint(tmp_path, 1, 2.0)
    (tmp_path / "checkpoint_best").symlink_to("0")
    best = best_checkpoint(tmp_path)
    assert best is not None
    point_to_best(tmp_path, best)
    assert (tmp_path / "checkpoint_best").readlink() == Path("1")


@pytest.mark.parametrize(
    ("state", "position"),
    [
        # A finished epoch: the next one, counted in steps of the new size.
        ({"epoch": 1, "local_step": 0, "global_step": 200, "epoch_steps": 100}, (2, 0, 400)),
        # Half of an epoch of 100 steps is half of one of 200.
        ({"epoch": 1, "local_step": 50, "global_step": 150, "epoch_steps": 100}, (1, 100, 300)),
        # Fewer, longer steps: some samples again, none left out.
        ({"epoch": 0, "local_step": 99, "global_step": 99, "epoch_steps": 400}, (0, 49, 49)),
    ],
)
def test_a_position_is_carried_over_to_steps_of_another_size(
    state: dict[str, int], position: tuple[int, int, int]
) -> None:
    assert rescaled_position(state, 200) == position


def test_what_a_killed_trainer_left_half_written_is_removed_and_nothing_else(
    tmp_path: Path,
) -> None:
    whole = checkpoint(tmp_path, 0, 3.0)
    torn = checkpoint(tmp_path, 1, None)
    (torn / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{half")
    stateless = checkpoint(tmp_path, 2, None)
    (stateless / "training_state.json").unlink()
    part = tmp_path / ".3.part"
    part.mkdir()
    (tmp_path / "checkpoint_best").symlink_to("1")

    removed = remove_incomplete(tmp_path)

    assert set(removed) == {torn, stateless, part}
    assert whole.is_dir()
    assert not (tmp_path / "checkpoint_best").is_symlink()


def run_train(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path, *arguments: object
) -> Ended:
    dataset, hidden_states = tmp_path / "dataset", tmp_path / "hidden-states"
    paths = ("--target", target, "--dataset", dataset, "--hidden-states", hidden_states)
    output = ("--output", tmp_path / "checkpoints", "--device", "cpu", "--epochs", 2)
    return run_here(main, [*paths, *output, *arguments], monkeypatch, tmp_path)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A training of two epochs that is at its end."""
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "token_freq.pt").write_bytes(b"frequencies")
    (tmp_path / "hidden-states").mkdir()
    record = tmp_path / "hidden-states" / "extract.json"
    record.write_text(json.dumps({"auxiliary_layers": [2, 4, 5]}))
    for epoch, loss, accuracy in ((0, 2.0, 0.5), (1, 2.5, 0.6)):
        directory = checkpoint(tmp_path / "checkpoints", epoch, loss)
        metrics = {"loss_epoch": loss, "full_acc_0_epoch": accuracy, "full_acc_1_epoch": 0.25}
        (directory / "validation.json").write_text(json.dumps(metrics))
    return tmp_path


def test_a_finished_training_is_reported_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    ended = run_train(monkeypatch, finished, finished)
    assert ended.exit_code == 0
    assert ended.result["bestEpoch"] == 0
    assert ended.result["fullAccuracy"] == ["0.5000", "0.2500"]
    assert ended.result["estimatedAcceptanceLength"] == "1.750"
    assert (finished / "checkpoints" / "checkpoint_best").readlink() == Path("0")


def test_an_accuracy_below_the_gate_tells_both_values(
    monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    ended = run_train(monkeypatch, finished, finished, "--minimum-first-step-accuracy", "0.55")
    assert (ended.exit_code, ended.reason) == (15, "AccuracyBelowGate")
    assert "0.5000" in ended.message
    assert "0.55" in ended.message


def test_a_resume_cannot_change_the_vocabulary(
    monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    assert run_train(monkeypatch, finished, finished).exit_code == 0
    (finished / "dataset" / "token_freq.pt").write_bytes(b"other frequencies")
    ended = run_train(monkeypatch, finished, finished)
    assert (ended.exit_code, ended.reason) == (10, "ConfigurationError")
    assert "token_frequencies_sha256" in ended.message
    assert "another directory" in ended.message


@pytest.mark.parametrize(
    ("missing", "exit_code", "reason", "words"),
    [
        ("hidden-states/extract.json", 11, "HiddenStatesInvalid", ("extract.json", "Extract")),
        ("dataset/token_freq.pt", 11, "DatasetInvalid", ("token_freq.pt", "Prepare")),
    ],
)
def test_missing_input_is_named_with_the_step_that_writes_it(
    monkeypatch: pytest.MonkeyPatch,
    finished: Path,
    missing: str,
    exit_code: int,
    reason: str,
    words: tuple[str, ...],
) -> None:
    (finished / missing).unlink()
    ended = run_train(monkeypatch, finished, finished)
    assert (ended.exit_code, ended.reason) == (exit_code, reason)
    assert all(word in ended.message for word in words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--epochs", "0"), ("--epochs", "0")),
        (("--learning-rate", "fast"), ("--learning-rate", "fast")),
        (("--train-share", "1"), ("--train-share", "(0, 1)")),
        (("--nodes", "2"), ("--rendezvous HOST:PORT",)),
        (("--nodes", "2", "--node-rank", "2"), ("--node-rank 2", "--nodes 2")),
    ],
)
def test_arguments_that_cannot_work_are_configuration_errors(
    monkeypatch: pytest.MonkeyPatch,
    finished: Path,
    tiny_target: Path,
    arguments: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    shutil.rmtree(finished / "checkpoints")
    ended = run_train(monkeypatch, finished, tiny_target, *arguments)
    assert (ended.exit_code, ended.reason) == (10, "ConfigurationError")
    assert all(word in ended.message for word in words), ended.message


def test_a_target_that_is_none_is_named_before_any_training(
    monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    shutil.rmtree(finished / "checkpoints")
    ended = run_train(monkeypatch, finished, finished / "dataset")
    assert (ended.exit_code, ended.reason) == (11, "TargetInvalid")
    assert "dataset" in ended.message
