"""The progress of a running step, from the metrics of its Pod."""

from __future__ import annotations

from lifecycle_world import World


def test_progress_has_a_rate_and_the_time_left() -> None:
    world = World()
    world.play(until="r-extract-1")
    for done in (0, 10):
        world.metric(
            "r-extract-1",
            ("drafter_job_work_done", {"unit": "samples"}, done),
            ("drafter_job_work_expected", {"unit": "samples"}, 40),
        )
        world.advance(20)

    progress = world.step("Extract").progress
    assert progress is not None
    assert (progress.done, progress.total, progress.unit) == (10, 40, "samples")
    assert progress.rate_per_second == "0.500"
    assert progress.seconds_left == 60


def test_work_found_done_at_the_start_does_not_count_in_the_rate() -> None:
    world = World()
    world.play(until="r-train-1")
    for seconds, done in ((1, 500), (10, 510), (10, 520)):
        world.metric(
            "r-train-1",
            ("drafter_job_work_done", {"unit": "steps"}, done),
            ("drafter_job_work_expected", {"unit": "steps"}, 620),
        )
        world.advance(seconds)

    progress = world.step("Train").progress
    assert progress is not None
    assert float(str(progress.rate_per_second)) < 2
    assert progress.seconds_left is not None
    assert progress.seconds_left > 50


def test_a_pod_without_metrics_has_no_progress() -> None:
    world = World()
    world.play(until="r-extract-1")
    world.advance(20)

    assert world.step("Extract").progress is None
    assert world.step("Extract").message == "the Pod runs"


def test_progress_ends_with_the_step() -> None:
    world = World()
    world.play(until="r-extract-1")
    world.metric("r-extract-1", ("drafter_job_work_done", {"unit": "samples"}, 10))
    world.advance(20)
    assert world.step("Extract").progress is not None
    world.play(until="r-train-1")

    assert world.step("Extract").progress is None


def test_training_shows_its_figures_while_it_runs_and_its_result_after() -> None:
    world = World()
    world.play(until="r-train-1")
    world.metric(
        "r-train-1",
        ("drafter_training_epoch", {}, 1),
        ("drafter_training_epochs", {}, 2),
        ("drafter_training_step", {}, 15),
        ("drafter_training_steps", {}, 20),
        ("drafter_training_loss", {}, 2.34567),
        *(
            (
                "drafter_training_accuracy_ratio",
                {"ttt_step": str(i), "kind": kind, "split": split},
                value,
            )
            for i, value in ((1, 0.25), (0, 0.5))
            for kind, split in (("full", "validation"), ("full", "train"), ("conditional", "train"))
        ),
    )
    world.advance(5)

    training = world.status.training
    assert training is not None
    assert (training.epoch, training.epochs, training.step, training.steps) == (1, 2, 15, 20)
    assert training.loss == "2.3457"
    assert training.accuracy == ["0.5000", "0.2500"]
    assert training.estimated_acceptance_length == "1.750"

    world.play(until="r-export-1")
    assert world.status.training is not None
    assert world.status.training.loss == "1.5"


def test_a_pod_that_starts_again_is_counted_anew() -> None:
    world = World()
    world.play(until="r-extract-1")
    for seconds, done in ((1, 30), (10, 5), (10, 15)):
        world.metric("r-extract-1", ("drafter_job_work_done", {"unit": "samples"}, done))
        world.advance(seconds)

    progress = world.step("Extract").progress
    assert progress is not None
    assert progress.rate_per_second == "1.000"
