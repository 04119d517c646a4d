"""What a training shows while it runs: Prometheus gauges, and a log line for each milestone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafter_jobs.checkpoints import STATE_FILE, Checkpoint, complete_checkpoints
from drafter_jobs.contract import metrics
from drafter_jobs.job import REGISTRY, Progress, log
from drafter_jobs.training_events import full_accuracies

STEPS_BETWEEN_LOGS = 20
_ACCURACY_KINDS = {"full_acc": "full", "cond_acc": "conditional"}

_EPOCH = metrics.TRAINING_EPOCH.gauge(REGISTRY)
_EPOCHS = metrics.TRAINING_EPOCHS.gauge(REGISTRY)
_STEP = metrics.TRAINING_STEP.gauge(REGISTRY)
_STEPS = metrics.TRAINING_STEPS.gauge(REGISTRY)
_LOSS = metrics.TRAINING_LOSS.gauge(REGISTRY)
_STEP_LOSS = metrics.TRAINING_STEP_LOSS.gauge(REGISTRY)
_ACCURACY = metrics.TRAINING_ACCURACY.gauge(REGISTRY)
_ESTIMATE = metrics.TRAINING_ESTIMATE.gauge(REGISTRY)
_LEARNING_RATE = metrics.TRAINING_RATE.gauge(REGISTRY)
_TOKENS = metrics.TRAINING_TOKENS.counter(REGISTRY)
_CHECKPOINT_TIME = metrics.CHECKPOINT_TIME.gauge(REGISTRY)
_CHECKPOINT_SIZE = metrics.CHECKPOINT_SIZE.gauge(REGISTRY)


class TrainingMetrics:
    """Keeps the metrics up to date with the events of the trainer.

    Parameters
    ----------
    checkpoints
        Directory of the checkpoints; what an earlier start left in it is shown at once.
    """

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._progress = Progress("steps")
        self._processes = 1
        self._counted_step = 0
        if found := complete_checkpoints(checkpoints):
            self._checkpoint(found[-1].path)

    def show(self, event: Mapping[str, Any]) -> None:
        """Take up an event of the trainer."""
        if plan := event.get("plan"):
            steps = plan["epochs"] * plan["steps_per_epoch"]
            _EPOCHS.set(plan["epochs"])
            _EPOCH.set(plan["epoch"])
            _STEPS.set(steps)
            _STEP.set(plan["global_step"])
            self._processes = plan["processes"]
            self._counted_step = plan["global_step"]
            self._progress.expect(steps)
            self._progress.reach(plan["global_step"])
        if train := event.get("train"):
            _EPOCH.set(event["epoch"])
            _STEP.set(event["global_step"] + 1)
            self._progress.reach(event["global_step"] + 1)
            _LOSS.set(train["loss"])
            rates = event.get("lr")
            _LEARNING_RATE.set(max(rates.values()) if isinstance(rates, dict) else rates or 0)
            self._count_tokens(event)
            self._ttt_steps(train, "", "train")
        if checkpoint := event.get("checkpoint"):
            self._checkpoint(self._checkpoints / str(checkpoint["epoch"]))
        if validation := event.get("val"):
            self._ttt_steps(validation, "_epoch", "validation")
            _ESTIMATE.set(1 + sum(full_accuracies(validation, "_epoch")))

    def _count_tokens(self, event: Mapping[str, Any]) -> None:
        profile = event.get("profile") or {}
        tokens = profile.get("tokens_per_s", 0) * profile.get("step_ms", 0) / 1000
        # Not every step is logged, and only by the first process.
        steps = event["global_step"] + 1 - self._counted_step
        self._counted_step = event["global_step"] + 1
        _TOKENS.inc(max(0, steps) * self._processes * tokens)

    def finish(self, best: Checkpoint, epochs: int, steps: int) -> None:
        """Show a training that is at its end, of the best epoch."""
        _EPOCHS.set(epochs)
        _EPOCH.set(epochs - 1)
        _STEPS.set(steps)
        _STEP.set(steps)
        self._progress.expect(steps)
        self._progress.reach(steps)
        self.show({"val": best.validation})

    @staticmethod
    def _checkpoint(directory: Path) -> None:
        _CHECKPOINT_TIME.set((directory / STATE_FILE).stat().st_mtime)
        _CHECKPOINT_SIZE.set(sum(file.stat().st_size for file in directory.iterdir()))

    @staticmethod
    def _ttt_steps(found: Mapping[str, float], suffix: str, split: str) -> None:
        """Show each TTT step; speculators names its figures like ``full_acc_0`` and ``loss_0``."""
        for name, value in found.items():
            stem, _, step = name.removesuffix(suffix).rpartition("_")
            if not (name.endswith(suffix) and step.isdigit()):
                continue
            if stem == "loss":
                _STEP_LOSS.labels(ttt_step=step, split=split).set(value)
            elif kind := _ACCURACY_KINDS.get(stem):
                _ACCURACY.labels(ttt_step=step, kind=kind, split=split).set(value)


def log_milestone(event: Mapping[str, Any]) -> None:
    """Tell the milestones of a training; its steps are in the metrics."""
    if plan := event.get("plan"):
        log("training", **plan)
    if (train := event.get("train")) and event["global_step"] % STEPS_BETWEEN_LOGS == 0:
        log("step", epoch=event["epoch"], global_step=event["global_step"], loss=train["loss"])
    if checkpoint := event.get("checkpoint"):
        log("saved", **checkpoint)
    if validation := event.get("val"):
        accuracies = [f"{value:.4f}" for value in full_accuracies(validation, "_epoch")]
        loss = validation.get("loss_epoch")
        log("validated", epoch=event.get("epoch"), loss=loss, full_accuracy=accuracies)
