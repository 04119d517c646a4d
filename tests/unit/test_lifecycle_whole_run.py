"""A run from its first pass to its last, on a cluster that does all it is asked."""

from __future__ import annotations

import random

import pytest
from lifecycle_world import World

SEQUENTIAL_HISTORY = [
    "r-prepare-1",
    "r-extract-1",
    "r-train-1",
    "r-export-1",
    "r-baseline",
    "r-benchmark-baseline-1",
    "r-depth-2",
    "r-benchmark-depth-2-1",
    "r-depth-4",
    "r-benchmark-depth-4-1",
    "r-depth-8",
    "r-benchmark-depth-8-1",
    "r-depth-4",
]


def test_a_run_goes_through_every_step_in_order() -> None:
    world = World()
    world.play()

    assert world.history == SEQUENTIAL_HISTORY
    assert set(world.states().values()) == {"Succeeded"}
    assert list(world.states())[:5] == ["Prepare", "Extract", "Train", "Export", "Serve-baseline"]
    assert list(world.states())[-3:] == ["Benchmark-depth-8", "Select", "Promote"]
    assert (world.status.phase, world.status.progress, world.status.step) == (
        "Succeeded",
        "14/14",
        None,
    )
    assert world.up() == {"r-depth-4"}
    assert world.services["r"] == "depth-4"
    assert world.status.promoted is not None
    assert world.status.promoted.drafter_path == "r-01234567/drafter"
    assert {found.type: found.status for found in world.status.conditions} == {
        "Accepted": "True",
        "Failed": "False",
        "Progressing": "False",
        "Complete": "True",
        "Suspended": "False",
        "Promoted": "True",
    }


def test_the_status_keeps_the_result_of_every_job() -> None:
    world = World()
    world.play()

    data, training, export = world.status.data, world.status.training, world.status.export
    assert data is not None
    assert (data.samples, data.tokens, data.held_out) == (38, 4000, 4)
    assert (data.hidden_states_bytes, data.auxiliary_layers) == (1_000_000, [2, 4, 5])
    assert training is not None
    assert (training.best_epoch, training.accuracy) == (1, ["0.6", "0.3"])
    assert export is not None
    assert (export.path, export.renamed) == ("r-01234567/drafter", 10)
    candidates = {candidate.name: candidate for candidate in world.status.candidates}
    assert [load.speedup for load in candidates["depth-4"].loads] == ["1.500", "1.500"]
    assert candidates["depth-4"].state == "Promoted"
    assert candidates["depth-8"].outputs_equal is True


@pytest.mark.parametrize("seed", range(8))
def test_passes_may_be_missed_and_nothing_is_done_twice(seed: int) -> None:
    """The operator is away while the cluster goes on, for as long as chance says."""
    chance = random.Random(seed)
    world = World()
    for _ in range(400):
        world.advance()
        for _ in range(chance.choice([0, 0, 1, 2, 5])):
            world.finish_something()
    world.settle()

    assert world.history == SEQUENTIAL_HISTORY
    assert world.status.phase == "Succeeded"


def test_finished_jobs_may_be_gone() -> None:
    world = World()
    world.play(until="r-benchmark-depth-4-1")
    for name in [name for name, job in world.jobs.items() if job.complete]:
        del world.jobs[name]
    world.play()

    assert world.history == SEQUENTIAL_HISTORY


def test_in_parallel_all_servers_are_up_and_the_baseline_is_measured_first() -> None:
    world = World(serving={"strategy": "Parallel"})
    world.play(until="r-benchmark-baseline-1")
    assert world.up() == {"r-baseline", "r-depth-2", "r-depth-4", "r-depth-8"}
    assert not any("benchmark-depth" in name for name in world.history)

    for name in world.up():
        world.become_ready(name)
    world.succeed("r-benchmark-baseline-1", world.result_of("r-benchmark-baseline-1"))
    world.settle()
    assert {name for name in world.history if "benchmark-depth" in name} == {
        "r-benchmark-depth-2-1",
        "r-benchmark-depth-4-1",
        "r-benchmark-depth-8-1",
    }
    world.play()
    assert world.status.phase == "Succeeded"
    assert world.up() == {"r-depth-4"}


def test_sequentially_the_next_server_starts_when_the_one_before_is_gone() -> None:
    world = World()
    world.play(until="r-benchmark-baseline-1")
    world.succeed("r-benchmark-baseline-1", world.result_of("r-benchmark-baseline-1"))
    world.settle()

    assert world.servers["r-baseline"].replicas == 0
    assert "r-depth-2" not in world.servers
    assert "is gone" in str(world.step("Serve-depth-2").message)
    world.finish_something()
    world.settle()
    assert "r-depth-2" in world.servers


def test_without_a_baseline_the_fastest_depth_wins() -> None:
    world = World(serving={"baseline": False})
    world.play()

    assert "r-baseline" not in world.history
    assert world.status.best is not None
    assert (world.status.best.candidate, world.status.best.speedup) == ("depth-4", None)
    assert world.status.phase == "Succeeded"


def test_a_condition_changes_its_time_with_its_status_only() -> None:
    world = World()
    world.play(until="r-train-1")
    since = world.condition("Progressing").last_transition_time
    message = world.condition("Progressing").message
    world.now = world.now.replace(hour=5)
    world.play(until="r-export-1")

    assert world.condition("Progressing").message != message
    assert world.condition("Progressing").last_transition_time == since
    world.play()
    assert world.condition("Progressing").last_transition_time != since


def test_every_transition_is_told_once() -> None:
    world = World()
    world.play()

    assert len(world.events) == len(set(world.events))
    assert (
        "TrainSucceeded",
        "Train: best epoch 1: first-step accuracy 0.6, estimated acceptance length 1.9",
    ) in world.events
