"""Which candidate wins: the highest throughput among those that pass every gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from drafter_operator.api.spec import DrafterRunSpec
from drafter_operator.api.status import Best, Candidate, CandidateState, LoadStatus

NO_SPECULATION = 1.1
"""An acceptance length below this says that practically no draft token was right.

The first token of a response is verified by no call, so that short responses without any accepted
token measure 1.04 or so.
"""

LIKELY_CAUSES = (
    "the drafter and the target do not fit together; likely causes: weight names the engine"
    " ignores (layers.0.* for midlayer.*), auxiliary layers captured one off, norm_before_residual,"
    " a wrong or missing d2t map, or EAGLE instead of EAGLE3"
)


@dataclasses.dataclass(frozen=True)
class Selection:
    """The outcome of the comparison.

    Attributes
    ----------
    candidates
        All of them, with eligibility and reasons.
    """

    candidates: tuple[Candidate, ...]
    best: Best | None
    reason: str
    message: str


def objective_concurrency(spec: DrafterRunSpec) -> int:
    """Return the concurrency whose throughput decides."""
    return spec.benchmark.objective_concurrency or min(spec.benchmark.concurrencies)


def load_at(candidate: Candidate, concurrency: int) -> LoadStatus | None:
    """Return a candidate's figures at one concurrency."""
    return next((load for load in candidate.loads if load.concurrency == concurrency), None)


def select(spec: DrafterRunSpec, candidates: Sequence[Candidate]) -> Selection:
    """Judge every candidate and choose the best.

    Parameters
    ----------
    spec
        With the gates: minimum acceptance length, minimum speed-up.
    candidates
        Measured or failed.
    """
    concurrency = objective_concurrency(spec)
    baseline = next((found for found in candidates if found.depth == 0), None)
    judged = tuple(
        _judge(spec, candidate, baseline, concurrency) if candidate.depth else candidate
        for candidate in candidates
    )
    eligible = [found for found in judged if found.eligible]
    if not eligible:
        return _nothing_selected(judged, concurrency)

    def rank(candidate: Candidate) -> tuple[float, int]:
        load = load_at(candidate, concurrency)
        assert load is not None, "an eligible candidate was measured at the objective"
        return -float(load.output_tokens_per_second), candidate.depth

    winner = min(eligible, key=rank)
    load = load_at(winner, concurrency)
    assert load is not None and winner.acceptance_length is not None
    against = f", {load.speedup} times the baseline's" if load.speedup else ""
    message = (
        f"{winner.name} has the highest throughput of {len(eligible)} eligible candidates:"
        f" {load.output_tokens_per_second} output tokens/s at concurrency {concurrency}{against},"
        f" with acceptance length {winner.acceptance_length}"
    )
    best = Best(
        candidate=winner.name,
        depth=winner.depth,
        acceptance_length=winner.acceptance_length,
        speedup=load.speedup,
        output_tokens_per_second=load.output_tokens_per_second,
        message=message,
    )
    return Selection(judged, best, "Selected", message)


def _nothing_selected(judged: tuple[Candidate, ...], concurrency: int) -> Selection:
    depths = [candidate for candidate in judged if candidate.depth]
    if all(candidate.state is CandidateState.FAILED for candidate in depths):
        reasons = "; ".join(f"{found.name}: {found.message}" for found in depths)
        return Selection(judged, None, "NoCandidateMeasured", f"no candidate ran: {reasons}")
    refusals = "; ".join(f"{found.name}: {found.message}" for found in depths)
    if all(found.reason == "TooSlow" for found in depths if found.state != CandidateState.FAILED):
        return Selection(
            judged,
            None,
            "NoCandidateBeatsBaseline",
            f"no candidate beats the baseline at concurrency {concurrency} by the asked margin:"
            f" {refusals}. Nothing is promoted; promotion.minimumSpeedup can be lowered",
        )
    return Selection(judged, None, "NoCandidateEligible", f"no candidate is eligible: {refusals}")


def _judge(
    spec: DrafterRunSpec, candidate: Candidate, baseline: Candidate | None, concurrency: int
) -> Candidate:
    if candidate.state is CandidateState.FAILED:
        return candidate.model_copy(update={"eligible": False})
    refusal = _refusal(spec, candidate, baseline, concurrency)
    if refusal is None:
        return candidate.model_copy(update={"eligible": True, "reason": None, "message": None})
    reason, message = refusal
    return candidate.model_copy(update={"eligible": False, "reason": reason, "message": message})


def _refusal(
    spec: DrafterRunSpec, candidate: Candidate, baseline: Candidate | None, concurrency: int
) -> tuple[str, str] | None:
    """Return why a measured candidate is not eligible."""
    if candidate.acceptance_length is None:
        return "NotMeasured", "the server's counters gave no acceptance length"
    length = float(candidate.acceptance_length)
    minimum = float(spec.benchmark.minimum_acceptance_length)
    if length < minimum:
        causes = f"; {LIKELY_CAUSES}" if length < NO_SPECULATION else ""
        return (
            "AcceptanceTooLow",
            f"acceptance length {candidate.acceptance_length} is below"
            f" benchmark.minimumAcceptanceLength {minimum:g}{causes}",
        )
    if candidate.outputs_equal is False:
        return (
            "OutputsDiffer",
            f"{candidate.outputs_different} of {candidate.outputs_compared} greedy outputs differ"
            " from the baseline's: speculation must not change what the target says",
        )
    loops = (candidate.degenerate_outputs or 0) - ((baseline and baseline.degenerate_outputs) or 0)
    if loops > 0:
        return (
            "OutputsDegenerate",
            f"{loops} outputs run in a loop that the baseline's do not: their acceptance length"
            " says nothing",
        )
    load = load_at(candidate, concurrency)
    if load is None:
        return "NotMeasured", f"there is no result at concurrency {concurrency}"
    margin = float(spec.promotion.minimum_speedup)
    if load.speedup is not None and float(load.speedup) < margin:
        return (
            "TooSlow",
            f"{load.speedup} times the baseline's throughput at concurrency {concurrency}, below"
            f" promotion.minimumSpeedup {margin:g}",
        )
    return None
