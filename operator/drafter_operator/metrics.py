"""What the operator exports to Prometheus."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from drafter_jobs.contract.metrics import Kind, Metric
from drafter_operator.api.status import CandidateState, DrafterRunStatus, Phase, StepState
from drafter_operator.lifecycle.job_steps import failure_of
from drafter_operator.lifecycle.ledger import TRAIN
from drafter_operator.lifecycle.observed import JobState, Observed
from drafter_operator.run import Run

REGISTRY = CollectorRegistry()

_RUN = ("namespace", "run")
_CANDIDATE = (*_RUN, "candidate", "depth")
TRAINER = "speculators"
PERCENTILES = ("50", "95")

RUN_METRICS = (
    _INFO := Metric(
        "drafter_run_info",
        Kind.GAUGE,
        "1, with what the run is about.",
        (*_RUN, "target", "trainer", "depths"),
    ),
    _PHASE := Metric(
        "drafter_run_phase",
        Kind.GAUGE,
        "1 for the phase of a run, 0 for the others.",
        (*_RUN, "phase"),
    ),
    _STEP_STATE := Metric(
        "drafter_run_step_state",
        Kind.GAUGE,
        "1 for the state of a step, 0 for the others.",
        (*_RUN, "step", "state"),
    ),
    _STEP_REASON := Metric(
        "drafter_run_step_reason",
        Kind.GAUGE,
        "1 for the reason a step gives for its state, such as PodPending; from a fixed list.",
        (*_RUN, "step", "reason"),
    ),
    _STEP_DURATION := Metric(
        "drafter_run_step_duration_seconds",
        Kind.GAUGE,
        "Time a step took, or has taken so far.",
        (*_RUN, "step"),
    ),
    _STEP_REMAINING := Metric(
        "drafter_run_step_remaining_seconds",
        Kind.GAUGE,
        "Estimated time left of a running step.",
        (*_RUN, "step"),
    ),
    _LAST_PROGRESS := Metric(
        "drafter_run_last_progress_timestamp_seconds",
        Kind.GAUGE,
        "Unix time when a running run last came forward: a step changed or did some work.",
        _RUN,
    ),
    _CHECKPOINT_LOSS := Metric(
        "drafter_run_checkpoint_loss",
        Kind.GAUGE,
        "Validation loss of the checkpoint that is exported.",
        _RUN,
    ),
    _CHECKPOINT_ACCURACY := Metric(
        "drafter_run_checkpoint_accuracy_ratio",
        Kind.GAUGE,
        "Validation accuracy of the checkpoint that is exported: right at a TTT step and at every"
        " earlier one.",
        (*_RUN, "ttt_step"),
    ),
    _ACCEPTANCE_LENGTH := Metric(
        "drafter_run_candidate_acceptance_length",
        Kind.GAUGE,
        "Output tokens for each verify call in the benchmark.",
        _CANDIDATE,
    ),
    _ACCEPTANCE_RATE := Metric(
        "drafter_run_candidate_acceptance_ratio",
        Kind.GAUGE,
        "Accepted draft tokens over proposed ones in the benchmark.",
        _CANDIDATE,
    ),
    _THROUGHPUT := Metric(
        "drafter_run_candidate_output_tokens_per_second",
        Kind.GAUGE,
        "Throughput in the benchmark.",
        (*_CANDIDATE, "concurrency"),
    ),
    _TTFT := Metric(
        "drafter_run_candidate_time_to_first_token_seconds",
        Kind.GAUGE,
        "Time to the first token in the benchmark.",
        (*_CANDIDATE, "concurrency", "percentile"),
    ),
    _ITL := Metric(
        "drafter_run_candidate_inter_token_latency_seconds",
        Kind.GAUGE,
        "Time between two tokens in the benchmark.",
        (*_CANDIDATE, "concurrency", "percentile"),
    ),
    _SERVER_RESTARTS := Metric(
        "drafter_run_server_restarts",
        Kind.GAUGE,
        "Times the container of a candidate's present server restarted.",
        _CANDIDATE,
    ),
    _PROMOTED := Metric(
        "drafter_run_promoted", Kind.GAUGE, "1 for the candidate that is promoted.", _CANDIDATE
    ),
)
_RETRIES = Metric(
    "drafter_run_retries_total",
    Kind.COUNTER,
    "Times a step was tried again, by why the try before it ended; Requested: by a user.",
    (*_RUN, "step", "reason"),
)
OPERATOR_METRICS = (
    _RECONCILE_DURATION := Metric(
        "drafter_operator_reconcile_duration_seconds", Kind.HISTOGRAM, "Time of one pass."
    ),
    _RECONCILE_ERRORS := Metric(
        "drafter_operator_reconcile_errors_total",
        Kind.COUNTER,
        "Passes that failed, by kind of error.",
        ("kind",),
    ),
    _API_REQUESTS := Metric(
        "drafter_operator_api_requests_total",
        Kind.COUNTER,
        "Requests to the Kubernetes API by HTTP verb and status; none: without an answer.",
        ("verb", "code"),
    ),
    _QUEUE_DEPTH := Metric(
        "drafter_operator_queue_depth", Kind.GAUGE, "Runs that wait for a pass or are in one."
    ),
    _LAST_RESYNC := Metric(
        "drafter_operator_last_resync_timestamp_seconds",
        Kind.GAUGE,
        "Unix time of the last listing of all runs.",
    ),
    _LAST_WATCH_EVENT := Metric(
        "drafter_operator_watch_last_event_timestamp_seconds",
        Kind.GAUGE,
        "Unix time of the last event of a watch.",
        ("resource",),
    ),
    _BUILD := Metric(
        "drafter_operator_build_info", Kind.GAUGE, "1, with the operator's version.", ("version",)
    ),
)
EXPORTED = (*RUN_METRICS, _RETRIES, *OPERATOR_METRICS)
"""Every metric of the operator."""

_GAUGES = {metric.name: metric.gauge(REGISTRY) for metric in RUN_METRICS}
RETRIES = _RETRIES.counter(REGISTRY)
RECONCILE_DURATION = _RECONCILE_DURATION.histogram(REGISTRY)
RECONCILE_ERRORS = _RECONCILE_ERRORS.counter(REGISTRY)
API_REQUESTS = _API_REQUESTS.counter(REGISTRY)
QUEUE_DEPTH = _QUEUE_DEPTH.gauge(REGISTRY)
LAST_RESYNC = _LAST_RESYNC.gauge(REGISTRY)
LAST_WATCH_EVENT = _LAST_WATCH_EVENT.gauge(REGISTRY)
BUILD = _BUILD.gauge(REGISTRY)


@dataclasses.dataclass
class _Seen:
    """What tells progress and retries: metrics may forget it, decisions never read it."""

    work: object = None
    progressed_at: float = 0.0
    ended_pods: set[str] = dataclasses.field(default_factory=set)


_seen: dict[tuple[str, str], _Seen] = {}


def forget_run(namespace: str, run: str) -> None:
    """Remove the series of a run that is gone."""
    _seen.pop((namespace, run), None)
    RETRIES.remove_by_labels({"namespace": namespace, "run": run})
    _clear(namespace, run)


def _clear(namespace: str, run: str) -> None:
    for gauge in _GAUGES.values():
        gauge.remove_by_labels({"namespace": namespace, "run": run})


def show_run(
    run: Run,
    status: DrafterRunStatus,
    observed: Observed | None = None,
    now: datetime | None = None,
) -> None:
    """Set a run's series to its status; what the status no longer has goes.

    Parameters
    ----------
    run
        The run, with the status before this pass.
    status
        The status after it.
    observed
        The run's children as seen in this pass.
    """
    now = now or datetime.now(UTC)
    seen = _seen.setdefault((run.namespace, run.name), _Seen())
    observed = observed or Observed()
    _count_retries(run, status, observed.jobs, seen)
    _clear(run.namespace, run.name)

    def show(metric: Metric, value: float, *labels: str) -> None:
        _GAUGES[metric.name].labels(run.namespace, run.name, *labels).set(value)

    target = str(run.spec.target.hub_id or run.spec.target.path)
    depths = ",".join(map(str, run.spec.serving.depths))
    show(_INFO, 1, target, TRAINER, depths)
    for phase in Phase:
        show(_PHASE, phase is status.phase, phase.value)
    for step in status.steps:
        for state in StepState:
            show(_STEP_STATE, state is step.state, step.name, state.value)
        if step.reason is not None:
            show(_STEP_REASON, 1, step.name, step.reason)
        if step.started_at is not None:
            end = datetime.fromisoformat(step.finished_at) if step.finished_at else now
            seconds = (end - datetime.fromisoformat(step.started_at)).total_seconds()
            show(_STEP_DURATION, seconds, step.name)
        if step.progress is not None and step.progress.seconds_left is not None:
            show(_STEP_REMAINING, step.progress.seconds_left, step.name)
    work = [(s.name, s.state, s.attempt, s.progress and s.progress.done) for s in status.steps]
    if work != seen.work:
        seen.work, seen.progressed_at = work, now.timestamp()
    if status.phase is Phase.RUNNING:
        show(_LAST_PROGRESS, seen.progressed_at)
    trained = any(s.name == TRAIN and s.state is StepState.SUCCEEDED for s in status.steps)
    if status.training is not None and trained:
        if status.training.loss is not None:
            show(_CHECKPOINT_LOSS, float(status.training.loss))
        for index, accuracy in enumerate(status.training.accuracy):
            show(_CHECKPOINT_ACCURACY, float(accuracy), str(index))
    for candidate in status.candidates:
        identity = (candidate.name, str(candidate.depth))
        server = observed.servers.get(f"{run.name}-{candidate.name}")
        if server is not None and server.replicas:
            show(_SERVER_RESTARTS, sum(pod.restarts for pod in server.pods), *identity)
        if candidate.state is CandidateState.PROMOTED:
            show(_PROMOTED, 1, *identity)
        if candidate.acceptance_length is not None:
            show(_ACCEPTANCE_LENGTH, float(candidate.acceptance_length), *identity)
        if candidate.acceptance_rate is not None:
            show(_ACCEPTANCE_RATE, float(candidate.acceptance_rate), *identity)
        for load in candidate.loads:
            labels = (*identity, str(load.concurrency))
            show(_THROUGHPUT, float(load.output_tokens_per_second), *labels)
            first = (load.ttft_milliseconds_p50, load.ttft_milliseconds_p95)
            between = (load.itl_milliseconds_p50, load.itl_milliseconds_p95)
            for metric, values in ((_TTFT, first), (_ITL, between)):
                for percentile, milliseconds in zip(PERCENTILES, values, strict=True):
                    show(metric, float(milliseconds) / 1000, *labels, percentile)


def _count_retries(
    run: Run, status: DrafterRunStatus, jobs: Mapping[str, JobState], seen: _Seen
) -> None:
    before = {step.name: step for step in run.status.steps}
    for step in status.steps:
        known = before.get(step.name)
        reason = None
        if known is None:
            continue
        if known.state is StepState.FAILED and step.state in (StepState.PENDING, StepState.RUNNING):
            reason = "Requested"
        elif step.attempt > known.attempt:
            reason = step.reason or "Unknown"
        if reason:
            RETRIES.labels(run.namespace, run.name, step.name, reason).inc()
    for job in jobs.values():
        step_name = _step_of(run, job.name, status)
        for pod in job.pods:
            # A Pod that failed and has one after it was tried again by the Job.
            replaced = any(other.created_at > pod.created_at for other in job.pods)
            if pod.exit_code and replaced and step_name and pod.name not in seen.ended_pods:
                seen.ended_pods.add(pod.name)
                reason, _ = failure_of(dataclasses.replace(job, pods=(pod,)))
                RETRIES.labels(run.namespace, run.name, step_name, reason).inc()


def _step_of(run: Run, job: str, status: DrafterRunStatus) -> str | None:
    words = job.removeprefix(f"{run.name}-").rpartition("-")[0]
    return next((step.name for step in status.steps if step.name.lower() == words), None)
