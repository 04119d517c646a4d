"""What the operator exports to Prometheus."""

from __future__ import annotations

from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from drafter_operator.api.status import DrafterRunStatus, Phase, StepState

REGISTRY = CollectorRegistry()

_RUN = ["namespace", "run"]

PHASE = Gauge("drafter_run_phase", "1 for the phase of a run.", [*_RUN, "phase"], registry=REGISTRY)
STEP_STATE = Gauge(
    "drafter_run_step_state",
    "1 for the state of a step.",
    [*_RUN, "step", "state"],
    registry=REGISTRY,
)
STEP_DURATION = Gauge(
    "drafter_run_step_duration_seconds",
    "Time a step took, or has taken so far.",
    [*_RUN, "step"],
    registry=REGISTRY,
)
STEP_PROGRESS = Gauge(
    "drafter_run_step_progress_ratio",
    "Work done of a running step, from 0 to 1.",
    [*_RUN, "step"],
    registry=REGISTRY,
)
TRAINING_LOSS = Gauge(
    "drafter_run_training_loss", "Loss of the last step.", _RUN, registry=REGISTRY
)
TRAINING_ACCURACY = Gauge(
    "drafter_run_training_accuracy_ratio",
    "Validation accuracy of a TTT step: right at it and at every earlier one.",
    [*_RUN, "ttt_step"],
    registry=REGISTRY,
)
ACCEPTANCE_LENGTH = Gauge(
    "drafter_run_candidate_acceptance_length",
    "Output tokens for each verify call in the benchmark.",
    [*_RUN, "candidate", "depth"],
    registry=REGISTRY,
)
THROUGHPUT = Gauge(
    "drafter_run_candidate_output_tokens_per_second",
    "Throughput in the benchmark.",
    [*_RUN, "candidate", "depth", "concurrency"],
    registry=REGISTRY,
)
RECONCILE_DURATION = Histogram(
    "drafter_operator_reconcile_duration_seconds", "Time of one pass.", registry=REGISTRY
)
RECONCILE_ERRORS = Counter(
    "drafter_operator_reconcile_errors", "Passes that failed.", ["kind"], registry=REGISTRY
)
API_REQUESTS = Counter(
    "drafter_operator_api_requests",
    "Requests to the Kubernetes API.",
    ["verb", "code"],
    registry=REGISTRY,
)
LAST_RESYNC = Gauge(
    "drafter_operator_last_resync_timestamp_seconds",
    "Time of the last listing of all runs.",
    registry=REGISTRY,
)
BUILD = Info("drafter_operator_build", "Version of the operator.", registry=REGISTRY)

_PER_RUN = (
    PHASE,
    STEP_STATE,
    STEP_DURATION,
    STEP_PROGRESS,
    TRAINING_LOSS,
    TRAINING_ACCURACY,
    ACCEPTANCE_LENGTH,
    THROUGHPUT,
)


def forget_run(namespace: str, run: str) -> None:
    """Remove the series of a run that is gone."""
    for metric in _PER_RUN:
        metric.remove_by_labels({"namespace": namespace, "run": run})


def show_run(namespace: str, run: str, status: DrafterRunStatus) -> None:
    """Set a run's series to its status; what the status no longer has goes."""
    forget_run(namespace, run)
    for phase in Phase:
        PHASE.labels(namespace, run, phase.value).set(phase is status.phase)
    for step in status.steps:
        for state in StepState:
            STEP_STATE.labels(namespace, run, step.name, state.value).set(state is step.state)
        if step.started_at is not None:
            end = (
                datetime.fromisoformat(step.finished_at) if step.finished_at else datetime.now(UTC)
            )
            seconds = (end - datetime.fromisoformat(step.started_at)).total_seconds()
            STEP_DURATION.labels(namespace, run, step.name).set(seconds)
        if step.progress is not None and step.progress.total:
            share = step.progress.done / step.progress.total
            STEP_PROGRESS.labels(namespace, run, step.name).set(share)
    if status.training is not None:
        if status.training.loss is not None:
            TRAINING_LOSS.labels(namespace, run).set(float(status.training.loss))
        for index, accuracy in enumerate(status.training.accuracy):
            TRAINING_ACCURACY.labels(namespace, run, str(index)).set(float(accuracy))
    for candidate in status.candidates:
        depth = str(candidate.depth)
        if candidate.acceptance_length is not None:
            ACCEPTANCE_LENGTH.labels(namespace, run, candidate.name, depth).set(
                float(candidate.acceptance_length)
            )
        for load in candidate.loads:
            THROUGHPUT.labels(namespace, run, candidate.name, depth, str(load.concurrency)).set(
                float(load.output_tokens_per_second)
            )
