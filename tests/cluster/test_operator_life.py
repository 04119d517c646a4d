"""The real operator in the sandbox: a run's whole life, its failures and its restarts."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from operator_cluster import EVERY_PROGRAM_ONCE, STEP_OF_PROGRAM, OperatorCluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorCluster]:
    directory = tmp_path_factory.mktemp("operator")
    found = OperatorCluster(directory)
    found.make_references(directory / "models")
    yield found
    found.stop()


@pytest.fixture
def cluster(shared_cluster: OperatorCluster) -> OperatorCluster:
    """A sandbox with an operator and without runs."""
    shared_cluster.reset()
    return shared_cluster


def test_a_run_goes_from_prompts_to_a_promoted_drafter(cluster: OperatorCluster) -> None:
    cluster.apply_run("whole")
    status = cluster.wait_for_phase("whole", "Succeeded")

    assert [step["state"] for step in status["steps"]] == ["Succeeded"] * 12
    # The last start is the winner's own, for promotion.
    assert cluster.starts() == EVERY_PROGRAM_ONCE
    assert status["best"]["candidate"] == "depth-4"
    assert status["best"]["speedup"] == "1.500"
    assert status["promoted"]["service"] == "whole"
    assert status["data"]["auxiliaryLayers"] == [2, 4, 5]
    assert status["training"]["accuracy"] == ["0.6", "0.3"]
    candidates = {candidate["name"]: candidate for candidate in status["candidates"]}
    assert candidates["depth-2"]["eligible"] is True
    assert candidates["depth-2"]["loads"][0]["speedup"] == "1.100"
    assert cluster.condition("whole", "Complete")["status"] == "True"
    assert "Promoted" in cluster.sandbox.kubectl("describe", "drun", "whole")

    service = cluster.sandbox.get("service", "whole")
    assert service["spec"]["selector"]["drafters.dev/candidate"] == "depth-4"
    replicas = {
        item["metadata"]["name"]: item["spec"]["replicas"]
        for item in cluster.sandbox.get("deployments")["items"]
    }
    assert replicas == {"whole-baseline": 0, "whole-depth-2": 0, "whole-depth-4": 1}


def test_deleting_a_run_removes_its_children_and_keeps_its_claim(
    cluster: OperatorCluster,
) -> None:
    cluster.apply_run("gone")
    cluster.wait_for_phase("gone", "Succeeded")
    cluster.kill_operator()

    # Nobody is there to remove a finalizer: nothing may wait for one.
    cluster.sandbox.kubectl("delete", "drun", "gone", "--timeout=10s")

    label = "drafters.dev/run=gone"
    for kind in ("jobs", "deployments", "services", "pods"):
        cluster.sandbox.kubectl("wait", "--for=delete", kind, "-l", label, "--timeout=20s")
    assert cluster.sandbox.get("pvc", "gone")["status"]["phase"] == "Bound"


def test_a_run_deleted_in_the_middle_of_training_leaves_its_claim_and_no_process(
    cluster: OperatorCluster,
) -> None:
    cluster.hold("drafter-train")
    cluster.apply_run("midway")
    cluster.wait_for_step("midway", "Train", "Running")

    cluster.sandbox.kubectl("delete", "drun", "midway", "--timeout=10s")

    label = "drafters.dev/run=midway"
    for kind in ("jobs", "pods"):
        cluster.sandbox.kubectl("wait", "--for=delete", kind, "-l", label, "--timeout=20s")
    assert cluster.sandbox.get("pvc", "midway")["status"]["phase"] == "Bound"
    # A new run of the same name is another run, with a directory of its own in the claim.
    cluster.release("drafter-train")
    cluster.apply_run("midway")
    cluster.wait_for_phase("midway", "Succeeded")
    first, second = (
        line.split("--output ")[1].split()[0] for line in cluster.start_lines("drafter-prepare")
    )
    assert first != second


def test_two_runs_share_a_claim_and_no_directory(cluster: OperatorCluster) -> None:
    cluster.sandbox.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "shared"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    )
    storage = {"claimName": "shared", "claimTemplate": None}
    cluster.apply_run("one", storage=storage)
    cluster.apply_run("two", storage=storage)

    cluster.wait_for_phase("one", "Succeeded")
    cluster.wait_for_phase("two", "Succeeded")

    outputs = [
        line.split("--output ")[1].split()[0]
        for program in ("drafter-prepare", "drafter-extract", "drafter-train")
        for line in cluster.start_lines(program)
    ]
    assert len(outputs) == len(set(outputs)) == 6


def test_parallel_candidates_are_served_at_once(cluster: OperatorCluster) -> None:
    servers = ("server-baseline", "server-depth-2", "server-depth-4")
    for server in servers:
        cluster.hold(server)
    cluster.apply_run("parallel", serving={"strategy": "Parallel"})

    for candidate in ("baseline", "depth-2", "depth-4"):
        cluster.wait_for_step("parallel", f"Serve-{candidate}", "Running")
    for server in servers:
        cluster.release(server)
    status = cluster.wait_for_phase("parallel", "Succeeded")

    assert status["best"]["candidate"] == "depth-4"
    assert sorted(cluster.starts()) == sorted(EVERY_PROGRAM_ONCE)


def test_training_on_two_nodes_is_an_indexed_job_whose_pods_find_the_first(
    cluster: OperatorCluster,
) -> None:
    cluster.apply_run(
        "nodes",
        storage={"claimTemplate": {"size": "1Gi", "accessMode": "ReadWriteMany"}},
        training={"nodes": 2},
    )

    cluster.wait_for_phase("nodes", "Succeeded")

    lines = cluster.start_lines("drafter-train")
    assert len(lines) == 2
    (rendezvous,) = {line.split("--rendezvous ")[1].split()[0] for line in lines}
    assert rendezvous.startswith("nodes-train-1-0.")
    job = cluster.sandbox.get("job", "nodes-train-1")
    assert job["spec"]["completionMode"] == "Indexed"


def test_an_operator_killed_at_each_step_does_nothing_twice(cluster: OperatorCluster) -> None:
    # Depth 4 is refused, so that the winner's server must start again to be promoted.
    (cluster.control / "depth-4.acceptance").write_text("1.0")
    for program in STEP_OF_PROGRAM:
        cluster.hold(program)
    cluster.apply_run("killed")

    for program, step in [*STEP_OF_PROGRAM.items(), ("server-depth-2", "Promote")]:
        cluster.wait_for_step("killed", step, "Running")
        cluster.kill_operator()
        if program == "drafter-benchmark-depth-4":
            cluster.hold("server-depth-2")
        cluster.release(program)
        cluster.start_operator()
    status = cluster.wait_for_phase("killed", "Succeeded")

    assert cluster.starts() == [*EVERY_PROGRAM_ONCE, "server-depth-2"]
    assert status["promoted"]["candidate"] == "depth-2"


def test_a_configuration_error_fails_the_run_with_the_jobs_own_words(
    cluster: OperatorCluster,
) -> None:
    cluster.fail("drafter-prepare", 11, "PromptsInvalid", "line 3 of p.jsonl is not JSON")
    cluster.apply_run("broken")

    status = cluster.wait_for_phase("broken", "Failed")

    assert cluster.starts() == ["drafter-prepare"]
    failed = cluster.condition("broken", "Failed")
    assert failed["reason"] == "PromptsInvalid"
    assert "line 3 of p.jsonl is not JSON" in failed["message"]
    assert "drafters.dev/retry" in failed["message"]
    assert status["steps"][0]["state"] == "Failed"
    assert status["steps"][1]["state"] == "Pending"
    assert "line 3 of p.jsonl" in cluster.sandbox.kubectl("describe", "drun", "broken")

    cluster.sandbox.kubectl("annotate", "drun", "broken", "drafters.dev/retry=1")
    cluster.wait_for_phase("broken", "Succeeded")
    assert cluster.starts() == ["drafter-prepare", *EVERY_PROGRAM_ONCE]


def test_a_killed_training_starts_again(cluster: OperatorCluster) -> None:
    cluster.fail("drafter-train", 137, "", "")
    cluster.apply_run("again")

    cluster.wait_for_phase("again", "Succeeded")

    assert cluster.starts().count("drafter-train") == 2


def test_out_of_memory_halves_the_packed_length_down_to_the_minimum(
    cluster: OperatorCluster,
) -> None:
    cluster.fail("drafter-train", 12, "OutOfGpuMemory", "CUDA ran out of memory", times=2)
    training = {"packedSequenceLength": 16384, "minimumPackedSequenceLength": 4096}
    cluster.apply_run("memory", training={"gpusPerNode": 0, "epochs": 2, **training})

    status = cluster.wait_for_phase("memory", "Succeeded")

    lengths = [
        line.split("--packed-sequence-length ")[1].split()[0]
        for line in cluster.start_lines("drafter-train")
    ]
    assert lengths == ["16384", "8192", "4096"]
    assert status["training"]["packedSequenceLength"] == 4096

    cluster.fail("drafter-train", 12, "OutOfGpuMemory", "CUDA ran out of memory", times=9)
    cluster.apply_run("small", training={"gpusPerNode": 0, "epochs": 2, **training})
    cluster.wait_for_phase("small", "Failed")
    assert cluster.condition("small", "Failed")["reason"] == "OutOfGpuMemory"


def test_suspend_stops_running_work_and_resume_goes_on(cluster: OperatorCluster) -> None:
    cluster.hold("drafter-train")
    cluster.apply_run("paused")
    cluster.wait("paused", lambda status: status.get("step") == "Train")
    cluster.sandbox.kubectl(
        "wait", "--for=jsonpath={.status.active}=1", "job/paused-train-1", "--timeout=20s"
    )

    cluster.sandbox.kubectl(
        "patch", "drun", "paused", "--type=merge", "-p", '{"spec":{"suspend":true}}'
    )
    cluster.wait_for_phase("paused", "Suspended")
    cluster.sandbox.kubectl(
        "wait", "--for=condition=Suspended", "job/paused-train-1", "--timeout=20s"
    )
    assert cluster.condition("paused", "Suspended")["status"] == "True"

    cluster.release("drafter-train")
    cluster.sandbox.kubectl(
        "patch", "drun", "paused", "--type=merge", "-p", '{"spec":{"suspend":false}}'
    )
    cluster.wait_for_phase("paused", "Succeeded")
    assert cluster.starts().count("drafter-prepare") == 1


def test_an_edit_of_an_immutable_field_is_refused_once_the_run_has_started(
    cluster: OperatorCluster,
) -> None:
    cluster.hold("drafter-prepare")
    cluster.apply_run("fixed")
    cluster.wait("fixed", lambda status: status.get("step") == "Prepare")
    cluster.wait("fixed", lambda status: status["steps"][0]["state"] == "Running")

    error = cluster.sandbox.refused(
        "patch", "drun", "fixed", "--type=merge", "-p", '{"spec":{"training":{"epochs":9}}}'
    )

    assert "spec.training is immutable once the run has started" in error
    cluster.release("drafter-prepare")


def test_a_missing_reference_is_a_condition_and_the_run_goes_on_when_it_appears(
    cluster: OperatorCluster,
) -> None:
    source = {"configMap": {"name": "later", "key": "p.jsonl"}}
    cluster.apply_run("waiting", data={"prompts": source, "gpus": 0})
    cluster.wait("waiting", lambda status: bool(status.get("conditions")))
    accepted = cluster.condition("waiting", "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ConfigMapNotFound")
    assert "later" in accepted["message"]

    cluster.sandbox.kubectl("create", "configmap", "later", "--from-literal=p.jsonl={}")
    cluster.wait_for_phase("waiting", "Succeeded")


def test_a_drafter_that_accepts_nothing_is_refused_with_the_likely_causes(
    cluster: OperatorCluster,
) -> None:
    for depth in (2, 4):
        (cluster.control / f"depth-{depth}.acceptance").write_text("1.0")
    cluster.apply_run("deaf")

    status = cluster.wait_for_phase("deaf", "Succeeded")

    assert "promoted" not in status
    for candidate in status["candidates"][1:]:
        assert candidate["reason"] == "AcceptanceTooLow"
        assert "midlayer" in candidate["message"]
        assert "auxiliary layers" in candidate["message"]
    promoted = cluster.condition("deaf", "Promoted")
    assert (promoted["status"], promoted["reason"]) == ("False", "NoCandidateEligible")


def test_nothing_is_promoted_when_no_candidate_beats_the_baseline(
    cluster: OperatorCluster,
) -> None:
    cluster.apply_run("slow", promotion={"minimumSpeedup": "2"})

    status = cluster.wait_for_phase("slow", "Succeeded")

    assert "best" not in status
    promoted = cluster.condition("slow", "Promoted")
    assert promoted["reason"] == "NoCandidateBeatsBaseline"
    assert "promotion.minimumSpeedup" in promoted["message"]
    assert cluster.steps("slow")["Promote"]["state"] == "Skipped"


def test_a_server_that_crashes_disqualifies_its_candidate_only(cluster: OperatorCluster) -> None:
    (cluster.control / "server-depth-4.crash").touch()
    cluster.apply_run("crash")

    status = cluster.wait_for_phase("crash", "Succeeded")

    crashed = status["candidates"][2]
    assert (crashed["state"], crashed["reason"]) == ("Failed", "ServerCrashed")
    assert "was told to crash" in crashed["message"]
    assert status["best"]["candidate"] == "depth-2"


def test_progress_comes_from_the_pod_s_metrics_without_a_storm_of_writes(
    cluster: OperatorCluster,
) -> None:
    (cluster.control / "drafter-extract.metrics").write_text(
        'drafter_job_work_done{unit="samples"} 10\ndrafter_job_work_expected{unit="samples"} 40\n'
    )
    cluster.hold("drafter-extract")
    cluster.apply_run("busy")
    status = cluster.wait(
        "busy", lambda status: any("progress" in step for step in status.get("steps", []))
    )

    progress = status["steps"][1]["progress"]
    assert (progress["done"], progress["total"], progress["unit"]) == (10, 40, "samples")
    # Nothing goes on, so that nothing is written: a pass each half second finds all as it was.
    assert cluster.count_changes("busy", seconds=3) <= 1
    cluster.release("drafter-extract")
    status = cluster.wait("busy", lambda status: status.get("step") == "Train")
    assert "progress" not in status["steps"][1]


def test_sigterm_stops_the_operator_within_ten_seconds(cluster: OperatorCluster) -> None:
    cluster.hold("drafter-prepare")
    cluster.apply_run("stop")
    cluster.wait("stop", lambda status: status.get("step") == "Prepare")

    assert cluster.kill_operator(signal.SIGTERM) < 10
    cluster.release("drafter-prepare")


def test_events_tell_the_transitions_once(cluster: OperatorCluster) -> None:
    cluster.apply_run("events")
    cluster.wait_for_phase("events", "Succeeded")

    found = json.loads(
        cluster.sandbox.kubectl(
            *("get", "events", "-o", "json"),
            *("--field-selector", "involvedObject.name=events,involvedObject.kind=DrafterRun"),
        )
    )["items"]
    messages = [event["message"] for event in found]
    assert len(messages) == len(set(messages))
    assert all(len(message) < 1024 for message in messages)
    assert any("Export" in message and "renamed" in message for message in messages)
