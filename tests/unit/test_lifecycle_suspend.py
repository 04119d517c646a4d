"""Suspend stops running work, keeps what is promoted, and resume goes on from there."""

from __future__ import annotations

import pytest
from lifecycle_world import World

from drafter_operator.api.status import StepState


@pytest.mark.parametrize("job", ["prepare", "extract", "train", "export"])
def test_a_running_job_is_suspended_and_resumed(job: str) -> None:
    world = World()
    world.play(until=f"r-{job}-1")
    world.spec["suspend"] = True
    world.settle()

    assert world.jobs[f"r-{job}-1"].suspended
    assert world.status.phase == "Suspended"
    assert world.condition("Suspended").status == "True"
    assert world.step(job.capitalize()).reason == "Suspended"
    assert not world.finish_something()

    world.spec["suspend"] = False
    world.settle()
    assert not world.jobs[f"r-{job}-1"].suspended
    assert world.status.phase == "Running"
    world.play()
    assert world.status.phase == "Succeeded"
    assert world.history.count(f"r-{job}-1") == 1


def test_a_run_made_suspended_starts_nothing() -> None:
    world = World(suspend=True)
    world.settle()

    assert world.history == []
    assert world.status.phase == "Suspended"


def test_a_suspended_server_becomes_ready_anew_before_its_benchmark_goes_on() -> None:
    world = World(serving={"startupTimeoutSeconds": 600})
    world.play(until="r-benchmark-depth-2-1")
    world.spec["suspend"] = True
    world.settle()
    assert world.up() == set()
    assert world.jobs["r-benchmark-depth-2-1"].suspended
    world.finish_something()
    world.advance(10_000)

    world.spec["suspend"] = False
    world.settle()
    assert world.up() == {"r-depth-2"}
    assert world.jobs["r-benchmark-depth-2-1"].suspended
    assert world.step("Serve-depth-2").state is StepState.RUNNING

    world.become_ready("r-depth-2")
    world.settle()
    assert not world.jobs["r-benchmark-depth-2-1"].suspended
    world.play()
    assert world.status.phase == "Succeeded"
    assert world.history.count("r-benchmark-depth-2-1") == 1


def test_a_benchmark_that_ends_while_it_is_suspended_counts() -> None:
    world = World()
    world.play(until="r-benchmark-depth-2-1")
    world.spec["suspend"] = True
    world.succeed("r-benchmark-depth-2-1", world.result_of("r-benchmark-depth-2-1"))
    world.settle()

    assert world.states()["Serve-depth-2"] == "Succeeded"
    assert world.states()["Benchmark-depth-2"] == "Succeeded"
    world.spec["suspend"] = False
    world.play()
    assert world.history.count("r-depth-2") == 1


def test_a_promoted_server_goes_on_serving() -> None:
    world = World()
    world.play()
    world.spec["suspend"] = True
    world.settle()

    assert world.up() == {"r-depth-4"}
    assert world.status.phase == "Succeeded"


def test_a_promotion_waits_for_the_resume() -> None:
    world = World()
    world.play(until="r-benchmark-depth-8-1")
    world.succeed("r-benchmark-depth-8-1", world.result_of("r-benchmark-depth-8-1"))
    world.settle()
    world.spec["suspend"] = True
    world.play()
    assert world.up() == set()
    assert world.status.phase == "Suspended"

    world.spec["suspend"] = False
    world.play()
    assert world.up() == {"r-depth-4"}
    assert world.status.phase == "Succeeded"


def test_a_failed_run_that_is_suspended_stays_failed() -> None:
    world = World()
    world.play(until="r-train-1")
    world.fail("r-train-1", 14)
    world.spec["suspend"] = True
    world.settle()

    assert world.status.phase == "Failed"
