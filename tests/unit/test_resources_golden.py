"""The objects of ``examples/kimi-k2.5.yaml``, as golden YAML.

``pytest tests/unit/test_resources_golden.py --update-golden`` writes them anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from drafter_operator.generate import dump_yaml
from drafter_operator.resources import claims, jobs, serving
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import CandidateId, Run

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden" / "kimi-k2.5"
SETTINGS = OperatorSettings()


def run_of(example: str, **training: Any) -> Run:
    body = yaml.safe_load((REPOSITORY / "examples" / example).read_text())
    body["metadata"] |= {"namespace": "models", "uid": "0a1b2c3d-0000-4000-8000-000000000000"}
    body["spec"].setdefault("training", {}).update(training)
    return Run.from_object(body)


def objects_of(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {
        "claim": claims.claim(run),
        "prepare": jobs.prepare_job(run, 1, False, SETTINGS),
        "extract": jobs.extract_job(run, 1, False, SETTINGS),
        "train": jobs.train_job(run, 1, False, SETTINGS, 8192),
        "export": jobs.export_job(run, 1, False, SETTINGS),
        "stable-service": serving.stable_service(run, CandidateId(16)),
    }
    for candidate in run.candidates:
        found[f"{candidate.name}-deployment"] = serving.deployment(run, candidate, 1, SETTINGS)
        found[f"{candidate.name}-service"] = serving.candidate_service(run, candidate)
        found[f"{candidate.name}-benchmark"] = jobs.benchmark_job(
            run, candidate, 1, False, SETTINGS
        )
    return found


KIMI = objects_of(run_of("kimi-k2.5.yaml"))


@pytest.mark.parametrize("name", KIMI)
def test_an_object_of_the_kimi_run_is_as_recorded(
    name: str, request: pytest.FixtureRequest
) -> None:
    file = GOLDEN / f"{name}.yaml"
    text = dump_yaml(KIMI[name])
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"{file} differs; look, then run with --update-golden"


@pytest.mark.parametrize("example", ["kimi-k2.5.yaml", "quickstart.yaml", "minimal.yaml"])
def test_every_object_of_an_example_is_valid_kubernetes(example: str) -> None:
    for name, body in objects_of(run_of(example)).items():
        if body is not None:
            kubernetes_validate.validate(body, "1.34", strict=True), name


def container(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["spec"]["template"]["spec"]["containers"][0]
    return found


def test_gpus_are_asked_for_by_the_steps_that_use_them() -> None:
    gpus = {
        name: container(body)["resources"].get("limits", {}).get("nvidia.com/gpu")
        for name, body in KIMI.items()
        if body["kind"] in ("Job", "Deployment")
    }
    assert gpus["prepare"] == gpus["extract"] == "8"
    assert gpus["train"] == "4"
    assert gpus["export"] is None
    assert gpus["depth-16-deployment"] == gpus["baseline-deployment"] == "8"
    assert gpus["depth-16-benchmark"] is None


def test_the_quick_start_asks_for_no_gpu() -> None:
    for body in objects_of(run_of("quickstart.yaml")).values():
        assert "nvidia.com/gpu" not in str(body)


def test_every_pod_is_hardened_and_has_no_token() -> None:
    for name, body in KIMI.items():
        if body["kind"] not in ("Job", "Deployment"):
            continue
        spec = body["spec"]["template"]["spec"]
        security = spec["containers"][0]["securityContext"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["capabilities"] == {"drop": ["ALL"]}, name


def test_several_nodes_make_an_indexed_job_with_a_headless_service() -> None:
    run = run_of("kimi-k2.5.yaml", nodes=2)
    job = jobs.train_job(run, 3, False, SETTINGS, 4096)
    service = jobs.train_service(run)
    assert service is not None
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    arguments = container(job)["args"]
    rendezvous = arguments[arguments.index("--rendezvous") + 1]
    assert rendezvous == "kimi-k2-5-train-3-0.kimi-k2-5-train:29500"
    assert jobs.train_service(run_of("kimi-k2.5.yaml")) is None


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("prepare", "prepare"),
        ("extract", "extract"),
        ("train", "train"),
        ("export", "export"),
        ("baseline-benchmark", "benchmark"),
        ("depth-16-benchmark", "benchmark"),
    ],
)
@pytest.mark.parametrize("example", ["kimi-k2.5.yaml", "quickstart.yaml", "minimal.yaml"])
def test_a_jobs_own_parser_takes_the_arguments_it_is_given(
    example: str, name: str, module: str
) -> None:
    import importlib

    run = run_of(example)
    objects = objects_of(run)
    deepest = f"depth-{run.spec.serving.depths[0]}-benchmark"
    body = objects[deepest if name == "depth-16-benchmark" else name]
    parser = importlib.import_module(f"drafter_jobs.{module}").build_parser()
    parsed = parser.parse_args(container(body)["args"])
    assert container(body)["command"] == [f"drafter-{module}"]
    assert str(parsed.target)
