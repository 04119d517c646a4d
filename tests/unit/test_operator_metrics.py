"""What the operator exports of its runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from lifecycle_world import World
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from drafter_operator import metrics


@pytest.fixture
def run_name() -> Iterator[str]:
    name = f"run-{uuid.uuid4().hex[:8]}"
    yield name
    metrics.forget_run("n", name)


def series(run: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the values of a run's series by name and by the labels beside namespace and run."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.REGISTRY).decode()):
        for sample in family.samples:
            if sample.labels.get("run") == run:
                rest = {k: v for k, v in sample.labels.items() if k not in ("run", "namespace")}
                found.setdefault(sample.name, {})[tuple(sorted(rest.items()))] = sample.value
    return found


def test_a_finished_run_shows_its_results(run_name: str) -> None:
    world = World()
    world.play()
    metrics.show_run("n", run_name, world.status)

    found = series(run_name)
    phases = found["drafter_run_phase"]
    assert phases[(("phase", "Succeeded"),)] == 1
    assert sum(phases.values()) == 1
    states = found["drafter_run_step_state"]
    assert states[(("state", "Succeeded"), ("step", "Train"))] == 1
    assert states[(("state", "Running"), ("step", "Train"))] == 0
    assert found["drafter_run_training_loss"] == {(): 1.5}
    assert found["drafter_run_training_accuracy_ratio"][(("ttt_step", "1"),)] == 0.3
    length = found["drafter_run_candidate_acceptance_length"]
    assert length[(("candidate", "depth-4"), ("depth", "4"))] == 1.9
    rate = found["drafter_run_candidate_output_tokens_per_second"]
    assert rate[(("candidate", "depth-4"), ("concurrency", "2"), ("depth", "4"))] == 150


def test_a_step_shows_how_long_it_took(run_name: str) -> None:
    world = World()
    world.play(until="r-prepare-1")
    world.succeed("r-prepare-1", world.result_of("r-prepare-1"))
    world.advance(90)
    metrics.show_run("n", run_name, world.status)

    durations = series(run_name)["drafter_run_step_duration_seconds"]
    assert durations[(("step", "Prepare"),)] == 90


def test_the_progress_of_a_step_goes_with_it(run_name: str) -> None:
    world = World()
    world.play(until="r-extract-1")
    world.metric(
        "r-extract-1",
        ("drafter_job_work_done", {"unit": "samples"}, 10),
        ("drafter_job_work_expected", {"unit": "samples"}, 40),
    )
    world.advance(5)
    metrics.show_run("n", run_name, world.status)
    assert series(run_name)["drafter_run_step_progress_ratio"] == {(("step", "Extract"),): 0.25}

    world.play()
    metrics.show_run("n", run_name, world.status)
    assert "drafter_run_step_progress_ratio" not in series(run_name)


def test_a_run_that_is_gone_leaves_no_series(run_name: str) -> None:
    world = World()
    world.play()
    metrics.show_run("n", run_name, world.status)
    assert series(run_name)

    metrics.forget_run("n", run_name)

    assert series(run_name) == {}
