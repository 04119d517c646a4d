"""Which candidates are served now, how each is measured, and when one has failed."""

from __future__ import annotations

from datetime import datetime

from drafter_jobs.contract.outcome import Reason
from drafter_operator.api.spec import Strategy
from drafter_operator.api.status import CandidateState, StepState
from drafter_operator.lifecycle.job_steps import advance_job
from drafter_operator.lifecycle.ledger import Ledger, benchmark_step, serve_step
from drafter_operator.lifecycle.observed import Observed, PodState, ServerState
from drafter_operator.lifecycle.promote import promoted_candidate
from drafter_operator.lifecycle.results import record_benchmark
from drafter_operator.resources import jobs, names, serving
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import CandidateId

CRASHES = 3
"""Restarts after which a server that was never ready is given up."""

SERVER_FAULTS = (Reason.SERVER_UNREACHABLE, Reason.SERVER_RESTARTED, Reason.REQUESTS_FAILED)
"""Reasons of a failed benchmark that the server's own last words explain."""


def is_measured_or_failed(ledger: Ledger, candidate: CandidateId) -> bool:
    """Whether nothing is left to do for a candidate."""
    return ledger.is_final(serve_step(candidate)) and ledger.is_final(benchmark_step(candidate))


def advance_candidates(ledger: Ledger, observed: Observed, settings: OperatorSettings) -> bool:
    """Serve and measure the candidates, one at a time or all at once.

    Returns
    -------
    bool
        Whether every candidate is measured or has failed.
    """
    sequential = ledger.run.spec.serving.strategy is Strategy.SEQUENTIAL
    for candidate in ledger.run.candidates:
        if is_measured_or_failed(ledger, candidate):
            continue
        if sequential and not _others_stopped(ledger, observed, candidate):
            ledger.note(serve_step(candidate), message="waits until the server before it is gone")
            break
        _advance(ledger, observed, candidate, settings)
        if sequential and not is_measured_or_failed(ledger, candidate):
            break
        if not candidate.depth and _baseline_failed(ledger):
            break
    return all(is_measured_or_failed(ledger, candidate) for candidate in ledger.run.candidates)


def _baseline_failed(ledger: Ledger) -> bool:
    baseline = CandidateId(0)
    return any(
        ledger.steps[step(baseline)].state is StepState.FAILED
        for step in (serve_step, benchmark_step)
    )


def _others_stopped(ledger: Ledger, observed: Observed, candidate: CandidateId) -> bool:
    """Whether the GPUs of one server are free; a promoted server keeps its own."""
    return all(
        server.is_stopped
        for other in ledger.run.candidates
        if other not in (candidate, promoted_candidate(ledger))
        and (server := observed.servers.get(names.server_name(ledger.run, other))) is not None
    )


def _advance(
    ledger: Ledger, observed: Observed, candidate: CandidateId, settings: OperatorSettings
) -> None:
    if ledger.run.spec.suspend:
        _suspend(ledger, observed, candidate, settings)
        return
    server = observed.servers.get(names.server_name(ledger.run, candidate))
    ledger.desired.append(serving.deployment(ledger.run, candidate, 1, settings))
    ledger.desired.append(serving.candidate_service(ledger.run, candidate))
    if not ledger.is_final(serve_step(candidate)):
        _await_ready(ledger, candidate, server)
    if ledger.is_done(serve_step(candidate)) and _baseline_measured(ledger, candidate):
        _measure(ledger, observed, candidate, settings)


def _suspend(
    ledger: Ledger, observed: Observed, candidate: CandidateId, settings: OperatorSettings
) -> None:
    _measure(ledger, observed, candidate, settings)
    step = ledger.steps[serve_step(candidate)]
    if ledger.is_final(benchmark_step(candidate)) or step.state is StepState.PENDING:
        return
    # After the resume the server has to become ready anew, with all its time to do so.
    ledger.move(step.name, StepState.PENDING, "Suspended", "suspended")
    ledger.change_candidate(candidate, state=CandidateState.PENDING)


