"""A pass over the API server: what it reads, what it writes, and when it is done again."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from fake_kubernetes import FakeKubernetes
from lifecycle_world import RESULTS, SPEC

from drafter_operator import metrics
from drafter_operator.cluster.api import ApiError
from drafter_operator.cluster.observe import observe
from drafter_operator.handlers import reconciler as reconciling
from drafter_operator.handlers.reconciler import Reconciler
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import Run

RUN_LABELS = {"drafters.dev/run": "r"}


def run_object(uid: str = "0123456789", **fields: Any) -> dict[str, Any]:
    return {
        "kind": "DrafterRun",
        "metadata": {"name": "r", "namespace": "n", "uid": uid, "generation": 1},
        "spec": copy.deepcopy(SPEC),
        **fields,
    }


def references() -> list[dict[str, Any]]:
    return [
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "models"}},
        {"kind": "ConfigMap", "metadata": {"name": "prompts"}, "data": {"p.jsonl": "{}"}},
    ]


def owner(uid: str = "0123456789") -> list[dict[str, Any]]:
    return [{"kind": "DrafterRun", "name": "r", "uid": uid, "controller": True}]


def finished_job(uid: str = "0123456789") -> dict[str, Any]:
    return {
        "kind": "Job",
        "metadata": {"name": "r-prepare-1", "labels": RUN_LABELS, "ownerReferences": owner(uid)},
        "spec": {},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    }


def pod(phase: str, **terminated: Any) -> dict[str, Any]:
    state = {"terminated": terminated} if terminated else {"running": {}}
    return {
        "kind": "Pod",
        "metadata": {
            "name": "r-prepare-1-x",
            "labels": RUN_LABELS | {"batch.kubernetes.io/job-name": "r-prepare-1"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "status": {"phase": phase, "containerStatuses": [{"name": "job", "state": state}]},
    }


def succeeded_pod() -> dict[str, Any]:
    message = {"outcome": "Succeeded", "reason": "Succeeded", "message": "done"}
    text = json.dumps(message | {"result": RESULTS["prepare"]})
    return pod("Succeeded", exitCode=0, message=text)


def make_reconciler(api: FakeKubernetes) -> Reconciler:
    return Reconciler(api, OperatorSettings(), active_seconds=60, resync_seconds=60)


async def looked_after(api: FakeKubernetes, until: Callable[[], bool]) -> None:
    """Look after the run until something holds of the API server."""
    reconciler = make_reconciler(api)
    await reconciler.start()
    reconciler.wake(("n", "r"))
    async with asyncio.timeout(10):
        while not until():
            await asyncio.sleep(0)
    await reconciler.stop()


def status_of(api: FakeKubernetes) -> dict[str, Any]:
    status: dict[str, Any] = api.objects["DrafterRun", "r"].get("status", {})
    return status


async def observed(api: FakeKubernetes) -> Any:
    async with aiohttp.ClientSession() as http:
        return await observe(api, http, Run.from_object(api.objects["DrafterRun", "r"]))


async def test_the_first_job_and_the_claim_are_made_and_the_status_is_written() -> None:
    api = FakeKubernetes(run_object(), *references())
    await looked_after(api, lambda: "phase" in status_of(api))

    assert ("Job", "r-prepare-1") in api.objects
    assert ("PersistentVolumeClaim", "r") in api.objects
    assert status_of(api)["steps"][0]["state"] == "Running"


async def test_a_pass_that_finds_nothing_new_writes_nothing() -> None:
    api = FakeKubernetes(run_object(), *references())
    written = []
    for _ in range(3):
        api.calls.clear()
        await looked_after(api, lambda: bool(api.calls))
        written.append(sorted(call[1] for call in api.writes() if call[1] != "Event"))

    # The second pass writes that the Job is there; the third finds all as it was.
    assert written == [["DrafterRun", "Job", "PersistentVolumeClaim"], ["DrafterRun"], []]


async def test_a_complete_job_has_its_pod_s_result_whatever_the_moment() -> None:
    """The Pod ends between the two lists: the Job must not be complete and its Pod running."""
    running = finished_job() | {"status": {}}
    api = FakeKubernetes(run_object(), *references(), running, pod("Running"))
    asked: list[str] = []

    def end_the_pod(verb: str, kind: str, name: str) -> None:
        if verb == "list" and kind in ("Job", "Pod"):
            asked.append(kind)
            if len(asked) == 2:
                api.objects["Pod", "r-prepare-1-x"] = succeeded_pod()
                api.objects["Job", "r-prepare-1"] = finished_job()

    api.before = end_the_pod
    job = (await observed(api)).jobs["r-prepare-1"]

    assert asked == ["Job", "Pod"]
    assert not job.complete


async def test_a_job_of_an_earlier_run_of_the_name_is_not_this_run_s() -> None:
    api = FakeKubernetes(
        run_object(uid="new-uid-00"), *references(), finished_job(), succeeded_pod()
    )

    assert (await observed(api)).jobs == {}
    await looked_after(api, lambda: "phase" in status_of(api))
    assert status_of(api)["steps"][0]["state"] == "Running"
    # The garbage collector removes it, and then the run's own is made.
    assert api.objects["Job", "r-prepare-1"]["metadata"]["ownerReferences"] == owner()


async def test_somebody_else_s_object_is_left_alone_and_an_event_says_so() -> None:
    foreign = {"kind": "Job", "metadata": {"name": "r-prepare-1"}, "spec": {"mine": True}}
    api = FakeKubernetes(run_object(), *references(), foreign)
    await looked_after(api, lambda: any(kind == "Event" for kind, _ in api.objects))

    assert api.objects["Job", "r-prepare-1"] == foreign
    event = next(body for (kind, _), body in api.objects.items() if kind == "Event")
    assert (event["type"], event["reason"]) == ("Warning", "NameTaken")
    assert "the Job r-prepare-1 exists already and is not this run's" in event["message"]


async def test_fields_that_go_from_the_status_go_from_the_object() -> None:
    steps = [{"name": "Train", "state": "Failed", "attempt": 1}]
    training = {"loss": "nan", "epoch": 3, "packedSequenceLength": 512}
    body = run_object(status={"steps": steps, "training": training, "retry": "0"})
    body["metadata"]["annotations"] = {"drafters.dev/retry": "1"}
    api = FakeKubernetes(body, *references())
    await looked_after(api, lambda: status_of(api).get("retry") == "1")

    assert status_of(api)["training"] == {"packedSequenceLength": 512}


async def test_a_refused_request_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "FIRST_BACKOFF_SECONDS", 0.01)
    api = FakeKubernetes(run_object(), *references())
    failures = 0

    def refuse(verb: str, kind: str, name: str) -> None:
        nonlocal failures
        if (verb, kind) == ("apply", "Job") and failures < 3:
            failures += 1
            raise ApiError("PATCH", "/x", 500, "the server is ill")

    api.before = refuse
    await looked_after(api, lambda: ("Job", "r-prepare-1") in api.objects)

    assert failures == 3
    counted = metrics.REGISTRY.get_sample_value(
        "drafter_operator_reconcile_errors_total", {"kind": "ApiError"}
    )
    assert counted is not None
    assert counted >= 3


async def test_a_fault_of_the_operator_does_not_end_its_care(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciling, "FIRST_BACKOFF_SECONDS", 0.01)
    api = FakeKubernetes(run_object(), *references())
    faults = iter([ZeroDivisionError("a fault")])

    def fault(verb: str, kind: str, name: str) -> None:
        if verb == "list" and (error := next(faults, None)) is not None:
            raise error

    api.before = fault
    await looked_after(api, lambda: ("Job", "r-prepare-1") in api.objects)


async def test_a_pass_that_has_begun_writes_its_status_before_the_operator_stops() -> None:
    api = FakeKubernetes(run_object(), *references())
    reconciler = make_reconciler(api)
    stopping: list[asyncio.Task[None]] = []

    def stop_on_first_job(verb: str, kind: str, name: str) -> None:
        if (verb, kind) == ("apply", "Job") and not stopping:
            stopping.append(asyncio.create_task(reconciler.stop()))

    api.before = stop_on_first_job
    await reconciler.start()
    reconciler.wake(("n", "r"))
    async with asyncio.timeout(10):
        while not stopping:
            await asyncio.sleep(0)
        await stopping[0]

    steps = api.objects["DrafterRun", "r"]["status"]["steps"]
    assert steps[0]["state"] == "Running"
    reconciler.wake(("n", "r"))
    assert reconciler.keys() == [("n", "r")]


async def test_a_run_made_again_during_a_pass_is_not_forgotten() -> None:
    api = FakeKubernetes(*references())
    reconciler = make_reconciler(api)

    def make_again() -> None:
        api.objects["DrafterRun", "r"] = run_object()
        reconciler.wake(("n", "r"))

    def on_first_look(verb: str, kind: str, name: str) -> None:
        api.before = lambda verb, kind, name: None
        # The pass has read that there is no such run when this is done.
        asyncio.get_running_loop().call_soon(make_again)

    api.before = on_first_look
    await reconciler.start()
    reconciler.wake(("n", "r"))
    async with asyncio.timeout(10):
        while ("Job", "r-prepare-1") not in api.objects:
            await asyncio.sleep(0)
    await reconciler.stop()


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        (None, "ConfigMapNotFound", "data.prompts.configMap: there is no ConfigMap prompts in n"),
        ({"other.jsonl": ""}, "KeyNotFound", "has no key p.jsonl, only other.jsonl"),
    ],
)
async def test_a_missing_config_map_is_named_with_its_field(
    body: dict[str, str] | None, reason: str, words: str
) -> None:
    claim, config_map = references()
    there = [] if body is None else [config_map | {"data": body}]
    missing = (await observed(FakeKubernetes(run_object(), claim, *there))).missing

    assert [found.reason for found in missing] == [reason]
    assert words in missing[0].message


async def test_a_missing_claim_is_named_with_its_field() -> None:
    missing = (await observed(FakeKubernetes(run_object(), references()[1]))).missing

    assert missing[0].reason == "ClaimNotFound"
    assert "target.claimName: there is no PersistentVolumeClaim models in n" in missing[0].message


@pytest.mark.parametrize(
    ("modes", "training", "reason", "words"),
    [
        (["ReadOnlyMany"], {}, "ClaimReadOnly", "the run writes to it"),
        (["ReadWriteOnce"], {"nodes": 2}, "ClaimNotShared", "training.nodes is 2"),
    ],
)
async def test_a_claim_the_pods_cannot_write_is_refused_before_any_job(
    modes: list[str], training: dict[str, Any], reason: str, words: str
) -> None:
    run = run_object()
    run["spec"] |= {"storage": {"claimName": "mine"}, "training": training}
    mine = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "mine", "namespace": "n"},
        "spec": {"accessModes": modes},
    }
    missing = (await observed(FakeKubernetes(run, *references(), mine))).missing

    assert [found.reason for found in missing] == [reason]
    assert words in missing[0].message


async def test_the_last_lines_of_a_log_stand_for_a_missing_message() -> None:
    log = "".join(f"line {number}\n" for number in range(9))
    killed = pod("Failed", exitCode=137, message=log)
    api = FakeKubernetes(run_object(), *references(), finished_job(), killed)
    state = (await observed(api)).jobs["r-prepare-1"].pods[0]

    assert state.termination is None
    assert state.last_words == "line 3 | line 4 | line 5 | line 6 | line 7 | line 8"


DENIED = (
    'jobs.batch "r-prepare-1" is forbidden: User "system:serviceaccount:d:operator" cannot patch'
    ' resource "jobs" in API group "batch" in the namespace "n"'
)
QUOTA = 'jobs.batch "r-prepare-1" is forbidden: exceeded quota: jobs, requested: 1, limited: 0'


def progressing(api: FakeKubernetes) -> dict[str, str]:
    conditions = api.objects["DrafterRun", "r"]["status"]["conditions"]
    found: dict[str, str] = next(c for c in conditions if c["type"] == "Progressing")
    return found


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        (DENIED, "MissingRight", "may not patch jobs.batch in the namespace n"),
        (DENIED, "MissingRight", "the ServiceAccount d/operator"),
        (QUOTA, "RequestRefused", "exceeded quota: jobs, requested: 1, limited: 0"),
    ],
)
async def test_a_refused_request_is_a_condition_of_the_run_until_it_is_not(
    answer: str, reason: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciling, "FIRST_BACKOFF_SECONDS", 0.01)
    api = FakeKubernetes(run_object(), *references())
    refused = 0

    def refuse(verb: str, kind: str, name: str) -> None:
        nonlocal refused
        if (verb, kind) == ("apply", "Job"):
            refused += 1
            raise ApiError("PATCH", "/apis/batch/v1/namespaces/n/jobs/r-prepare-1", 403, answer)

    api.before = refuse
    await looked_after(api, lambda: refused == 3)
    condition = progressing(api)
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert words in condition["message"]
    # Said once, however often it is refused.
    assert [call[1] for call in api.writes() if call[0] != "apply"] == ["Event", "DrafterRun"]

    api.before = lambda verb, kind, name: None
    await looked_after(api, lambda: progressing(api)["status"] == "True")
    assert ("Job", "r-prepare-1") in api.objects
