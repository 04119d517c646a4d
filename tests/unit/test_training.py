"""What the train job decides: flags, meanings of log lines, which checkpoints count."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from drafter_jobs.checkpoints import best_checkpoint, complete_checkpoints, remove_incomplete
from drafter_jobs.contract.outcome import ExitCode, Reason
from drafter_jobs.training_events import (
    divergence,
    event_line,
    failure_of_log,
    full_accuracies,
    parse_event,
)
from drafter_jobs.training_flags import TrainingSettings, training_flags

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


def checkpoint(root: Path, epoch: int, loss: float | None, local_step: int = 0) -> Path:
    directory = root / str(epoch)
    directory.mkdir(parents=True)
    save_file({"fc.weight": np.zeros((2, 2), np.float32)}, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    (directory / "optimizer_state_dict.pt").write_bytes(b"x")
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
