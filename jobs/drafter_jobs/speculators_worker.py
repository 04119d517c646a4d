"""One training process: speculators' own trainer, with durable checkpoints and events.

Run by torchrun as ``-m drafter_jobs.speculators_worker`` with the flags of
``speculators.train``. What it adds to the trainer of speculators 0.9.0:

- A checkpoint is written beside and renamed, so that it is complete or absent.
- SIGTERM lets the step end, then saves the epoch and the step inside it, from which the trainer
  resumes by itself; all ranks stop after the same step.
- An ``interrupted/`` directory, which the trainer leaves aside, is taken up again.
- A position inside an epoch is carried over when the tokens of a step have changed.
- A resume under another vocabulary map, and a checkpoint of weights that are no numbers, fail.
- Every epoch's validation is kept beside its checkpoint.
- Progress goes to standard output, one event a line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open
from speculators.train import cli
from speculators.train.config import TrainConfig
from speculators.train.distributed import is_distributed
from speculators.train.graceful_shutdown import TrainingInterruptedError
from speculators.train.trainer import Trainer

from drafter_jobs.atomic_files import write_atomically
from drafter_jobs.checkpoints import (
    INTERRUPTED,
    STATE_FILE,
    VALIDATION_FILE,
    is_complete,
    publish_checkpoint,
    rescaled_position,
)
from drafter_jobs.torchrun import end_with_parent
from drafter_jobs.training_events import (
    DEVICE_VARIABLE,
    NonFiniteWeightsError,
    SplitEmptyError,
    VocabularyMapChangedError,
    event_line,
)


def emit(event: dict[str, Any]) -> None:
    """Tell the parent process something, on a line of its own."""
    sys.stdout.flush()
    # One write for the whole line: the ranks of a node share the pipe.
    os.write(sys.stdout.fileno(), f"{event_line(event)}\n".encode())


class _MetricEvents(logging.Handler):
    """Turns the records of ``speculators.metrics`` into events."""

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict):
            emit(record.msg)


class StopSignal:
    """SIGTERM or SIGINT, kept until the training is at a point where it can stop."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def hold(self) -> None:
        """Only remember signals from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before.setdefault(number, signal.signal(number, self._remember))

    def release(self) -> None:
        """Give signals back to who handled them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = True


class DurableTrainer(Trainer):  # type: ignore[misc]
    """speculators' trainer, with checkpoints that are complete or absent."""

    def __init__(self, model: Any, config: Any, train_loader: Any, val_loader: Any = None) -> None:
        for split, loader in (("train", train_loader), ("val", val_loader)):
            if loader is not None and len(loader) == 0:
                raise SplitEmptyError(f"{split} split has fewer samples than training processes")
        metrics = logging.getLogger("speculators.metrics")
        metrics.propagate = False
        if not is_distributed() or dist.get_rank() == 0:
            metrics.addHandler(_MetricEvents())
            adopt_interrupted(Path(config.save_path), len(train_loader))
        if is_distributed():
            dist.barrier()
        sampler = train_loader.batch_sampler
        self._tokens_per_step = int(sampler.batch_max_length * sampler.num_replicas)
        self._steps_per_epoch = len(train_loader)
        self._epoch_steps = self._steps_per_epoch
        self._position = self._saved_position = (0, 0)
        self._moved = False
        self._stop = StopSignal()
        super().__init__(model, config, train_loader, val_loader)
        if os.environ.get(DEVICE_VARIABLE) == "cpu":
            from drafter_jobs import cpu_training

            cpu_training.settle(self)

    def setup_trainer(self) -> None:
        """Find where to go on, in steps of the present size."""
        super().setup_trainer()
        state = self._load_training_state() if self.checkpointer.previous_epoch >= 0 else {}
        if state.get("tokens_per_step", self._tokens_per_step) == self._tokens_per_step:
            return
        self._moved = True
        position = rescaled_position(state, self._steps_per_epoch)
        self.current_epoch, self._resume_local_step, self.global_step = position
        self._resume_global_step = self.global_step

    def setup_model(self) -> None:
        """Load the weights, if they were trained for the present vocabulary map."""
        if self.checkpointer.previous_epoch >= 0:
            check_vocabulary_map(
                self.model, self.checkpointer.model_path(self.checkpointer.previous_epoch)
            )
        super().setup_model()

    def setup_optimizer(self) -> None:
        """Set up optimizers and schedules, at the step where training goes on."""
        super().setup_optimizer()
        if not self._moved:
            return
        for scheduler in self.schedulers:
            scheduler.last_epoch = self.global_step
            rates = scheduler.get_lr()
            scheduler._last_lr = rates
            for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _is_first(self) -> bool:
        return not self.is_distributed or dist.get_rank() == 0

    def run_training(self) -> None:
        """Train, after a validation that a killed process still owes."""
        if self._is_first():
            emit(
                {
                    "plan": {
                        "epochs": self.config.num_epochs,
                        "steps_per_epoch": self._steps_per_epoch,
                        "global_step": self.global_step,
                        "epoch": self.current_epoch,
                        "processes": dist.get_world_size() if self.is_distributed else 1,
                    }
                }
            )
        finished = self.checkpointer.previous_epoch
        if finished >= 0 and finished == self.current_epoch - 1:
            directory = self.checkpointer.path / str(finished)
            if not (directory / VALIDATION_FILE).exists():
                # Killed between an epoch's checkpoint and its validation.
                self.maybe_update_best(finished, self.val_epoch(finished))
        super().run_training()

    def train_epoch(self, epoch: int, *, step_callback: Callable[[], None] | None = None) -> None:
        """Train one epoch, knowing at any time which step it is at."""
        self.train_loader.batch_sampler.set_epoch(epoch)
        # Read now: the trainer shortens the loader to what is left of a resumed epoch.
        self._epoch_steps = len(self.train_loader)
        step = self._resume_local_step if epoch == self.current_epoch else 0

        def count() -> None:
            nonlocal step
            step += 1
            self._position = (epoch, step)
            if step_callback is not None:
                step_callback()
            if self._may_ask() and self._all_stop():
                raise TrainingInterruptedError("SIGTERM")

        self._position = self._saved_position = (epoch, step)
        # A signal inside a step would leave half of the weights, or half of the ranks, behind.
        self._stop.hold()
        super().train_epoch(epoch, step_callback=count)

    def _may_ask(self) -> bool:
        # The ranks wait for each other here, as they do to log a step.
        return not self.is_distributed or self.global_step % self.config.log_freq == 0

    def _all_stop(self) -> bool:
        if not self.is_distributed:
            return self._stop.received
        flag = torch.tensor(float(self._stop.received), device=self.local_rank)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def val_epoch(self, epoch: int) -> dict[str, float] | None:
        """Validate, and keep the metrics beside the epoch's checkpoint."""
        metrics: dict[str, float] | None = super().val_epoch(epoch)
        if metrics is not None and self._is_first():
            content = json.dumps(metrics).encode()
            write_atomically(self.checkpointer.path / str(epoch) / VALIDATION_FILE, content)
        return metrics

    def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
        """Save whole or not at all; an interrupted epoch under its own number."""
        if epoch == INTERRUPTED:
            emit({"interrupted": True})
            if self._position == self._saved_position:
                return
            epoch, local_step = self._position
            # After the last step nothing of the epoch is left to do.
            local_step %= self._epoch_steps
            self._save(epoch, local_step)
            return
        assert isinstance(epoch, int)
        self._save(epoch, local_step)
        if self._all_stop():
            raise TrainingInterruptedError("SIGTERM")
        # The validation changes nothing: a signal ends it at once.
        self._stop.release()

    def _save(self, epoch: int, local_step: int) -> None:
        if not all(bool(weight.isfinite().all()) for weight in self.model.parameters()):
            raise NonFiniteWeightsError(
                f"weights are no longer numbers at epoch {epoch}, step {self.global_step}"
            )
        part = self.checkpointer.path / f".{epoch}.part"
        if self._is_first():
            shutil.rmtree(part, ignore_errors=True)
        super().maybe_save_checkpoint(part.name)
        if self._is_first():
            state = {
                "epoch": epoch,
                "local_step": local_step,
                "global_step": self.global_step,
                "epoch_steps": self._epoch_steps,
                "tokens_per_step": self._tokens_per_step,
            }
            publish_checkpoint(part, self.checkpointer.path / str(epoch), state)
            emit({"checkpoint": state})
        if self.is_distributed:
            dist.barrier()
        self._saved_position = self._position


