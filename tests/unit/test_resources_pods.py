"""What a user's Pod settings and the place of the target make of a run's Pods."""

from __future__ import annotations

from typing import Any

from drafter_operator.resources import jobs, serving
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import CandidateId, Run

HUB = {"hubId": "a/b"}
DATASET = {"prompts": {"dataset": {"id": "a/prompts"}}}


def run_of(**sections: Any) -> Run:
    spec: dict[str, Any] = {
        "target": {"path": "model", "claimName": "models"},
        "storage": {"claimName": "files"},
        "data": {"prompts": {"path": "prompts.jsonl"}},
    }
    return Run.from_object(
        {
            "metadata": {"name": "r", "namespace": "n", "uid": "01234567-89ab"},
            "spec": spec | sections,
        }
    )


def container(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["spec"]["template"]["spec"]["containers"][0]
    return found


def environment(body: dict[str, Any]) -> dict[str, str]:
    variables = container(body)["env"]
    names = [variable["name"] for variable in variables]
    # Server-side apply refuses a list that has a key twice.
    assert len(names) == len(set(names)), names
    return {variable["name"]: variable.get("value", "") for variable in variables}


def data_is_read_only(body: dict[str, Any]) -> bool:
    mounts = {mount["name"]: mount for mount in container(body)["volumeMounts"]}
    return bool(mounts["data"].get("readOnly"))


def server(run: Run) -> dict[str, Any]:
    body: dict[str, Any] = serving.deployment(run, CandidateId(4), 1, OperatorSettings())
    return body


def training(run: Run, settings: OperatorSettings | None = None) -> dict[str, Any]:
    body: dict[str, Any] = jobs.train_job(run, 1, False, settings or OperatorSettings(), 8192)
    return body


def test_a_users_variable_takes_the_place_of_the_operators() -> None:
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    pod = {"env": [{"name": "HOME", "value": "/scratch"}, token]}
    body = training(run_of(training={"pod": pod}))
    assert environment(body)["HOME"] == "/scratch"
    assert token in container(body)["env"]


def test_a_target_from_the_hub_is_kept_in_the_runs_storage() -> None:
    run = run_of(target=HUB)
    for body in (training(run), server(run)):
        assert environment(body)["HF_HOME"] == "/data/huggingface"
        assert not data_is_read_only(body)


def test_a_server_with_read_only_storage_keeps_no_cache_there() -> None:
    body = server(run_of(data=DATASET))
    assert data_is_read_only(body)
    assert "HF_HOME" not in environment(body)
    assert environment(training(run_of(data=DATASET)))["HF_HOME"] == "/data/huggingface"


def test_gpus_join_a_users_resources_under_the_clusters_name_for_them() -> None:
    pod = {"resources": {"requests": {"cpu": 4}, "limits": {"memory": "64Gi"}}}
    run = run_of(training={"gpusPerNode": 2, "pod": pod})
    body = training(run, OperatorSettings(gpu_resource_name="example.com/gpu"))
    assert container(body)["resources"] == {
        "requests": {"cpu": 4, "example.com/gpu": "2"},
        "limits": {"memory": "64Gi", "example.com/gpu": "2"},
    }


def test_tolerations_and_the_place_of_a_pod_are_passed_on() -> None:
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    pod = {
        "tolerations": [toleration],
        "nodeSelector": {"accelerator": "h200"},
        "priorityClassName": "high",
    }
    spec = server(run_of(serving={"pod": pod}))["spec"]["template"]["spec"]
    assert spec["tolerations"] == [toleration]
    assert spec["nodeSelector"] == {"accelerator": "h200"}
    assert spec["priorityClassName"] == "high"
    assert "runtimeClassName" not in spec


def test_only_failures_that_another_try_may_cure_are_tried_again() -> None:
    rules = training(run_of())["spec"]["podFailurePolicy"]["rules"]
    fail = next(rule for rule in rules if rule["action"] == "FailJob")
    assert fail["onExitCodes"]["values"] == [10, 11, 12, 13, 14, 15, 16]
    ignored = next(rule for rule in rules if rule["action"] == "Ignore")
    assert ignored["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_the_names_of_children_fit_the_longest_name_of_a_run() -> None:
    run = run_of()
    longest = Run.from_object(
        {
            "metadata": {"name": "r" * 40, "namespace": "n", "uid": run.uid},
            "spec": run.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
    )
    job = jobs.benchmark_job(longest, CandidateId(256), 9, False, OperatorSettings())
    service = serving.candidate_service(longest, CandidateId(256))
    for body in (job, service):
        assert len(body["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in body["metadata"]["labels"].values())


def test_the_administrators_variables_are_in_every_pod_and_the_runs_own_win() -> None:
    settings = OperatorSettings(environment=(("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", ".svc")))
    run = run_of(training={"pod": {"env": [{"name": "NO_PROXY", "value": "mine"}]}})
    job = jobs.train_job(run, 1, False, settings, 8192)
    assert environment(job).items() >= {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "mine"}.items()
    server = serving.deployment(run, CandidateId(0), 1, settings)
    assert environment(server)["NO_PROXY"] == ".svc"
