"""What the operator exports of its runs."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from lifecycle_world import World
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from drafter_jobs.contract.metrics import JOB_METRICS, Kind
from drafter_jobs.contract.outcome import Reason
from drafter_operator import metrics
from drafter_operator.lifecycle.observed import JobState, Observed, PodState, ServerState
from drafter_sandbox.observe.prometheus import prometheus_tool


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


def show(world: World, name: str) -> None:
    """Show the world's run under a name; metrics outlive a test, and so must not share one."""
    run = dataclasses.replace(world.run(), name=name)
    metrics.show_run(run, world.status, now=world.now)


def test_a_finished_run_shows_its_results(run_name: str) -> None:
    world = World()
    world.play()
    show(world, run_name)

    found = series(run_name)
    phases = found["drafter_run_phase"]
    assert phases[(("phase", "Succeeded"),)] == 1
    assert sum(phases.values()) == 1
    states = found["drafter_run_step_state"]
    assert states[(("state", "Succeeded"), ("step", "Train"))] == 1
    assert states[(("state", "Running"), ("step", "Train"))] == 0
    assert found["drafter_run_checkpoint_loss"] == {(): 1.5}
    assert found["drafter_run_checkpoint_accuracy_ratio"][(("ttt_step", "1"),)] == 0.3
    (info,) = found["drafter_run_info"]
    assert dict(info) == {"target": "model", "trainer": "speculators", "depths": "2,4,8"}
    promoted = found["drafter_run_promoted"]
    assert promoted == {(("candidate", "depth-4"), ("depth", "4")): 1}
    latency = found["drafter_run_candidate_time_to_first_token_seconds"]
    at = (("candidate", "depth-4"), ("concurrency", "2"), ("depth", "4"), ("percentile", "95"))
    assert latency[at] == 0.02
    # What a job exports itself is not exported again.
    assert not [name for name in found if name.startswith("drafter_training")]
    length = found["drafter_run_candidate_acceptance_length"]
    assert length[(("candidate", "depth-4"), ("depth", "4"))] == 1.9
    rate = found["drafter_run_candidate_output_tokens_per_second"]
    assert rate[(("candidate", "depth-4"), ("concurrency", "2"), ("depth", "4"))] == 150


def test_a_step_shows_how_long_it_took(run_name: str) -> None:
    world = World()
    world.play(until="r-prepare-1")
    world.succeed("r-prepare-1", world.result_of("r-prepare-1"))
    world.advance(90)
    show(world, run_name)

    durations = series(run_name)["drafter_run_step_duration_seconds"]
    assert durations[(("step", "Prepare"),)] == 90


def test_the_time_left_of_a_step_goes_with_it(run_name: str) -> None:
    world = World()
    world.play(until="r-extract-1")
    for done in (10, 20):
        world.metric(
            "r-extract-1",
            ("drafter_job_work_done", {"unit": "samples"}, done),
            ("drafter_job_work_expected", {"unit": "samples"}, 40),
        )
        world.advance(10)
    show(world, run_name)
    assert series(run_name)["drafter_run_step_remaining_seconds"] == {(("step", "Extract"),): 20}

    world.play()
    show(world, run_name)
    assert "drafter_run_step_remaining_seconds" not in series(run_name)


def test_the_last_progress_stands_still_while_nothing_is_done(run_name: str) -> None:
    world = World()
    world.play(until="r-extract-1")

    def last_progress() -> float:
        world.advance(60)
        show(world, run_name)
        return series(run_name)["drafter_run_last_progress_timestamp_seconds"][()]

    begun = last_progress()
    assert begun == world.now.timestamp()
    assert last_progress() == begun
    world.metric("r-extract-1", ("drafter_job_work_done", {"unit": "samples"}, 1))
    assert last_progress() == world.now.timestamp()
    world.play()
    show(world, run_name)
    assert "drafter_run_last_progress_timestamp_seconds" not in series(run_name)


def test_a_retry_is_counted_once_with_its_reason(run_name: str) -> None:
    world = World()
    world.play(until="r-train-1")
    world.fail("r-train-1", 12, Reason.OUT_OF_GPU_MEMORY, "CUDA ran out of memory")
    run = dataclasses.replace(world.run(), name=run_name)
    world.advance()
    metrics.show_run(run, world.status)
    show(world, run_name)

    retries = series(run_name)["drafter_run_retries_total"]
    assert retries == {(("reason", "OutOfGpuMemory"), ("step", "Train")): 1}


def test_a_pod_that_its_job_replaced_counts_as_a_retry(run_name: str) -> None:
    world = World()
    world.play(until="r-train-1")
    job = world.jobs["r-train-1"]
    killed = dataclasses.replace(job.pods[0], phase="Failed", exit_code=137)
    after = PodState("r-train-1-b", "Running", world.now + timedelta(seconds=9))
    # A Job's name has the run's in it.
    jobs = {f"{run_name}-train-1": JobState(f"{run_name}-train-1", pods=(killed, after))}
    run = dataclasses.replace(world.run(), name=run_name)
    for _ in range(2):
        metrics.show_run(run, world.status, Observed(jobs=jobs))

    retries = series(run_name)["drafter_run_retries_total"]
    assert retries == {(("reason", "PodFailed"), ("step", "Train")): 1}


def test_restarts_of_a_server_are_shown_while_it_is_wanted(run_name: str) -> None:
    world = World()
    world.play()
    run = dataclasses.replace(world.run(), name=run_name)
    pod = PodState("p", "Running", world.now, restarts=3)
    for replicas, expected in ((1, {(("candidate", "depth-4"), ("depth", "4")): 3}), (0, {})):
        server = ServerState(f"{run_name}-depth-4", replicas, pods=(pod,))
        metrics.show_run(run, world.status, Observed(servers={server.name: server}))
        assert series(run_name).get("drafter_run_server_restarts", {}) == expected


def test_names_are_as_prometheus_asks(run_name: str) -> None:
    declared = [*metrics.EXPORTED, *itertools.chain(*JOB_METRICS.values())]
    assert len({metric.name for metric in declared}) == len(declared)
    for metric in declared:
        assert metric.name.endswith("_total") == (metric.kind == Kind.COUNTER), metric.name
    registry = CollectorRegistry()
    for metric in declared:
        made = getattr(metric, metric.kind)(registry)
        if metric.labels:
            made.labels(*metric.labels)
    promtool = prometheus_tool("promtool")
    if promtool is None:
        pytest.skip("promtool is neither on the PATH nor fetched: run make prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=generate_latest(registry).decode(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_run_that_is_gone_leaves_no_series(run_name: str) -> None:
    world = World()
    world.play()
    show(world, run_name)
    assert series(run_name)

    metrics.forget_run("n", run_name)

    assert series(run_name) == {}