def _measure(
    ledger: Ledger, observed: Observed, candidate: CandidateId, settings: OperatorSettings
) -> None:
    run = ledger.run
    advance_job(
        ledger,
        observed,
        benchmark_step(candidate),
        lambda attempt, suspended: jobs.benchmark_job(run, candidate, attempt, suspended, settings),
        lambda book, result: record_benchmark(book, candidate, result),
    )
    step = ledger.steps[benchmark_step(candidate)]
    if step.state is StepState.RUNNING and not run.spec.suspend:
        ledger.change_candidate(candidate, state=CandidateState.BENCHMARKING)
    elif step.state is StepState.FAILED:
        message = step.message or ""
        server = observed.servers.get(names.server_name(run, candidate))
        words = _last_words(server.newest_pod) if server is not None else ""
        if step.reason in SERVER_FAULTS and words:
            message = f"{message}; the server's last words: {words}"
            ledger.note(step.name, message=message)
        _disqualify(ledger, candidate, step.reason or "BenchmarkFailed", message)


def _baseline_measured(ledger: Ledger, candidate: CandidateId) -> bool:
    """Whether the outputs to compare with exist already."""
    baseline = benchmark_step(CandidateId(0))
    return not candidate.depth or baseline not in ledger.steps or ledger.is_done(baseline)


def _last_words(pod: PodState | None) -> str:
    return pod.last_words if pod is not None else ""


def _await_ready(ledger: Ledger, candidate: CandidateId, server: ServerState | None) -> None:
    name = serve_step(candidate)
    if ledger.steps[name].state is StepState.PENDING:
        ledger.move(name, StepState.RUNNING, "ServerStarting", "the Deployment was created")
        ledger.change_candidate(candidate, state=CandidateState.STARTING)
    if server is None:
        return
    if server.ready:
        ledger.move(name, StepState.SUCCEEDED, "ServerReady", "the server is ready")
        return
    pod = server.newest_pod
    if pod is None:
        ledger.note(name, reason="PodPending", message="waits for its Pod")
        return
    words = _last_words(pod) or pod.waiting or ""
    if pod.restarts >= CRASHES:
        _serve_failed(
            ledger,
            candidate,
            "ServerCrashed",
            f"the server ended {pod.restarts} times before it was ready; its last words: {words}",
        )
        return
    timeout = ledger.run.spec.serving.startup_timeout_seconds
    if _seconds_started(ledger, name, pod) > timeout:
        _serve_failed(
            ledger,
            candidate,
            "ServerNotReady",
            f"the server was not ready within serving.startupTimeoutSeconds {timeout}"
            + (f": {words}" if words else ""),
        )
        return
    reason = "PodPending" if pod.waiting else "ServerStarting"
    ledger.note(name, reason=reason, message=words or "the server loads the model")


def _seconds_started(ledger: Ledger, step_name: str, pod: PodState) -> float:
    """Return how long a server has had to start; the wait for a node's GPUs does not count."""
    began = ledger.steps[step_name].started_at
    if pod.started_at is None or began is None:
        return 0.0
    return (ledger.now - max(pod.started_at, datetime.fromisoformat(began))).total_seconds()


def _serve_failed(ledger: Ledger, candidate: CandidateId, reason: str, message: str) -> None:
    ledger.move(serve_step(candidate), StepState.FAILED, reason, message)
    ledger.move(
        benchmark_step(candidate), StepState.SKIPPED, "NotServed", "its server never became ready"
    )
    _disqualify(ledger, candidate, reason, message)


def _disqualify(ledger: Ledger, candidate: CandidateId, reason: str, message: str) -> None:
    ledger.change_candidate(
        candidate, state=CandidateState.FAILED, eligible=False, reason=reason, message=message
    )
