"""One training process: speculators' own trainer, with durable checkpoints and events.

Run by torchrun as ``-m drafter_jobs.speculators_worker`` with the flags of
``speculators.train``. What it adds to the trainer of speculators 0.9.0:

- A checkpoint is written beside and renamed, so that it is complete or absent.
- SIGTERM saves the epoch and the step inside it, from which the trainer resumes by itself.
- An ``interrupted/`` directory, which the trainer leaves aside, is taken up again.
- Every epoch's validation is kept beside its checkpoint.
- Progress goes to standard output, one event a line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from speculators.train import cli
from speculators.train.config import TrainConfig
from speculators.train.distributed import is_distributed
from speculators.train.trainer import Trainer

from drafter_jobs.atomic_files import synchronise, write_atomically
from drafter_jobs.checkpoints import INTERRUPTED, STATE_FILE, VALIDATION_FILE, is_complete
from drafter_jobs.training_events import DEVICE_VARIABLE, event_line


def emit(event: dict[str, Any]) -> None:
    """Tell the parent process something, on a line of its own."""
    print(event_line(event), flush=True)


class _MetricEvents(logging.Handler):
    """Turns the records of ``speculators.metrics`` into events."""

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict):
            emit(record.msg)


class DurableTrainer(Trainer):  # type: ignore[misc]
    """speculators' trainer, with checkpoints that are complete or absent."""

    def __init__(self, model: Any, config: Any, train_loader: Any, val_loader: Any = None) -> None:
        metrics = logging.getLogger("speculators.metrics")
        metrics.propagate = False
        if not is_distributed() or dist.get_rank() == 0:
            metrics.addHandler(_MetricEvents())
            adopt_interrupted(Path(config.save_path), len(train_loader))
        if is_distributed():
            dist.barrier()
        self._position = (0, 0)
        super().__init__(model, config, train_loader, val_loader)
        if os.environ.get(DEVICE_VARIABLE) == "cpu":
            from drafter_jobs import cpu_training

            cpu_training.settle(self)

    def _is_first(self) -> bool:
        return not self.is_distributed or dist.get_rank() == 0

    def run_training(self) -> None:
        """Train, after a validation that a killed process still owes."""
        if self._is_first():
            emit(
                {
                    "plan": {
                        "epochs": self.config.num_epochs,
                        "steps_per_epoch": len(self.train_loader),
                        "global_step": self.global_step,
                        "epoch": self.current_epoch,
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

    def train_epoch(self, epoch: int, *, step_callback: Any = None) -> None:
        """Train one epoch, knowing at any time which step it is at."""
        step = self._resume_local_step if epoch == self.current_epoch else 0

        def count() -> None:
            nonlocal step
            step += 1
            self._position = (epoch, step)

        self._position = (epoch, step)
        super().train_epoch(epoch, step_callback=count)

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
            epoch, local_step = self._position
            if local_step in (0, len(self.train_loader)) and is_complete(
                self.checkpointer.path / str(epoch)
            ):
                return
            # After the last step nothing of the epoch is left to do.
            local_step %= len(self.train_loader)
        part = self.checkpointer.path / f".{epoch}.part"
        if self._is_first():
            shutil.rmtree(part, ignore_errors=True)
        super().maybe_save_checkpoint(part.name)
        if self._is_first():
            state = {"epoch": epoch, "local_step": local_step, "global_step": self.global_step}
            publish_checkpoint(part, self.checkpointer.path / str(epoch), state)
            emit({"checkpoint": state})
        if self.is_distributed:
            dist.barrier()


def publish_checkpoint(part: Path, directory: Path, state: dict[str, Any]) -> None:
    """Give a fully written checkpoint its name.

    Parameters
    ----------
    part
        Directory with everything but the training state.
    directory
        Its name from now on; an older checkpoint of that name is replaced.
    state
        ``epoch``, ``local_step`` and ``global_step``.
    """
    (part / STATE_FILE).write_text(json.dumps(state))
    for file in part.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    synchronise(part)
    if directory.exists():
        old = directory.with_name(f".{directory.name}.old.part")
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
        part.rename(directory)
        shutil.rmtree(old)
    else:
        part.rename(directory)
    synchronise(directory.parent)


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
    with contextlib.suppress(FileNotFoundError, KeyError, RuntimeError):
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


def main() -> None:
    """Train as the command line of ``speculators.train`` says."""
    if os.environ.get(DEVICE_VARIABLE) == "cpu":
        from drafter_jobs import cpu_training

        cpu_training.install()
    cli.Trainer = DurableTrainer
    cli.main(TrainConfig.resolve())


if __name__ == "__main__":
    main()