def check_vocabulary_map(model: Any, weights: Path) -> None:
    """Fail if a checkpoint's draft vocabulary is not the one that the model was built for.

    Parameters
    ----------
    model
        Drafter with ``d2t``, int64 of shape (draft vocabulary,).
    weights
        The checkpoint's ``model.safetensors``.

    Raises
    ------
    VocabularyMapChangedError
        The head and the map would disagree, which no training metric shows.
    """
    with safe_open(weights, framework="pt") as file:
        saved = file.get_tensor("d2t") if "d2t" in file.keys() else None  # noqa: SIM118
    present = model.d2t
    if saved is None and present is None:
        return
    if saved is None or present is None or not torch.equal(saved, present.cpu()):
        raise VocabularyMapChangedError(
            f"the draft vocabulary of the data is not the one {weights.parent} was trained for"
        )


def adopt_interrupted(root: Path, steps_per_epoch: int) -> None:
    """Make the trainer's ``interrupted/`` the epoch it belongs to, or remove it if it is older.

    Parameters
    ----------
    root
        The trainer's output directory.
    steps_per_epoch
        Optimizer steps of one epoch; the saved scheduler knows the steps in all.
    """
    interrupted = root / INTERRUPTED
    if not interrupted.is_dir():
        return
    scheduler = interrupted / "scheduler_state_dict.pt"
    unreadable = (OSError, KeyError, RuntimeError, EOFError, pickle.UnpicklingError)
    with contextlib.suppress(*unreadable):
        saved = torch.load(scheduler, weights_only=True)
        first = saved[0] if isinstance(saved, list) else saved
        global_step = int(first["last_epoch"])
        epoch, local_step = divmod(global_step, steps_per_epoch)
        if local_step == 0 and epoch > 0:
            epoch -= 1
        state = {"epoch": epoch, "local_step": local_step, "global_step": global_step}
        (interrupted / STATE_FILE).write_text(json.dumps(state))
        if is_complete(interrupted) and not is_complete(root / str(epoch)):
            publish_checkpoint(interrupted, root / str(epoch), state)
            return
    shutil.rmtree(interrupted)


def remove_torn_vocabulary_maps(dataset: Path) -> None:
    """Remove cached vocabulary maps that a killed trainer left half-written beside the data."""
    for file in (*dataset.glob("d2t-*.npy"), *dataset.glob("t2d-*.npy")):
        try:
            np.load(file)
        except (ValueError, EOFError):
            file.unlink(missing_ok=True)


def main() -> None:
    """Train as the command line of ``speculators.train`` says."""
    end_with_parent()
    if os.environ.get(DEVICE_VARIABLE) == "cpu":
        from drafter_jobs import cpu_training

        cpu_training.install()
    cli.Trainer = DurableTrainer
    config = TrainConfig.resolve()
    if os.environ.get("RANK", "0") == "0":
        remove_torn_vocabulary_maps(Path(config.flatten()["data_path"]))
    cli.main(config)


if __name__ == "__main__":
    main()
