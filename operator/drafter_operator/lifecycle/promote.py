"""What is promoted, and how the stable Service comes to point at it."""

from __future__ import annotations

from drafter_operator.api.spec import PromotionMode
from drafter_operator.api.status import CandidateState, Promoted, StepState
from drafter_operator.lifecycle.ledger import PROMOTE, Ledger, serve_step, timestamp
from drafter_operator.lifecycle.observed import Observed
from drafter_operator.resources import names, serving
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import CandidateId


def chosen_candidate(ledger: Ledger) -> CandidateId | None:
    """Return the candidate to promote, or None while there is none.

    In mode Manual it is the one the user names, whatever the gates say of it, provided that it
    was measured.
    """
    promotion = ledger.run.spec.promotion
    if promotion.mode is PromotionMode.MANUAL:
        return next(
            (
                candidate
                for candidate in ledger.run.candidates
                if candidate.depth and candidate.name == promotion.candidate
            ),
            None,
        )
    best = ledger.status.best
    return CandidateId(best.depth) if best else None


def advance_promotion(ledger: Ledger, observed: Observed, settings: OperatorSettings) -> None:
    """Promote as the mode says, and keep what is promoted serving."""
    promotion = ledger.run.spec.promotion
    if promotion.mode is PromotionMode.NEVER:
        if not ledger.is_final(PROMOTE):
            ledger.move(PROMOTE, StepState.SKIPPED, "PromotionNever", "promotion.mode is Never")
        return
    candidate = chosen_candidate(ledger)
    if candidate is None:
        if promotion.mode is PromotionMode.MANUAL:
            _await_choice(ledger)
        elif not ledger.is_final(PROMOTE):
            reason = ledger.steps["Select"].reason or "NoCandidateEligible"
            ledger.move(PROMOTE, StepState.SKIPPED, reason, "nothing is promoted")
        return
    if ledger.candidates[candidate.name].state is CandidateState.FAILED:
        failed = ledger.candidates[candidate.name].message
        ledger.note(PROMOTE, reason="CandidateFailed", message=f"{candidate.name}: {failed}")
        return
    _serve_promoted(ledger, observed, candidate, settings)


def _await_choice(ledger: Ledger) -> None:
    named = ledger.run.spec.promotion.candidate
    best = ledger.status.best
    advice = f" ({best.candidate} measured best)" if best else " (none is eligible)"
    message = (
        f"promotion.candidate {named} is not one of the run's depths"
        if named
        else f"waits until promotion.candidate names a depth{advice}"
    )
    if ledger.steps[PROMOTE].state is StepState.PENDING:
        ledger.move(PROMOTE, StepState.RUNNING, "AwaitingPromotion", message)
    else:
        ledger.note(PROMOTE, reason="AwaitingPromotion", message=message)


def _serve_promoted(
    ledger: Ledger, observed: Observed, candidate: CandidateId, settings: OperatorSettings
) -> None:
    run = ledger.run
    promoted = ledger.status.promoted
    if promoted is not None and promoted.candidate == candidate.name:
        _keep_serving(ledger, candidate, settings)
        return
    if run.spec.suspend:
        return
    if ledger.steps[PROMOTE].state is not StepState.RUNNING:
        ledger.move(PROMOTE, StepState.RUNNING, "ServerStarting", f"starts {candidate.name} again")
    in_the_way = [
        server
        for other in run.candidates
        if other != candidate
        and (server := observed.servers.get(names.server_name(run, other))) is not None
        and not server.is_stopped
    ]
    # With sequential GPUs the winner starts when the last candidate is gone; when the promoted
    # candidate changes, the old one serves until the new one is ready only if both fit.
    if in_the_way and run.spec.serving.strategy == "Sequential":
        ledger.note(PROMOTE, message=f"waits until {in_the_way[0].name} is gone")
        return
    _keep_serving(ledger, candidate, settings, with_service=False)
    server = observed.servers.get(names.server_name(run, candidate))
    if server is None or not server.ready:
        pod = max(server.pods, key=lambda found: found.created_at, default=None) if server else None
        if pod is not None and (pod.waiting or pod.last_words):
            ledger.note(PROMOTE, message=pod.last_words or pod.waiting)
        return
    ledger.desired.append(serving.stable_service(run, candidate))
    for name, known in ledger.candidates.items():
        state = CandidateState.PROMOTED if name == candidate.name else known.state
        if name != candidate.name and state is CandidateState.PROMOTED:
            state = CandidateState.MEASURED
        ledger.candidates[name] = known.model_copy(update={"state": state})
    ledger.set(
        promoted=Promoted(
            candidate=candidate.name,
            service=names.stable_service_name(run),
            drafter_path=str(names.Paths(run).drafter.relative_to(names.DATA_MOUNT)),
            promoted_at=timestamp(ledger.now),
        )
    )
    ledger.move(
        PROMOTE,
        StepState.SUCCEEDED,
        "Promoted",
        f"the Service {names.stable_service_name(run)} serves {candidate.name}",
    )


def _keep_serving(
    ledger: Ledger, candidate: CandidateId, settings: OperatorSettings, *, with_service: bool = True
) -> None:
    run = ledger.run
    ledger.desired.append(serving.deployment(run, candidate, 1, settings))
    ledger.desired.append(serving.candidate_service(run, candidate))
    if with_service:
        ledger.desired.append(serving.stable_service(run, candidate))


def promoted_candidate(ledger: Ledger) -> CandidateId | None:
    """Return the candidate that stays up: promoted, or about to be."""
    promoted = ledger.status.promoted
    if promoted is not None:
        return next(
            (found for found in ledger.run.candidates if found.name == promoted.candidate), None
        )
    if ledger.steps[PROMOTE].state is StepState.RUNNING and not ledger.run.spec.suspend:
        return chosen_candidate(ledger)
    return None


def active_candidates(ledger: Ledger) -> set[CandidateId]:
    """Return the candidates whose servers this pass wants up."""
    if ledger.run.spec.suspend:
        return set()
    return {
        candidate
        for candidate in ledger.run.candidates
        if ledger.steps[serve_step(candidate)].state is not StepState.FAILED
        and any(
            wanted["kind"] == "Deployment"
            and wanted["metadata"]["name"] == names.server_name(ledger.run, candidate)
            for wanted in ledger.desired
        )
    }
