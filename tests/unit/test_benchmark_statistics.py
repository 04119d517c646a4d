import math

import pytest

from drafter_jobs.acceptance import Counters, RequestAcceptance, measure_acceptance
from drafter_jobs.degeneration import is_degenerate
from drafter_jobs.greedy_equality import compare_outputs
from drafter_jobs.statistics_of_samples import percentile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3.0], 0.95, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.5),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.95, 4.8),
        ([1.0, 2.0], 0.0, 1.0),
        ([1.0, 2.0], 1.0, 2.0),
    ],
)
def test_percentile(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2] * 8,
        [7] * 16,
        [9, 8, 7, *([4, 5, 6] * 6)],
        [*([4, 5, 6] * 6), 2],
        list(range(16)) * 4,
    ],
)
def test_loops_are_degenerate(tokens: list[int]) -> None:
    assert is_degenerate(tokens)


@pytest.mark.parametrize(
    "tokens",
    [[], [1], [7] * 15, list(range(64)), [1, 2, 1, 2, 1, 2, 3, 4, 5, 6], list(range(16)) * 3],
)
def test_ordinary_outputs_are_not(tokens: list[int]) -> None:
    assert not is_degenerate(tokens)


def test_acceptance_of_agreeing_counters() -> None:
    requests = [RequestAcceptance(10, 5, 4, 15), RequestAcceptance(8, 4, 3, 12)]
    acceptance = measure_acceptance(Counters(18, 9), requests)
    assert acceptance is not None
    assert (acceptance.length, acceptance.rate) == (2.0, pytest.approx(7 / 27))
    assert acceptance.counters_agree


def test_foreign_requests_are_noticed_and_left_out() -> None:
    acceptance = measure_acceptance(Counters(118, 109), [RequestAcceptance(18, 9, 7, 27)])
    assert acceptance is not None
    assert acceptance.length == 2.0
    assert not acceptance.counters_agree


def test_no_verify_call_is_no_speculation() -> None:
    assert measure_acceptance(Counters(18, 0), [RequestAcceptance(18, 0, 0, 0)]) is None


def test_shorter_output_differs_where_it_ends() -> None:
    comparison = compare_outputs({("a", 1): [1, 2]}, {("a", 1): [1, 2, 3]})
    assert (comparison.compared, comparison.equal) == (1, 0)
    assert comparison.first_differences == {("a", 1): 2}


def test_outputs_without_a_counterpart_are_not_compared() -> None:
    comparison = compare_outputs({("a", 1): [1], ("a", 8): [1]}, {("a", 1): [1]})
    assert (comparison.compared, comparison.equal) == (1, 1)
