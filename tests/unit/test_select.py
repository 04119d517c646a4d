"""Which candidate wins, and why another does not."""

from __future__ import annotations

from typing import Any

import pytest
from lifecycle_world import SPEC, merged

from drafter_operator.api.spec import DrafterRunSpec
from drafter_operator.api.status import Candidate
from drafter_operator.lifecycle.select import select


def load(concurrency: int, rate: str, speedup: str | None) -> dict[str, Any]:
    return {
        "concurrency": concurrency,
        "outputTokensPerSecond": rate,
        "speedup": speedup,
        "ttftMillisecondsP50": "1",
        "ttftMillisecondsP95": "1",
        "itlMillisecondsP50": "1",
        "itlMillisecondsP95": "1",
    }


def candidate(depth: int, rate: str = "100", **changes: Any) -> Candidate:
    """Return a candidate that passes every gate, against a baseline of 100 tokens/s."""
    speedup = f"{float(rate) / 100:.3f}" if depth else None
    found: dict[str, Any] = {
        "name": f"depth-{depth}" if depth else "baseline",
        "depth": depth,
        "state": "Measured",
        "loads": [load(1, rate, speedup), load(8, rate, speedup)],
        "degenerateOutputs": 0,
    }
    if depth:
        found |= {"acceptanceLength": "2.0", "outputsEqual": True, "outputsCompared": 8}
    return Candidate.model_validate(found | changes)


def spec(**changes: Any) -> DrafterRunSpec:
    return DrafterRunSpec.model_validate(
        merged(SPEC, {"benchmark": {"concurrencies": [8, 1]}, **changes})
    )


BASELINE = candidate(0)


def test_the_highest_throughput_wins_not_the_highest_acceptance() -> None:
    selection = select(
        spec(),
        [
            BASELINE,
            candidate(16, "120", acceptanceLength="5.0"),
            candidate(5, "150", acceptanceLength="2.5"),
        ],
    )

    assert selection.best is not None
    assert selection.best.candidate == "depth-5"
    assert selection.best.speedup == "1.500"
    assert "150 output tokens/s at concurrency 1" in selection.message
    assert [found.eligible for found in selection.candidates] == [None, True, True]


def test_the_objective_s_concurrency_decides() -> None:
    fast_alone = candidate(2, loads=[load(1, "190", "1.9"), load(8, "110", "1.1")])
    fast_together = candidate(4, loads=[load(1, "150", "1.5"), load(8, "180", "1.8")])
    candidates = [BASELINE, fast_alone, fast_together]

    lowest = select(spec(), candidates).best
    chosen = select(spec(benchmark={"objectiveConcurrency": 8}), candidates).best

    assert lowest is not None
    assert lowest.candidate == "depth-2"
    assert chosen is not None
    assert chosen.candidate == "depth-4"


def test_of_equals_the_smaller_depth_wins() -> None:
    best = select(spec(), [BASELINE, candidate(16, "150"), candidate(5, "150")]).best

    assert best is not None
    assert best.candidate == "depth-5"


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"acceptanceLength": "1.10"}, "AcceptanceTooLow", "benchmark.minimumAcceptanceLength 1.2"),
        ({"acceptanceLength": None}, "NotMeasured", "no acceptance length"),
        (
            {"outputsEqual": False, "outputsCompared": 8, "outputsDifferent": 3},
            "OutputsDiffer",
            "3 of 8",
        ),
        ({"degenerateOutputs": 2}, "OutputsDegenerate", "2 outputs"),
        ({"loads": [load(8, "150", "1.5")]}, "NotMeasured", "concurrency 1"),
        ({"loads": [load(1, "104", "1.040")]}, "TooSlow", "promotion.minimumSpeedup 1.05"),
    ],
)
def test_a_gate_that_is_not_passed_excludes_the_candidate(
    changes: dict[str, Any], reason: str, words: str
) -> None:
    selection = select(spec(), [BASELINE, candidate(4, "150", **changes), candidate(2, "110")])

    refused = selection.candidates[1]
    assert (refused.eligible, refused.reason) == (False, reason)
    assert words in str(refused.message)
    assert selection.best is not None
    assert selection.best.candidate == "depth-2"


@pytest.mark.parametrize("length", ["1.0", "1.000", "1.02", "1.055"])
def test_practically_no_accepted_token_names_the_likely_causes(length: str) -> None:
    refused = select(spec(), [BASELINE, candidate(4, "150", acceptanceLength=length)]).candidates[1]

    for cause in ("midlayer", "auxiliary layers", "norm_before_residual", "d2t", "EAGLE3"):
        assert cause in str(refused.message)


def test_an_acceptance_just_too_low_names_no_such_causes() -> None:
    refused = select(spec(), [BASELINE, candidate(4, "150", acceptanceLength="1.15")]).candidates[1]

    assert "midlayer" not in str(refused.message)


def test_loops_the_baseline_has_too_are_no_fault_of_the_drafter() -> None:
    baseline = candidate(0, degenerateOutputs=2)
    selection = select(spec(), [baseline, candidate(4, "150", degenerateOutputs=2)])

    assert selection.best is not None


def test_no_acceptance_length_is_refused_even_without_a_minimum() -> None:
    wanted = spec(benchmark={"minimumAcceptanceLength": "0"})
    selection = select(wanted, [BASELINE, candidate(4, "150", acceptanceLength=None)])

    assert selection.best is None


def test_the_asked_margin_is_enough() -> None:
    best = select(spec(promotion={"minimumSpeedup": "0.9"}), [BASELINE, candidate(4, "90")]).best

    assert best is not None
    assert best.speedup == "0.900"


@pytest.mark.parametrize(
    ("candidates", "reason"),
    [
        ([candidate(4, "90"), candidate(2, "95")], "NoCandidateBeatsBaseline"),
        (
            [candidate(4, "90"), candidate(2, state="Failed", message="boom")],
            "NoCandidateBeatsBaseline",
        ),
        ([candidate(4, "90"), candidate(2, acceptanceLength="1.0")], "NoCandidateEligible"),
        ([candidate(4, state="Failed", message="boom")], "NoCandidateMeasured"),
    ],
)
def test_the_reason_says_why_there_is_no_winner(candidates: list[Candidate], reason: str) -> None:
    selection = select(spec(), [BASELINE, *candidates])

    assert (selection.best, selection.reason) == (None, reason)
    for found in candidates:
        assert found.name in selection.message


def test_judging_twice_changes_nothing() -> None:
    first = select(spec(), [BASELINE, candidate(4, "150"), candidate(2, "90")])

    assert select(spec(), first.candidates) == first
