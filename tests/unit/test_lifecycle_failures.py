"""What becomes of a run when a job, a server or a reference fails."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from lifecycle_world import RESULTS, World

from drafter_jobs.contract.outcome import ExitCode, Reason
from drafter_operator.lifecycle.observed import JobState, MissingReference, PodState


@pytest.mark.parametrize(
    ("job", "code", "reason"),
    [
        ("prepare", ExitCode.INVALID_INPUT, Reason.PROMPTS_INVALID),
        ("extract", ExitCode.DISK_FULL, Reason.DISK_FULL),
        ("train", ExitCode.TRAINING_DIVERGED, Reason.TRAINING_DIVERGED),
        ("export", ExitCode.CONFIGURATION_ERROR, Reason.CHECKPOINT_NOT_SERVABLE),
        ("benchmark-baseline", ExitCode.SERVER_FAILED, Reason.SERVER_RESTARTED),
    ],
)
def test_a_failed_job_fails_the_run_with_its_own_words(
    job: str, code: ExitCode, reason: Reason
) -> None:
    world = World()
    world.play(until=f"r-{job}-1")
    world.fail(f"r-{job}-1", code, reason, "value 7 is wrong; use 8")
    world.settle()

    step = "Benchmark-baseline" if job.startswith("benchmark") else job.capitalize()
    assert world.status.phase == "Failed"
    assert world.status.step == step
    assert world.step(step).state == "Failed"
    assert (world.step(step).reason, world.step(step).message) == (
        reason,
        "value 7 is wrong; use 8",
    )
    failed = world.condition("Failed")
    assert (failed.status, failed.reason) == ("True", reason)
    assert f"{step} failed: value 7 is wrong; use 8" in failed.message
    assert "kubectl annotate drafterrun r --namespace n" in failed.message
    after = list(world.states().values())[list(world.states()).index(step) + 1 :]
    assert set(after) == {"Pending"}
    assert world.up() == set()
    assert not world.finish_something() or job.startswith("benchmark")


def test_a_retry_goes_on_at_the_failed_step_once() -> None:
    world = World()
    world.play(until="r-train-1")
    world.fail("r-train-1", ExitCode.DISK_FULL, Reason.DISK_FULL, "the volume is full")
    world.settle()

    world.annotations["drafters.dev/retry"] = "now"
    world.settle()
    assert world.history[-2:] == ["r-train-1", "r-train-2"]
    assert world.history.count("r-prepare-1") == 1
    assert world.condition("Failed").status == "False"
    world.fail("r-train-2", ExitCode.DISK_FULL, Reason.DISK_FULL, "the volume is full")
    world.settle()
    assert world.status.phase == "Failed"
    assert world.history[-1] == "r-train-2"

    world.annotations["drafters.dev/retry"] = "again"
    world.play()
    assert world.status.phase == "Succeeded"
    assert world.step("Train").attempt == 3


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        ({"exit_code": 137}, "PodFailed", "killed with SIGKILL"),
        ({"exit_code": 137, "ended_reason": "OOMKilled"}, "OOMKilled", "resources.limits.memory"),
        ({"exit_code": 1, "last_words": "no module named x"}, "PodFailed", "no module named x"),
    ],
)
def test_a_job_that_says_nothing_is_explained_by_its_end(
    pod: dict[str, object], reason: str, words: str
) -> None:
    world = World()
    world.play(until="r-extract-1")
    world.fail("r-extract-1", 1)
    world.replace_pod("r-extract-1", **pod)
    world.settle()

    assert world.step("Extract").reason == reason
    assert words in str(world.step("Extract").message)


def test_a_failed_job_without_any_pod_is_explained_by_its_condition() -> None:
    world = World()
    world.play(until="r-extract-1")
    world.jobs["r-extract-1"] = JobState("r-extract-1", failed=True, failure="deadline exceeded")
    world.settle()

    assert "deadline exceeded" in str(world.step("Extract").message)


def test_out_of_gpu_memory_halves_the_packed_length_to_the_minimum_and_then_fails() -> None:
    world = World(training={"packedSequenceLength": 16384, "minimumPackedSequenceLength": 5000})
    world.play(until="r-train-1")
    lengths = []
    for attempt in (1, 2, 3):
        arguments = world.job_arguments[f"r-train-{attempt}"]
        lengths.append(arguments[arguments.index("--packed-sequence-length") + 1])
        world.fail(f"r-train-{attempt}", 12, Reason.OUT_OF_GPU_MEMORY, "CUDA is out of memory")
        world.settle()

    assert lengths == ["16384", "8192", "5000"]
    assert world.status.training is not None
    assert world.status.training.packed_sequence_length == 5000
    assert world.status.phase == "Failed"
    assert world.condition("Failed").reason == "OutOfGpuMemory"
    retried = [message for reason, message in world.events if reason == "TrainRetried"]
    assert len(retried) == 2
    assert "16384" in retried[0]
    assert "8192" in retried[0]


def test_a_shorter_packed_length_stays_in_the_result() -> None:
    world = World()
    world.play(until="r-train-1")
    world.fail("r-train-1", 12, Reason.OUT_OF_GPU_MEMORY, "CUDA is out of memory")
    world.play()

    assert world.status.phase == "Succeeded"
    assert world.status.training is not None
    assert world.status.training.packed_sequence_length == 4096
    assert world.status.training.best_epoch == 1


def test_the_scheduler_s_words_are_in_the_progress_condition() -> None:
    world = World()
    world.play(until="r-train-1")
    words = "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    world.replace_pod("r-train-1", phase="Pending", waiting=words)
    world.settle()

    progressing = world.condition("Progressing")
    assert (progressing.status, progressing.reason) == ("True", "PodPending")
    assert words in progressing.message
    assert world.step("Train").message == words
    world.replace_pod("r-train-1", phase="Running", waiting=None)
    world.settle()
    assert world.condition("Progressing").reason == "PodRunning"


def test_a_lost_result_costs_another_attempt() -> None:
    world = World()
    world.play(until="r-extract-1")
    world.jobs["r-extract-1"] = JobState("r-extract-1", complete=True)
    world.settle()

    assert world.history[-1] == "r-extract-2"
    world.play()
    assert world.status.phase == "Succeeded"


def test_a_result_of_another_version_fails_the_step_with_the_field() -> None:
    world = World()
    world.play(until="r-prepare-1")
    world.succeed("r-prepare-1", RESULTS["prepare"] | {"written": "many"})
    world.settle()

    assert world.status.phase == "Failed"
    assert world.step("Prepare").reason == "ResultInvalid"
    assert "written" in str(world.step("Prepare").message)


def test_a_missing_reference_stops_nothing_and_starts_nothing() -> None:
    world = World()
    world.missing = (MissingReference("ConfigMapNotFound", "there is no ConfigMap prompts"),)
    world.settle()

    assert world.history == []
    accepted = world.condition("Accepted")
    assert (accepted.status, accepted.reason) == ("False", "ConfigMapNotFound")
    assert world.status.phase == "Pending"
    world.missing = ()
    world.play(until="r-benchmark-depth-2-1")
    assert world.condition("Accepted").status == "True"

    world.missing = (MissingReference("ConfigMapNotFound", "there is no ConfigMap prompts"),)
    world.settle()
    assert world.up() == {"r-depth-2"}


def test_a_server_that_crashes_disqualifies_its_candidate_only() -> None:
    world = World()
    world.play(until="r-depth-4")
    world.replace_pod("r-depth-4", restarts=3, last_words="size mismatch for fc.weight")
    world.play()

    crashed = next(found for found in world.status.candidates if found.name == "depth-4")
    assert (crashed.state, crashed.eligible, crashed.reason) == ("Failed", False, "ServerCrashed")
    assert "size mismatch for fc.weight" in str(crashed.message)
    assert world.states()["Serve-depth-4"] == "Failed"
    assert world.states()["Benchmark-depth-4"] == "Skipped"
    assert world.status.phase == "Succeeded"
    assert world.up() == {"r-depth-8"}


def test_a_server_that_is_not_ready_in_time_disqualifies_its_candidate() -> None:
    world = World(serving={"startupTimeoutSeconds": 600})
    world.play(until="r-depth-2")
    world.advance(601)
    world.settle()

    assert world.step("Serve-depth-2").reason == "ServerNotReady"
    assert "serving.startupTimeoutSeconds 600" in str(world.step("Serve-depth-2").message)
    world.play()
    assert world.status.best is not None
    assert world.status.best.candidate == "depth-4"


def test_the_wait_for_a_node_is_no_time_to_start() -> None:
    world = World(serving={"startupTimeoutSeconds": 600})
    world.play(until="r-baseline")
    words = "Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    world.replace_pod("r-baseline", phase="Pending", started_at=None, waiting=words)
    world.advance(5000)
    assert world.states()["Serve-baseline"] == "Running"
    assert world.step("Serve-baseline").message == words

    world.replace_pod("r-baseline", phase="Running", started_at=world.now, waiting=None)
    world.advance(500)
    assert world.states()["Serve-baseline"] == "Running"
    world.advance(101)
    assert world.states()["Serve-baseline"] == "Failed"


def test_a_baseline_that_cannot_be_served_fails_the_run() -> None:
    world = World()
    world.play(until="r-baseline")
    world.replace_pod("r-baseline", restarts=3, last_words="CUDA error")
    world.settle()

    assert world.status.phase == "Failed"
    assert world.condition("Failed").reason == "ServerCrashed"
    assert "CUDA error" in world.condition("Failed").message
    assert world.up() == set()


def test_a_server_that_dies_in_the_benchmark_is_quoted() -> None:
    world = World()
    world.play(until="r-benchmark-depth-4-1")
    world.replace_pod("r-depth-4", restarts=1, last_words="scheduler hit an exception: boom")
    world.fail("r-benchmark-depth-4-1", 16, Reason.SERVER_RESTARTED, "the server restarted")
    world.play()

    failed = next(found for found in world.status.candidates if found.name == "depth-4")
    assert (failed.state, failed.reason) == ("Failed", "ServerRestarted")
    assert failed.message == (
        "the server restarted; the server's last words: scheduler hit an exception: boom"
    )
    assert world.status.phase == "Succeeded"
    assert world.up() == {"r-depth-8"}


def test_no_candidate_that_runs_fails_the_run() -> None:
    world = World(serving={"depths": [2]})
    world.play(until="r-depth-2")
    world.replace_pod("r-depth-2", restarts=3, last_words="boom")
    world.play()

    assert world.status.phase == "Failed"
    assert world.condition("Failed").reason == "NoCandidateMeasured"
    assert "boom" in world.condition("Failed").message


def test_a_retry_of_a_failed_depth_leaves_the_promoted_server_alone() -> None:
    world = World()
    world.play(until="r-depth-8")
    world.replace_pod("r-depth-8", restarts=3, last_words="boom")
    world.play()
    assert world.up() == {"r-depth-4"}

    world.annotations["drafters.dev/retry"] = "1"
    world.settle()
    assert world.up() == {"r-depth-4", "r-depth-8"}
    world.play()

    assert world.status.phase == "Succeeded"
    assert set(world.states().values()) == {"Succeeded"}
    assert world.up() == {"r-depth-4"}
    assert world.step("Serve-depth-8").attempt == 2


def test_a_job_that_is_tried_again_says_why() -> None:
    world = World()
    world.play(until="r-train-1")
    killed = PodState("r-train-1-a", "Failed", world.now, exit_code=137)
    fresh = PodState("r-train-1-b", "Running", world.now + timedelta(seconds=1))
    world.jobs["r-train-1"] = dataclasses.replace(world.jobs["r-train-1"], pods=(killed, fresh))
    world.settle()

    assert world.states()["Train"] == "Running"
    assert "starts again after PodFailed" in str(world.step("Train").message)
