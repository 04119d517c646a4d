"""What a user's wish for another try does to the steps."""

from __future__ import annotations

from drafter_operator.api.status import Candidate, StepState, TrainingStatus
from drafter_operator.lifecycle.conditions import RETRY_ANNOTATION
from drafter_operator.lifecycle.ledger import (
    PROMOTE,
    SELECT,
    TRAIN,
    Ledger,
    Transition,
)


def retry_if_asked(ledger: Ledger) -> None:
    """Set the failed steps and what follows from them back to Pending, once for each wish.

    A failed step gets a new attempt, so that its Job has a new name; finished work stays.
    """
    wish = ledger.run.annotations.get(RETRY_ANNOTATION)
    if wish is None or wish == ledger.status.retry:
        return
    ledger.set(retry=wish)
    failed = [name for name, step in ledger.steps.items() if step.state is StepState.FAILED]
    if not failed:
        return
    for name in failed:
        step = ledger.steps[name]
        ledger.move(name, StepState.PENDING, "Retried", "tried again on request")
        ledger.note(name, attempt=step.attempt + 1)
        _forget_candidate(ledger, name)
    for name, step in ledger.steps.items():
        follows = name in (SELECT, PROMOTE) or (
            step.state is StepState.SKIPPED and name.startswith("Benchmark-")
        )
        if follows and step.state is not StepState.PENDING:
            ledger.move(name, StepState.PENDING, "Retried")
    if TRAIN in failed and ledger.status.training is not None:
        length = ledger.status.training.packed_sequence_length
        ledger.set(training=TrainingStatus(packed_sequence_length=length))
    ledger.set(best=None)
    ledger.transitions.append(Transition("Retried", f"tries again: {', '.join(failed)}"))


def _forget_candidate(ledger: Ledger, step_name: str) -> None:
    kind, _, candidate_name = step_name.partition("-")
    if kind in ("Serve", "Benchmark") and candidate_name in ledger.candidates:
        depth = ledger.candidates[candidate_name].depth
        ledger.candidates[candidate_name] = Candidate(name=candidate_name, depth=depth)
