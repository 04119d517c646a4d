"""What is promoted in each mode, and how a promotion changes."""

from __future__ import annotations

import pytest
from lifecycle_world import World, benchmark_result


def play_with_slow_drafters(world: World) -> None:
    for depth in (2, 4, 8):
        job = f"r-benchmark-depth-{depth}-1"
        world.play(until=job)
        result = benchmark_result(f"depth-{depth}")
        for load in result["loads"]:
            load["outputTokensPerSecond"] = "90"
        world.succeed(job, result)
    world.play()


def test_nothing_is_promoted_when_nothing_beats_the_baseline() -> None:
    world = World()
    play_with_slow_drafters(world)

    assert world.status.phase == "Succeeded"
    assert world.condition("Complete").status == "True"
    assert world.step("Select").reason == "NoCandidateBeatsBaseline"
    assert world.states()["Promote"] == "Skipped"
    promoted = world.condition("Promoted")
    assert (promoted.status, promoted.reason) == ("False", "NoCandidateBeatsBaseline")
    assert "depth-4: 0.900 times" in promoted.message
    assert "promotion.minimumSpeedup" in promoted.message
    assert world.up() == set()
    assert "r" not in world.services
    assert world.status.best is None


def test_never_reports_and_promotes_nothing() -> None:
    world = World(promotion={"mode": "Never"})
    world.play()

    assert world.status.phase == "Succeeded"
    assert world.status.best is not None
    assert world.step("Promote").reason == "PromotionNever"
    assert world.up() == set()


def test_manual_waits_for_the_user_s_choice_without_a_server() -> None:
    world = World(promotion={"mode": "Manual"})
    world.play()

    assert world.status.phase == "Running"
    assert world.condition("Promoted").reason == "AwaitingPromotion"
    assert "depth-4 measured best" in str(world.step("Promote").message)
    assert world.up() == set()

    world.spec["promotion"]["candidate"] = "depth-8"
    world.play()
    assert world.status.phase == "Succeeded"
    assert world.services["r"] == "depth-8"
    assert world.up() == {"r-depth-8"}


@pytest.mark.parametrize(
    ("candidate", "words"),
    [("depth-3", "not one of the run's depths: depth-2"), ("depth-4", "boom")],
)
def test_a_choice_that_cannot_be_served_is_refused_with_its_reason(
    candidate: str, words: str
) -> None:
    world = World(promotion={"mode": "Manual", "candidate": candidate})
    world.play(until="r-depth-4")
    world.replace_pod("r-depth-4", restarts=3, last_words="boom")
    world.play()

    assert world.status.phase == "Running"
    assert words in str(world.step("Promote").message)
    assert world.up() == set()


def test_another_choice_takes_the_place_of_the_promoted_one_on_the_same_gpus() -> None:
    world = World(promotion={"mode": "Manual", "candidate": "depth-4"})
    world.play()
    world.spec["promotion"]["candidate"] = "depth-2"
    world.settle()
    # One set of GPUs: the old server goes before the new one comes.
    assert world.up() == set()
    assert world.status.phase == "Running"
    world.play()

    assert world.up() == {"r-depth-2"}
    assert world.services["r"] == "depth-2"
    assert world.status.promoted is not None
    assert world.status.promoted.candidate == "depth-2"
    states = {found.name: found.state.value for found in world.status.candidates}
    assert (states["depth-2"], states["depth-4"]) == ("Promoted", "Measured")
    assert world.status.phase == "Succeeded"


def test_in_parallel_the_old_server_serves_until_the_new_one_is_ready() -> None:
    world = World(
        serving={"strategy": "Parallel"}, promotion={"mode": "Manual", "candidate": "depth-4"}
    )
    world.play()
    world.spec["promotion"]["candidate"] = "depth-2"
    world.settle()
    assert world.up() == {"r-depth-2", "r-depth-4"}
    assert world.services["r"] == "depth-4"

    world.become_ready("r-depth-2")
    world.settle()
    assert world.services["r"] == "depth-2"
    assert world.up() == {"r-depth-2"}


def test_a_choice_withdrawn_leaves_what_is_promoted() -> None:
    world = World(promotion={"mode": "Manual", "candidate": "depth-4"})
    world.play()
    for change in (
        {"mode": "Manual"},
        {"mode": "Never"},
        {"mode": "Manual", "candidate": "depth-9"},
    ):
        world.spec["promotion"] = change
        world.play()
        assert world.up() == {"r-depth-4"}
        assert world.services["r"] == "depth-4"
        assert world.status.phase == "Succeeded"


def test_a_promoted_server_that_was_removed_comes_back() -> None:
    world = World()
    world.play()
    del world.servers["r-depth-4"]
    world.services.clear()
    world.settle()

    assert world.up() == {"r-depth-4"}
    assert world.services["r"] == "depth-4"
