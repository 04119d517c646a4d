"""How far a running step is, from the metrics of its Pod."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from drafter_jobs.contract import metrics
from drafter_operator.api.status import Progress, Step, TrainingStatus
from drafter_operator.lifecycle.ledger import timestamp
from drafter_operator.lifecycle.observed import Sample

DONE_METRIC, EXPECTED_METRIC = metrics.WORK_DONE.name, metrics.WORK_EXPECTED.name


def progress_of(samples: Sequence[Sample], step: Step, now: datetime) -> Progress | None:
    """Return a step's progress, or None while its Pod says nothing.

    The rate is the mean since the Pod was first asked: neither its start-up nor the work it found
    done counts. It is left out until there is something to measure.
    """
    done = next((sample for sample in samples if sample.name == DONE_METRIC), None)
    if done is None:
        return None
    unit = done.labels.get("unit", "")
    expected = next(
        (
            sample.value
            for sample in samples
            if sample.name == EXPECTED_METRIC and sample.labels.get("unit") == unit
        ),
        0.0,
    )
    progress = Progress(
        done=int(done.value),
        total=int(expected),
        unit=unit,
        counted_from=int(done.value),
        counted_since=timestamp(now),
    )
    known = step.progress
    if known is None or known.counted_since is None or known.unit != unit:
        return progress
    if done.value < known.counted_from:
        return progress
    counted = done.value - known.counted_from
    elapsed = (now - datetime.fromisoformat(known.counted_since)).total_seconds()
    changes: dict[str, object] = {
        "counted_from": known.counted_from,
        "counted_since": known.counted_since,
    }
    if counted > 0 and elapsed >= 1:
        rate = counted / elapsed
        changes["rate_per_second"] = f"{rate:.3f}"
        changes["seconds_left"] = max(0, round((expected - done.value) / rate))
    return progress.model_copy(update=changes)


def live_training(samples: Sequence[Sample], training: TrainingStatus) -> TrainingStatus:
    """Return the training's figures as its Pod reports them now."""
    plain = {sample.name: sample.value for sample in samples if not sample.labels}
    changes: dict[str, object] = {}
    for field, metric in (
        ("epoch", metrics.TRAINING_EPOCH.name),
        ("epochs", metrics.TRAINING_EPOCHS.name),
        ("step", metrics.TRAINING_STEP.name),
        ("steps", metrics.TRAINING_STEPS.name),
    ):
        if metric in plain:
            changes[field] = int(plain[metric])
    if not changes.get("steps"):
        return training
    if metrics.TRAINING_LOSS.name in plain:
        changes["loss"] = f"{plain[metrics.TRAINING_LOSS.name]:.4f}"
    accuracies = {
        int(sample.labels["ttt_step"]): sample.value
        for sample in samples
        if sample.name == metrics.TRAINING_ACCURACY.name
        and sample.labels.get("kind") == "full"
        and sample.labels.get("split") == "validation"
    }
    if accuracies:
        ordered = [accuracies[index] for index in sorted(accuracies)]
        changes["accuracy"] = [f"{value:.4f}" for value in ordered]
        changes["estimated_acceptance_length"] = f"{1 + sum(ordered):.3f}"
    return training.model_copy(update=changes)
