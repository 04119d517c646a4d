"""What a training shows while it runs: Prometheus gauges, and a log line for each milestone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge

from drafter_jobs.checkpoints import Checkpoint
from drafter_jobs.job import REGISTRY, Progress, log
from drafter_jobs.training_events import full_accuracies

STEPS_BETWEEN_LOGS = 20

_EPOCH = Gauge("drafter_training_epoch", "Present epoch, from 0.", registry=REGISTRY)
_EPOCHS = Gauge("drafter_training_epochs", "Epochs in all.", registry=REGISTRY)
_STEP = Gauge("drafter_training_step", "Optimizer steps done.", registry=REGISTRY)
_STEPS = Gauge("drafter_training_steps", "Optimizer steps in all.", registry=REGISTRY)
_LOSS = Gauge("drafter_training_loss", "Loss of the last step.", registry=REGISTRY)
_ACCURACY = Gauge(
    "drafter_training_accuracy",
    "Share of right tokens at a TTT step.",
    ["ttt_step", "kind", "split"],
    registry=REGISTRY,
)
_ESTIMATE = Gauge(
    "drafter_training_estimated_acceptance_length",
    "1 + the sum of the validation's full accuracies.",
    registry=REGISTRY,
)
_LEARNING_RATE = Gauge("drafter_training_learning_rate", "Learning rate.", registry=REGISTRY)
_TOKENS = Counter("drafter_training_tokens", "Tokens trained on.", registry=REGISTRY)


class TrainingMetrics:
    """Keeps the metrics up to date with the events of the trainer."""

    def __init__(self) -> None:
        self._progress = Progress("steps")
        self._processes = 1
        self._counted_step = 0

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
            self._accuracies(train, "", "train")
        if validation := event.get("val"):
            self._accuracies(validation, "_epoch", "validation")
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
    def _accuracies(metrics: Mapping[str, float], suffix: str, split: str) -> None:
        for kind, stem in (("full", "full_acc_"), ("conditional", "cond_acc_")):
            for name, value in metrics.items():
                if name.startswith(stem) and name.endswith(suffix):
                    step = name.removeprefix(stem).removesuffix(suffix)
                    if step.isdigit():
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
