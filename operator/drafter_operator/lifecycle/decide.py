"""The one decision of the operator: from a run and what is observed to what is wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from drafter_operator.api.status import DrafterRunStatus, StepState
from drafter_operator.lifecycle.candidates import advance_candidates
from drafter_operator.lifecycle.conditions import conclude, fatal_step
from drafter_operator.lifecycle.job_steps import advance_job, packed_sequence_length
from drafter_operator.lifecycle.ledger import (
    EXPORT,
    EXTRACT,
    PREPARE,
    SELECT,
    TRAIN,
    Ledger,
    Patch,
    Transition,
)
from drafter_operator.lifecycle.observed import Observed
from drafter_operator.lifecycle.promote import (
    active_candidates,
    advance_promotion,
    kept_candidates,
)
from drafter_operator.lifecycle.results import (
    record_export,
    record_extract,
    record_prepare,
    record_train,
)
from drafter_operator.lifecycle.retry import retry_if_asked
from drafter_operator.lifecycle.select import select
from drafter_operator.resources import claims, jobs, names
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import Run


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a pass wants.

    Attributes
    ----------
    desired
        Objects to apply, in order.
    patches
        Merge patches of existing children.
    status
        The status to write if it differs from the recorded one.
    transitions
        What deserves an Event.
    """

    desired: Sequence[dict[str, Any]]
    patches: Sequence[Patch]
    status: DrafterRunStatus
    transitions: Sequence[Transition]


def decide(run: Run, observed: Observed, now: datetime, settings: OperatorSettings) -> Decision:
    """Decide what the children and the status of a run should be.

    Level-triggered: nothing is remembered between passes but what the status records, and a
    second pass over the same observation wants nothing new.

    Parameters
    ----------
    run
        The run with its last written status.
    observed
        Its children and what it refers to.
    now
        Time of the pass.
    settings
        What the administrator set.
    """
    ledger = Ledger(run, now)
    ledger.set(work_directory=run.work_directory, claim_name=names.claim_name(run))
    retry_if_asked(ledger)
    if fatal_step(ledger) is not None:
        _stop_idle_servers(ledger, observed)
    elif not observed.missing:
        _advance(ledger, observed, settings)
        _stop_idle_servers(ledger, observed)
    conclude(ledger, observed.missing)
    return Decision(ledger.desired, ledger.patches, ledger.status, ledger.transitions)


def _advance(ledger: Ledger, observed: Observed, settings: OperatorSettings) -> None:
    run = ledger.run
    claim = claims.claim(run)
    if claim is not None:
        ledger.desired.append(claim)
    if not advance_job(
        ledger,
        observed,
        PREPARE,
        lambda attempt, suspended: jobs.prepare_job(run, attempt, suspended, settings),
        record_prepare,
    ):
        return
    if not advance_job(
        ledger,
        observed,
        EXTRACT,
        lambda attempt, suspended: jobs.extract_job(run, attempt, suspended, settings),
        record_extract,
    ):
        return
    service = jobs.train_service(run)
    if service is not None and not ledger.is_done(TRAIN):
        ledger.desired.append(service)
    if not advance_job(
        ledger,
        observed,
        TRAIN,
        lambda attempt, suspended: jobs.train_job(
            run, attempt, suspended, settings, packed_sequence_length(ledger)
        ),
        record_train,
    ):
        return
    if not advance_job(
        ledger,
        observed,
        EXPORT,
        lambda attempt, suspended: jobs.export_job(run, attempt, suspended, settings),
        record_export,
    ):
        return
    if not advance_candidates(ledger, observed, settings):
        return
    _select(ledger)
    if ledger.is_done(SELECT):
        advance_promotion(ledger, observed, settings)


def _select(ledger: Ledger) -> None:
    if ledger.is_final(SELECT):
        return
    selection = select(ledger.run.spec, list(ledger.candidates.values()))
    ledger.candidates = {candidate.name: candidate for candidate in selection.candidates}
    ledger.set(best=selection.best)
    failed = selection.reason == "NoCandidateMeasured"
    state = StepState.FAILED if failed else StepState.SUCCEEDED
    ledger.move(SELECT, StepState.RUNNING, "Selecting")
    ledger.move(SELECT, state, selection.reason, selection.message)


def _stop_idle_servers(ledger: Ledger, observed: Observed) -> None:
    """Scale to zero every server that is neither being measured nor promoted."""
    wanted = active_candidates(ledger) | kept_candidates(ledger)
    for candidate in ledger.run.candidates:
        name = names.server_name(ledger.run, candidate)
        server = observed.servers.get(name)
        if server is None or candidate in wanted:
            continue
        if server.replicas:
            ledger.patches.append(Patch("Deployment", name, {"spec": {"replicas": 0}}))
