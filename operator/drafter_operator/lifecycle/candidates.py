"""Which candidates are served now, how each is measured, and when one has failed."""

from __future__ import annotations

from datetime import datetime

from drafter_operator.api.spec import Strategy
from drafter_operator.api.status import CandidateState, StepState
from drafter_operator.lifecycle.job_steps import advance_job
from drafter_operator.lifecycle.ledger import Ledger, benchmark_step, serve_step
from drafter_operator.lifecycle.observed import Observed, ServerState
from drafter_operator.lifecycle.results import record_benchmark
from drafter_operator.resources import jobs, names, serving
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import CandidateId

CRASHES = 3
"""Restarts after which a server that was never ready is given up."""


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
    return all(
        server.is_stopped
        for other in ledger.run.candidates
        if other != candidate
        and (server := observed.servers.get(names.server_name(ledger.run, other))) is not None
    )


def _advance(
    ledger: Ledger, observed: Observed, candidate: CandidateId, settings: OperatorSettings
) -> None:
    run = ledger.run
    server = observed.servers.get(names.server_name(run, candidate))
    if run.spec.suspend:
        if ledger.steps[serve_step(candidate)].state is StepState.RUNNING:
            # The time a suspended server is away must not count as time to start.
            ledger.move(serve_step(candidate), StepState.PENDING, "Suspended", "suspended")
    else:
        ledger.desired.append(serving.deployment(run, candidate, 1, settings))
        ledger.desired.append(serving.candidate_service(run, candidate))
        if not ledger.is_final(serve_step(candidate)):
            _await_ready(ledger, candidate, server)
    if not ledger.is_done(serve_step(candidate)) or not _baseline_measured(ledger, candidate):
        return
    advance_job(
        ledger,
        observed,
        benchmark_step(candidate),
        lambda attempt, suspended: jobs.benchmark_job(run, candidate, attempt, suspended, settings),
        lambda book, result: record_benchmark(book, candidate, result),
    )
    step = ledger.steps[benchmark_step(candidate)]
    if step.state is StepState.RUNNING:
        ledger.change_candidate(candidate, state=CandidateState.BENCHMARKING)
    elif step.state is StepState.FAILED:
        _disqualify(ledger, candidate, step.reason or "BenchmarkFailed", step.message or "")


def _baseline_measured(ledger: Ledger, candidate: CandidateId) -> bool:
    """Whether the outputs to compare with exist already."""
    baseline = benchmark_step(CandidateId(0))
    return not candidate.depth or baseline not in ledger.steps or ledger.is_done(baseline)


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
    pod = max(server.pods, key=lambda found: found.created_at, default=None)
    words = (pod.last_words if pod else "") or (pod.waiting if pod else "") or ""
    if pod is not None and pod.restarts >= CRASHES:
        _serve_failed(
            ledger,
            candidate,
            "ServerCrashed",
            f"the server ended {pod.restarts} times before it was ready; its last words: {words}",
        )
        return
    timeout = ledger.run.spec.serving.startup_timeout_seconds
    started = ledger.steps[name].started_at
    if (
        started is not None
        and (ledger.now - datetime.fromisoformat(started)).total_seconds() > timeout
    ):
        _serve_failed(
            ledger,
            candidate,
            "ServerNotReady",
            f"the server was not ready within serving.startupTimeoutSeconds {timeout}"
            + (f": {words}" if words else ""),
        )
        return
    message = words or "the server loads the model"
    reason = "PodPending" if pod and pod.waiting else "ServerStarting"
    ledger.note(name, reason=reason, message=message)


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
