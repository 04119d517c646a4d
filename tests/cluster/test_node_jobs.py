"""Jobs: completion, retries, policies, indexes, suspension, deadlines, removal."""

from __future__ import annotations

from typing import Any

from node_cluster import NodeCluster, condition, holds, job, python, shell


def pods_of(node: NodeCluster, name: str) -> list[dict[str, Any]]:
    return node.list("pod", f"batch.kubernetes.io/job-name={name}")


def test_a_job_completes_and_says_when(node: NodeCluster) -> None:
    node.create("job", job("fine", shell("true")))
    found = node.wait_condition("job", "fine", "Complete")
    assert found["status"]["succeeded"] == 1
    assert found["status"]["completionTime"] >= found["status"]["startTime"]
    assert holds(found, "SuccessCriteriaMet")
    (pod,) = pods_of(node, "fine")
    assert (
        pod["metadata"]["labels"]["batch.kubernetes.io/controller-uid"]
        == (found["metadata"]["uid"])
    )
    node.sandbox.kubectl("logs", "job/fine", "-n", node.namespace)


def test_a_job_makes_new_pods_until_its_backoff_limit(node: NodeCluster) -> None:
    node.create("job", job("bad", shell("exit 1"), backoffLimit=2))
    found = node.wait_condition("job", "bad", "Failed")
    assert condition(found, "Failed")["reason"] == "BackoffLimitExceeded"
    assert found["status"]["failed"] == 3
    assert len(pods_of(node, "bad")) == 3


def test_restarts_in_place_count_towards_the_backoff_limit(node: NodeCluster) -> None:
    body = job("retry", shell("exit 1"), restart_policy="OnFailure", backoffLimit=1)
    node.create("job", body)
    found = node.wait_condition("job", "retry", "Failed")
    assert condition(found, "Failed")["reason"] == "BackoffLimitExceeded"


def test_a_job_fails_only_once_its_other_pods_are_gone(node: NodeCluster) -> None:
    program = (
        "import os, signal, sys, time\n"
        "if os.environ['JOB_COMPLETION_INDEX'] == '1': sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(0)))\n"
        "time.sleep(99)\n"
    )
    indexed = {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
    node.create("job", job("half", python(program), backoffLimit=0, **indexed))
    aimed = node.wait_condition("job", "half", "FailureTarget")
    assert not holds(aimed, "Failed")
    failed = node.wait_condition("job", "half", "Failed")
    assert not failed["status"].get("active")
    assert not failed["status"].get("terminating")


def test_a_policy_fails_a_job_by_exit_code_and_says_which(node: NodeCluster) -> None:
    policy = {
        "rules": [
            {
                "action": "FailJob",
                "onExitCodes": {"containerName": "main", "operator": "In", "values": [12]},
            }
        ]
    }
    node.create("job", job("final", shell("exit 12"), podFailurePolicy=policy))
    found = node.wait_condition("job", "final", "Failed")
    failed = condition(found, "Failed")
    assert failed["reason"] == "PodFailurePolicy"
    assert "exit code 12 matching FailJob rule at index 0" in failed["message"]
    assert len(pods_of(node, "final")) == 1


def test_an_indexed_job_names_its_pods_and_counts_its_indexes(node: NodeCluster) -> None:
    program = "import os; print(os.environ['JOB_COMPLETION_INDEX'], os.environ['HOSTNAME'])"
    indexed = {"completionMode": "Indexed", "completions": 3, "parallelism": 3}
    node.create("job", job("ranks", python(program), **indexed))
    found = node.wait_condition("job", "ranks", "Complete")
    assert found["status"]["completedIndexes"] == "0-2"
    said = sorted(node.log(pod["metadata"]["name"]) for pod in pods_of(node, "ranks"))
    assert said == ["0 ranks-0\n", "1 ranks-1\n", "2 ranks-2\n"]


def test_suspending_a_job_ends_its_pods_and_costs_no_attempt(node: NodeCluster) -> None:
    body = job("pausing", shell("test -e /tmp/never || sleep 99; exit 1"), backoffLimit=0)
    node.create("job", body)
    node.wait("job", "pausing", lambda found: found["status"].get("ready") == 1)
    node.patch("job", "pausing", {"spec": {"suspend": True}})
    node.patch("job", "pausing", {"spec": {"suspend": False}})
    node.patch("job", "pausing", {"spec": {"suspend": True}})
    found = node.wait_condition("job", "pausing", "Suspended")
    assert "startTime" not in found["status"]
    node.wait("job", "pausing", lambda found: not found["status"].get("terminating"))
    assert pods_of(node, "pausing") == []
    node.patch("job", "pausing", {"spec": {"suspend": False}})
    found = node.wait("job", "pausing", lambda found: found["status"].get("ready") == 1)
    assert condition(found, "Suspended")["reason"] == "JobResumed"
    assert not found["status"].get("failed")
    assert not holds(found, "Failed")
    node.delete("job", "pausing")


def test_a_pod_deleted_by_hand_is_replaced(node: NodeCluster) -> None:
    node.create("job", job("kept", shell("sleep 99"), backoffLimit=0))
    node.wait("job", "kept", lambda found: found["status"].get("ready") == 1)
    (first,) = pods_of(node, "kept")
    node.delete("pod", first["metadata"]["name"])
    node.wait_gone("pod", first["metadata"]["name"])
    node.wait("job", "kept", lambda found: found["status"].get("ready") == 1)
    (second,) = pods_of(node, "kept")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    node.delete("job", "kept")


def test_a_job_that_takes_too_long_fails(node: NodeCluster) -> None:
    node.create("job", job("slow", shell("sleep 99"), activeDeadlineSeconds=1))
    found = node.wait_condition("job", "slow", "Failed")
    assert condition(found, "Failed")["reason"] == "DeadlineExceeded"
    assert not found["status"].get("active")


def test_a_finished_job_goes_with_its_pods_after_its_time_to_live(node: NodeCluster) -> None:
    node.create("job", job("brief", shell("true"), ttlSecondsAfterFinished=1))
    node.wait_condition("job", "brief", "Complete")
    node.wait_gone("job", "brief")
    assert pods_of(node, "brief") == []
