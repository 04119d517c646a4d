"""The conditions, the phase and the summary that follow from the steps.

Conventions: Kubernetes API conventions, "Typical status properties". A condition's transition
time changes with its status only.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from drafter_operator.api.status import Condition, DrafterRunStatus, Phase, StepState
from drafter_operator.lifecycle.ledger import (
    DONE,
    EXPORT,
    EXTRACT,
    PREPARE,
    PROMOTE,
    SELECT,
    TRAIN,
    Ledger,
    benchmark_step,
    serve_step,
    timestamp,
)
from drafter_operator.lifecycle.observed import MissingReference
from drafter_operator.run import CandidateId, Run

RETRY_ANNOTATION = "drafters.dev/retry"


def fatal_step(ledger: Ledger) -> str | None:
    """Return the failed step that ends the run, if there is one.

    A depth that fails does not: the others are still compared. A baseline does, since nothing is
    left to compare with.
    """
    fatal = [PREPARE, EXTRACT, TRAIN, EXPORT, SELECT, PROMOTE]
    baseline = CandidateId(0)
    fatal += [serve_step(baseline), benchmark_step(baseline)]
    return next(
        (
            name
            for name, step in ledger.steps.items()
            if name in fatal and step.state is StepState.FAILED
        ),
        None,
    )


def conclude(ledger: Ledger, missing: Sequence[MissingReference]) -> None:
    """Set conditions, phase, present step and progress."""
    failed = fatal_step(ledger)
    complete = all(
        step.state in DONE or (step.state is StepState.FAILED and name != failed)
        for name, step in ledger.steps.items()
    )
    complete = complete and failed is None
    suspended = ledger.run.spec.suspend and not complete and failed is None
    _set_conditions(ledger, missing, failed, complete, suspended)
    started = any(step.state is not StepState.PENDING for step in ledger.steps.values())
    if failed:
        phase = Phase.FAILED
    elif complete:
        phase = Phase.SUCCEEDED
    elif suspended:
        phase = Phase.SUSPENDED
    else:
        phase = Phase.RUNNING if started else Phase.PENDING
    ended = sum(step.state in DONE for step in ledger.steps.values())
    ledger.set(
        phase=phase,
        step=failed or _present_step(ledger),
        progress=f"{ended}/{len(ledger.steps)}",
        steps=list(ledger.steps.values()),
        candidates=list(ledger.candidates.values()),
        observed_generation=ledger.run.generation,
    )


def blocked(run: Run, now: datetime, reason: str, message: str) -> DrafterRunStatus:
    """Return the status of a run that a pass could not look after, but for which all else holds."""
    ledger = Ledger(run, now)
    _set(ledger, "Progressing", False, reason, message)
    return ledger.status


def _present_step(ledger: Ledger) -> str | None:
    for wanted in (StepState.RUNNING, StepState.PENDING):
        for name, step in ledger.steps.items():
            if step.state is wanted:
                return name
    return None


def _set_conditions(
    ledger: Ledger,
    missing: Sequence[MissingReference],
    failed: str | None,
    complete: bool,
    suspended: bool,
) -> None:
    if missing:
        _set(ledger, "Accepted", False, missing[0].reason, "; ".join(m.message for m in missing))
    else:
        _set(ledger, "Accepted", True, "ReferencesFound", "everything the spec names exists")
    present = _present_step(ledger)
    if failed:
        step = ledger.steps[failed]
        reason, message = step.reason or "StepFailed", f"{failed} failed: {step.message}"
        message += (
            f". After the repair, retry with: kubectl annotate drafterrun {ledger.run.name}"
            f" --namespace {ledger.run.namespace} --overwrite {RETRY_ANNOTATION}=$(date +%s)"
        )
        _set(ledger, "Failed", True, reason, message)
        _set(ledger, "Progressing", False, reason, f"{failed} failed")
    else:
        _set(ledger, "Failed", False, "NoStepFailed", "no step that ends the run has failed")
        if complete:
            _set(ledger, "Progressing", False, "Complete", "every step is done")
        elif suspended:
            _set(ledger, "Progressing", False, "Suspended", "spec.suspend is true")
        elif missing:
            _set(ledger, "Progressing", False, missing[0].reason, missing[0].message)
        elif present is not None:
            step = ledger.steps[present]
            message = f"{present}: {step.message or 'pending'}"
            _set(ledger, "Progressing", True, step.reason or "StepPending", message)
    select = ledger.steps[SELECT]
    _set(
        ledger,
        "Complete",
        complete,
        (select.reason or "Complete") if complete else "NotComplete",
        (select.message or "every step is done") if complete else "steps are left to do",
    )
    _set(
        ledger,
        "Suspended",
        suspended,
        "SuspendedBySpec" if suspended else "NotSuspended",
        "spec.suspend is true; a promoted server goes on serving"
        if suspended
        else "the run is not suspended",
    )
    promote = ledger.steps[PROMOTE]
    promoted = ledger.status.promoted
    if promoted is not None:
        message = f"the Service {promoted.service} serves {promoted.candidate}"
        _set(ledger, "Promoted", True, "Promoted", message)
    else:
        selected = select.message if select.state in DONE else None
        waiting = promote.message if promote.state is StepState.RUNNING else None
        _set(
            ledger,
            "Promoted",
            False,
            (promote.reason if promote.state is not StepState.PENDING else None) or "NotYet",
            waiting or selected or "nothing is promoted yet",
        )


def _set(ledger: Ledger, kind: str, holds: bool, reason: str, message: str) -> None:
    known = {condition.type: condition for condition in ledger.status.conditions}
    before = known.get(kind)
    status = "True" if holds else "False"
    since = (
        before.last_transition_time
        if before is not None and before.status == status
        else timestamp(ledger.now)
    )
    known[kind] = Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=ledger.run.generation,
    )
    ledger.set(conditions=list(known.values()))
