"""Decisions of the sandbox's node at the edges: ends of Jobs, tolerations, ranges, probes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from drafter_sandbox.node.container_status import with_disruption
from drafter_sandbox.node.images import base_name
from drafter_sandbox.node.jobs import index_ranges, plan_job
from drafter_sandbox.node.probes import ContainerProbes, probe_succeeds
from drafter_sandbox.node.scheduler import unschedulable
from drafter_sandbox.node.services import host_lines

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEAVING = {"deletionTimestamp": NOW.isoformat()}


def pod(name: str, phase: str, code: int | None = None, **metadata: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase}
    if code is not None:
        ended = {"exitCode": code, "finishedAt": NOW.isoformat()}
        found = {"name": "main", "restartCount": 0, "state": {"terminated": ended}}
        status["containerStatuses"] = [found]
    known = {"name": name, "namespace": "n", "creationTimestamp": NOW.isoformat()}
    return {"metadata": {**known, **metadata}, "status": status}


def job(conditions: list[dict[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": spec.pop("restartPolicy", "Never")}}
    wanted = {"backoffLimit": 0, "completions": 1, "parallelism": 1, "template": template}
    return {"spec": {**wanted, **spec}, "status": {"conditions": conditions or []}}


def holding(status: dict[str, Any]) -> set[str]:
    return {item["type"] for item in status["conditions"] if item["status"] == "True"}


@pytest.mark.parametrize(
    ("indexes", "text"),
    [(set(), ""), ({3}, "3"), ({0, 1}, "0,1"), ({0, 2, 3, 4, 7}, "0,2-4,7")],
)
def test_completed_indexes_are_written_as_ranges(indexes: set[int], text: str) -> None:
    assert index_ranges(indexes) == text


def test_a_job_aims_at_failure_until_its_last_pod_is_gone() -> None:
    spec = {"completions": 2, "parallelism": 2}
    pods = [pod("bad", "Failed", 1), pod("other", "Running")]
    aiming = plan_job(job(**spec), pods, NOW, 10)
    assert list(aiming.delete) == ["other"]
    assert holding(aiming.status) == {"FailureTarget"}
    # What happens meanwhile does not change its mind.
    pods = [pod("bad", "Failed", 1), pod("other", "Succeeded", 0, **LEAVING)]
    final = plan_job(job(aiming.status["conditions"], **spec), pods, NOW, 10)
    assert holding(final.status) == {"FailureTarget", "Failed"}
    assert final.status["conditions"][-1]["reason"] == "BackoffLimitExceeded"


def test_a_pod_told_to_end_is_no_failed_attempt() -> None:
    plan = plan_job(job(), [pod("told", "Failed", 143, **LEAVING)], NOW, 10)
    assert holding(plan.status) == set()
    assert list(plan.create) == [None]


@pytest.mark.parametrize(("policy", "created"), [("TerminatingOrFailed", 1), ("Failed", 0)])
def test_a_pod_is_replaced_when_the_replacement_policy_says(policy: str, created: int) -> None:
    pods = [pod("ending", "Running", **LEAVING)]
    assert len(plan_job(job(podReplacementPolicy=policy), pods, NOW, 10).create) == created


def test_a_pause_between_attempts_ends_at_the_deadline() -> None:
    waiting = job(backoffLimit=3, activeDeadlineSeconds=5)
    plan = plan_job(waiting, [pod("bad", "Failed", 1)], NOW, 10)
    assert plan.again_seconds == 5
    late = job(backoffLimit=3, activeDeadlineSeconds=5)
    late["status"]["startTime"] = NOW.isoformat()
    plan = plan_job(late, [pod("bad", "Failed", 1)], NOW + timedelta(seconds=6), 10)
    assert plan.status["conditions"][-1]["reason"] == "DeadlineExceeded"


def test_a_suspended_job_may_still_complete_but_not_run_out_of_time() -> None:
    suspended = job(suspend=True, activeDeadlineSeconds=1)
    suspended["status"]["startTime"] = (NOW - timedelta(hours=1)).isoformat()
    assert holding(plan_job(suspended, [], NOW, 10).status) == {"Suspended"}
    done = plan_job(suspended, [pod("done", "Succeeded", 0)], NOW, 10)
    assert "Complete" in holding(done.status)


def node(**spec: Any) -> dict[str, Any]:
    amounts = {"cpu": "2", "memory": "4Gi", "pods": "5"}
    metadata = {"name": "sandbox", "labels": {"generation": "3"}}
    return {"metadata": metadata, "spec": spec, "status": {"allocatable": amounts}}


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_keeps_away_pods_that_do_not_tolerate_it(
    toleration: dict[str, str], tolerates: bool
) -> None:
    asking = {"spec": {"containers": [], "tolerations": [toleration]}}
    reason = unschedulable(asking, node(taints=[TAINT]), [])
    assert (reason is None) is tolerates
    if not tolerates:
        assert "untolerated taint {gpu: yes}" in str(reason)


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("In", ["3"], True),
        ("NotIn", ["3"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["2"], True),
        ("Lt", ["2"], False),
    ],
)
def test_required_affinity_is_held_against_the_nodes_labels(
    operator: str, values: list[str], fits: bool
) -> None:
    term = {"key": "generation", "operator": operator, "values": values}
    required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    asking = {"spec": {"containers": [], "affinity": affinity}}
    assert (unschedulable(asking, node(), []) is None) is fits


def test_a_headless_service_does_not_name_another_namespaces_pods() -> None:
    spec = {"clusterIP": "None", "selector": {"app": "x"}, "ports": [{"port": 1}]}
    service = {"metadata": {"name": "peers", "namespace": "a"}, "spec": spec}
    status = {
        "phase": "Running",
        "podIP": "127.64.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    labels = {"labels": {"app": "x"}}
    found = {"spec": {"containers": []}, "status": status}
    assert host_lines("a", [service], [{"metadata": {"namespace": "b", **labels}, **found}]) == []
    own = {"metadata": {"namespace": "a", **labels}, **found}
    assert len(host_lines("a", [service], [own])) == 1


def test_a_disruption_is_noted_once() -> None:
    once = with_disruption([{"type": "Ready", "status": "False"}])
    assert [item["type"] for item in once] == ["Ready", "DisruptionTarget"]
    assert with_disruption(once) == once


@pytest.mark.parametrize("probe", [{"tcpSocket": {"port": "nowhere"}}, {"grpc": {"port": 1}}])
async def test_a_probe_that_cannot_be_made_fails(probe: dict[str, Any]) -> None:
    async def never(_: Any) -> bool:
        raise AssertionError("there is nothing to execute")

    async with aiohttp.ClientSession() as http:
        found = await probe_succeeds({"timeoutSeconds": 1, **probe}, {}, "127.0.0.1", http, never)
    assert found is False


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("python:3.11", "python"),
        ("docker.io/library/python@sha256:ab", "python"),
        ("docker.io/lmsysorg/sglang:v1", "lmsysorg/sglang"),
        ("registry.example:5000/team/drafter-jobs", "registry.example:5000/team/drafter-jobs"),
    ],
)
def test_an_image_is_found_by_the_name_it_is_known_by(image: str, name: str) -> None:
    assert base_name(image) == name


async def test_readiness_changes_only_after_its_thresholds() -> None:
    answers = [True, True, False, True, False, False]
    changes: list[bool] = []
    asked = asyncio.Event()

    async def check(_: Any) -> bool:
        if not answers:
            asked.set()
            await asyncio.Event().wait()
        return answers.pop(0)

    probe = {"successThreshold": 2, "failureThreshold": 2, "periodSeconds": 0}
    probes = ContainerProbes(
        {"readinessProbe": probe},
        check,
        lambda _, ready: changes.append(ready),
        lambda kind: pytest.fail(f"{kind} is not to fail"),
    )
    watching = asyncio.create_task(probes.watch())
    await asked.wait()
    watching.cancel()
    assert changes == [False, True, False]


async def test_a_startup_probe_has_all_its_attempts_before_the_container_is_unhealthy() -> None:
    attempts = 0
    unhealthy: list[str] = []

    async def check(_: Any) -> bool:
        nonlocal attempts
        attempts += 1
        return False

    probe = {"failureThreshold": 3, "periodSeconds": 0}
    probes = ContainerProbes({"startupProbe": probe}, check, lambda *_: None, unhealthy.append)
    await probes.watch()
    assert (attempts, unhealthy) == (3, ["Startup"])
