"""The pure decisions of the sandbox's node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from drafter_sandbox.node import container_status as states
from drafter_sandbox.node.addresses import AddressesExhaustedError, AddressPool
from drafter_sandbox.node.deployments import ReplicaCounts, plan_rollout, template_hash
from drafter_sandbox.node.environment import (
    MissingReferenceError,
    container_environment,
    expand,
)
from drafter_sandbox.node.images import ImageTableError, load_images
from drafter_sandbox.node.jobs import plan_job
from drafter_sandbox.node.scheduler import unschedulable
from drafter_sandbox.node.services import endpoints, host_lines
from drafter_sandbox.node.substitutions import Substitutions

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("/data", "/host/claim"),
        ("/data/run/x.json", "/host/claim/run/x.json"),
        ("--output=/data/x", "--output=/host/claim/x"),
        ("/database", "/database"),
        ("/some/data/x", "/some/data/x"),
        ("/data/models/m", "/host/models/m"),
        ("a:/data/x;/data", "a:/host/claim/x;/host/claim"),
        ("0.0.0.0", "127.64.0.9"),
        ("--host=0.0.0.0", "--host=127.64.0.9"),
        ("10.0.0.0", "10.0.0.0"),
        ("version 0.0.0.0", "version 0.0.0.0"),
    ],
)
def test_mount_paths_and_the_wildcard_address_are_replaced(word: str, meaning: str) -> None:
    paths = {"/data": "/host/claim", "/data/models": "/host/models"}
    assert Substitutions(paths, "127.64.0.9").apply(word) == meaning


def test_variables_come_from_values_references_and_the_pod_itself() -> None:
    pod = {"metadata": {"name": "p", "labels": {"app": "x"}}, "status": {"podIP": "127.64.0.1"}}
    container = {
        "resources": {"limits": {"memory": "1Gi"}},
        "envFrom": [{"configMapRef": {"name": "all"}, "prefix": "C_"}],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(NONE)-$$(A)"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
        ],
    }
    objects: dict[tuple[str, str], dict[str, Any]] = {
        ("configmaps", "all"): {"data": {"x": "y"}},
        ("secrets", "s"): {"data": {"k": "c2VjcmV0"}},
    }
    found = container_environment(pod, container, lambda *key: objects.get(key))
    assert found == {
        "C_x": "y",
        "A": "1",
        "B": "1-$(NONE)-$(A)",
        "KEY": "secret",
        "IP": "127.64.0.1",
        "APP": "x",
        "MEM": str(1 << 30),
    }
    assert expand("$(A)", {"A": "b"}) == "b"
    with pytest.raises(MissingReferenceError, match='configmap "all" not found'):
        container_environment(pod, container, lambda *_: None)


def pod_of(phase: str, code: int | None = None, finished: datetime = NOW) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase}
    if code is not None:
        ended = {"exitCode": code, "finishedAt": finished.isoformat()}
        status["containerStatuses"] = [{"name": "job", "state": {"terminated": ended}}]
    metadata = {"name": f"p-{phase}-{code}", "namespace": "n", "creationTimestamp": NOW.isoformat()}
    return {"metadata": metadata, "status": status}


def job_of(**spec: Any) -> dict[str, Any]:
    return {"spec": {"backoffLimit": 2, "completions": 1, "parallelism": 1, **spec}, "status": {}}


POLICY = {
    "rules": [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "job", "operator": "In", "values": [10, 11]},
        }
    ]
}


def condition_types(status: dict[str, Any]) -> set[str]:
    return {found["type"] for found in status["conditions"] if found["status"] == "True"}


def test_a_job_creates_its_pod_and_completes_with_it() -> None:
    assert list(plan_job(job_of(), [], NOW, 10).create) == [None]
    done = plan_job(job_of(), [pod_of("Succeeded", 0)], NOW, 10)
    assert list(done.create) == []
    assert {"Complete", "SuccessCriteriaMet"} <= condition_types(done.status)


def test_a_failed_pod_is_replaced_after_a_pause_that_doubles() -> None:
    soon = plan_job(job_of(), [pod_of("Failed", 1)], NOW + timedelta(seconds=4), 10)
    assert (list(soon.create), soon.again_seconds) == ([], 6)
    later = plan_job(job_of(), [pod_of("Failed", 1)], NOW + timedelta(seconds=11), 10)
    assert list(later.create) == [None]
    twice = plan_job(job_of(), [pod_of("Failed", 1)] * 2, NOW + timedelta(seconds=11), 10)
    assert twice.again_seconds == 9


def test_a_job_fails_at_its_backoff_limit_or_at_once_by_its_policy() -> None:
    limit = plan_job(job_of(), [pod_of("Failed", 1)] * 3, NOW, 10)
    assert limit.status["conditions"][-1]["reason"] == "BackoffLimitExceeded"
    policy = plan_job(job_of(podFailurePolicy=POLICY), [pod_of("Failed", 11)], NOW, 10)
    failed = policy.status["conditions"][-1]
    assert failed["reason"] == "PodFailurePolicy"
    assert "exit code 11 matching FailJob rule at index 0" in failed["message"]
    retried = plan_job(job_of(podFailurePolicy=POLICY), [pod_of("Failed", 137)], NOW, 0)
    assert list(retried.create) == [None]


def test_a_suspended_job_deletes_its_pods_and_forgets_its_start() -> None:
    plan = plan_job(job_of(suspend=True), [pod_of("Running")], NOW, 10)
    assert list(plan.delete) == ["p-Running-None"]
    assert "startTime" not in plan.status
    assert condition_types(plan.status) == {"Suspended"}


def test_an_indexed_job_creates_the_indexes_that_are_missing() -> None:
    job = job_of(completionMode="Indexed", completions=3, parallelism=3)
    done = pod_of("Succeeded", 0)
    done["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": "1"}
    plan = plan_job(job, [done], NOW, 10)
    assert list(plan.create) == [0, 2]
    assert plan.status["completedIndexes"] == "1"


def test_recreate_waits_for_the_old_pods_and_rolling_update_keeps_enough_ready() -> None:
    old = ReplicaCounts(wanted=1, present=1, ready=1)
    fresh = ReplicaCounts(wanted=0, present=0, ready=0)
    assert plan_rollout({"type": "Recreate"}, 1, fresh, [old]) == (0, [0])
    gone = ReplicaCounts(wanted=0, present=0, ready=0)
    assert plan_rollout({"type": "Recreate"}, 1, fresh, [gone]) == (1, [0])
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    three = ReplicaCounts(wanted=3, present=3, ready=3)
    assert plan_rollout(rolling, 3, fresh, [three]) == (1, [3])
    one_ready = ReplicaCounts(wanted=1, present=1, ready=1)
    assert plan_rollout(rolling, 3, one_ready, [three]) == (1, [2])


def test_a_templates_hash_does_not_depend_on_the_order_of_its_fields() -> None:
    assert template_hash({"a": 1, "b": 2}) == template_hash({"b": 2, "a": 1})
    assert template_hash({"a": 1}) != template_hash({"a": 2})


NODE: dict[str, Any] = {
    "metadata": {"labels": {"kubernetes.io/os": "linux"}},
    "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "2"}},
}


def asking(**requests: str) -> dict[str, Any]:
    names = {name.replace("gpu", "nvidia.com/gpu"): value for name, value in requests.items()}
    spec = {"containers": [{"resources": {"requests": names}}]}
    return {"spec": spec, "status": {"phase": "Running"}}


def test_a_pod_that_does_not_fit_waits_with_the_schedulers_words() -> None:
    assert unschedulable(asking(cpu="2"), NODE, []) is None
    lacking = unschedulable(asking(gpu="1"), NODE, [])
    assert lacking == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    busy = unschedulable(asking(cpu="1500m"), NODE, [asking(cpu="1")])
    assert busy == "0/1 nodes are available: 1 Insufficient cpu."
    full = unschedulable(asking(), NODE, [asking(), asking()])
    assert full == "0/1 nodes are available: 1 Too many pods."
    elsewhere = asking() | {"spec": {"nodeSelector": {"gpu": "h200"}, "containers": []}}
    assert "node affinity/selector" in str(unschedulable(elsewhere, NODE, []))


def test_a_service_sends_to_ready_pods_and_its_names_resolve() -> None:
    service = {
        "metadata": {"name": "web", "namespace": "a"},
        "spec": {
            "clusterIP": "127.96.0.1",
            "selector": {"app": "x"},
            "ports": [{"port": 80, "targetPort": "http"}],
        },
    }
    container = {"ports": [{"name": "http", "containerPort": 8000}]}
    ready = {
        "metadata": {"namespace": "a", "labels": {"app": "x"}},
        "spec": {"containers": [container]},
        "status": {
            "phase": "Running",
            "podIP": "127.64.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    starting = {**ready, "status": {**ready["status"], "conditions": []}}
    assert endpoints(service, [ready, starting]) == {80: [("127.64.0.1", 8000)]}
    (line,) = host_lines("a", [service], [ready])
    assert line.split()[:3] == ["127.96.0.1", "web", "web.a"]
    (other,) = host_lines("b", [service], [ready])
    assert "web.a.svc.cluster.local" in other.split()
    assert "web" not in other.split()


def test_addresses_are_handed_out_once_and_again_after_the_others() -> None:
    import ipaddress

    pool = AddressPool(ipaddress.IPv4Network("127.70.0.0/30"), used=["127.70.0.1"])
    assert [pool.take(), pool.take()] == ["127.70.0.2", "127.70.0.3"]
    with pytest.raises(AddressesExhaustedError):
        pool.take()
    pool.free("127.70.0.2")
    assert pool.take() == "127.70.0.2"


def status_of(state: dict[str, Any], restarts: int = 0) -> dict[str, Any]:
    return {"state": state, "restartCount": restarts, "ready": False}


def test_the_phase_follows_from_the_containers_and_the_restart_policy() -> None:
    running = status_of(states.running("t"))
    good = status_of({"terminated": {"exitCode": 0}})
    bad = status_of({"terminated": {"exitCode": 3}})
    assert states.pod_phase("Always", [], False, False) == "Pending"
    assert states.pod_phase("Always", [running], True, False) == "Running"
    assert states.pod_phase("Never", [good, running], True, False) == "Running"
    assert states.pod_phase("Never", [good, good], True, False) == "Succeeded"
    assert states.pod_phase("Never", [good, bad], True, False) == "Failed"
    assert states.pod_phase("OnFailure", [bad], True, False) == "Running"
    assert states.pod_phase("Never", [], False, True) == "Failed"


def test_the_pause_before_a_restart_doubles_up_to_five_minutes() -> None:
    pauses = [states.backoff_seconds(count, 10) for count in (1, 2, 3, 9)]
    assert pauses == [10, 20, 40, 300]


def test_an_image_stands_for_a_local_command(tmp_path: Path) -> None:
    table = tmp_path / "images.yaml"
    table.write_text(
        "images:\n"
        "  - name: '*/drafter-jobs'\n"
        "    path: ['{here}']\n"
        "    commands: [{match: [python3, -m, x], run: ['{python}', -m, y]}]\n"
    )
    image = load_images(table).find("registry.example:5000/a/drafter-jobs:1.2")
    assert image is not None
    assert image.path == (str(tmp_path),)
    assert image.argv(["python3", "-m", "x"], ["--z"])[1:] == ["-m", "y", "--z"]
    assert image.argv(["sh"], ["-c", "x"]) == ["sh", "-c", "x"]
    assert load_images(table).find("other:1") is None
    table.write_text("images: [{path: []}]\n")
    with pytest.raises(ImageTableError, match="name"):
        load_images(table)
