"""What is promoted, and how the stable Service comes to point at it."""

from __future__ import annotations

from drafter_operator.api.spec import PromotionMode, Strategy
from drafter_operator.api.status import CandidateState, Promoted, StepState
from drafter_operator.lifecycle.ledger import PROMOTE, SELECT, Ledger, serve_step, timestamp
from drafter_operator.lifecycle.observed import Observed
from drafter_operator.resources import names, serving
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import CandidateId


def promoted_candidate(ledger: Ledger) -> CandidateId | None:
    """Return the candidate that the stable Service serves, if there is one."""
    promoted = ledger.status.promoted
    if promoted is None:
        return None
    return next(
        (found for found in ledger.run.candidates if found.name == promoted.candidate), None
    )


def chosen_candidate(ledger: Ledger) -> CandidateId | None:
    """Return the candidate to promote, or None while there is none.

    In mode Manual it is the one the user names, whatever the gates say of it, provided that it
    was measured.
    """
    promotion = ledger.run.spec.promotion
    if promotion.mode is PromotionMode.NEVER:
        return None
    best = ledger.status.best
    name = best.candidate if best else None
    if promotion.mode is PromotionMode.MANUAL:
        name = promotion.candidate
    return next(
        (
            candidate
            for candidate in ledger.run.candidates
            if candidate.depth
            and candidate.name == name
            and ledger.candidates[candidate.name].state is not CandidateState.FAILED
        ),
        None,
    )


def advance_promotion(ledger: Ledger, observed: Observed, settings: OperatorSettings) -> None:
    """Promote as the mode says, and keep what is promoted serving."""
    promoted, chosen = promoted_candidate(ledger), chosen_candidate(ledger)
    if chosen is not None and chosen != promoted:
        _switch(ledger, observed, chosen, settings)
    elif promoted is not None:
        _keep_serving(ledger, promoted, settings)
        ledger.desired.append(serving.stable_service(ledger.run, promoted))
        _finish(ledger, promoted)
    else:
        _explain_nothing_promoted(ledger)


def _explain_nothing_promoted(ledger: Ledger) -> None:
    promotion = ledger.run.spec.promotion
    if promotion.mode is PromotionMode.MANUAL:
        message = _advice(ledger)
        if ledger.steps[PROMOTE].state is StepState.RUNNING:
            ledger.note(PROMOTE, reason="AwaitingPromotion", message=message)
        else:
            ledger.move(PROMOTE, StepState.RUNNING, "AwaitingPromotion", message)
    elif ledger.is_final(PROMOTE):
        return
    elif promotion.mode is PromotionMode.NEVER:
        ledger.move(PROMOTE, StepState.SKIPPED, "PromotionNever", "promotion.mode is Never")
    else:
        reason = ledger.steps[SELECT].reason or "NoCandidateEligible"
        ledger.move(PROMOTE, StepState.SKIPPED, reason, "nothing is promoted")


def _advice(ledger: Ledger) -> str:
    named, best = ledger.run.spec.promotion.candidate, ledger.status.best
    if named is None:
        measured = f" ({best.candidate} measured best)" if best else " (none is eligible)"
        return f"waits until promotion.candidate names a depth{measured}"
    known = ledger.candidates.get(named)
    if known is None:
        depths = ", ".join(found.name for found in ledger.run.candidates if found.depth)
        return f"promotion.candidate {named} is not one of the run's depths: {depths}"
    return f"promotion.candidate {named} cannot be promoted, it failed: {known.message}"


def _switch(
    ledger: Ledger, observed: Observed, chosen: CandidateId, settings: OperatorSettings
) -> None:
    run, promoted = ledger.run, promoted_candidate(ledger)
    if run.spec.suspend:
        return
    if ledger.steps[PROMOTE].state is not StepState.RUNNING:
        ledger.move(PROMOTE, StepState.RUNNING, "ServerStarting", f"starts {chosen.name} again")
    if run.spec.serving.strategy is Strategy.SEQUENTIAL:
        # The GPUs are there for one server: the winner starts when every other one is gone, a
        # promoted one too.
        for other in run.candidates:
            server = observed.servers.get(names.server_name(run, other))
            if other != chosen and server is not None and not server.is_stopped:
                ledger.note(PROMOTE, message=f"waits until {server.name} is gone")
                return
    elif promoted is not None:
        _keep_serving(ledger, promoted, settings)
    _keep_serving(ledger, chosen, settings)
    server = observed.servers.get(names.server_name(run, chosen))
    if server is None or not server.ready:
        pod = server.newest_pod if server else None
        words = pod and (pod.last_words or pod.waiting)
        ledger.note(PROMOTE, message=words or f"{chosen.name} loads the model")
        return
    if promoted is not None:
        ledger.change_candidate(promoted, state=CandidateState.MEASURED)
    ledger.change_candidate(chosen, state=CandidateState.PROMOTED)
    ledger.desired.append(serving.stable_service(run, chosen))
    ledger.set(
        promoted=Promoted(
            candidate=chosen.name,
            service=names.stable_service_name(run),
            drafter_path=str(names.Paths(run).drafter.relative_to(names.DATA_MOUNT)),
            promoted_at=timestamp(ledger.now),
        )
    )
    _finish(ledger, chosen)


def _finish(ledger: Ledger, promoted: CandidateId) -> None:
    if ledger.steps[PROMOTE].state is not StepState.SUCCEEDED:
        message = f"the Service {names.stable_service_name(ledger.run)} serves {promoted.name}"
        ledger.move(PROMOTE, StepState.SUCCEEDED, "Promoted", message)


def _keep_serving(ledger: Ledger, candidate: CandidateId, settings: OperatorSettings) -> None:
    ledger.desired.append(serving.deployment(ledger.run, candidate, 1, settings))
    ledger.desired.append(serving.candidate_service(ledger.run, candidate))


def kept_candidates(ledger: Ledger) -> set[CandidateId]:
    """Return the candidates that stay up: the promoted one, and the one about to be."""
    promoted, chosen = promoted_candidate(ledger), chosen_candidate(ledger)
    kept = {promoted} if promoted is not None else set()
    switching = (
        ledger.steps[PROMOTE].state is StepState.RUNNING
        and chosen is not None
        and chosen != promoted
        and not ledger.run.spec.suspend
    )
    if not switching or chosen is None:
        return kept
    if ledger.run.spec.serving.strategy is Strategy.SEQUENTIAL:
        return {chosen}
    return kept | {chosen}


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
