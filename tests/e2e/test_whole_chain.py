"""The whole chain with a tiny target: real operator, kubectl, helm, speculators and SGLang.

One run is made by the fixture; the tests look at what it left.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from safetensors.torch import load_file, save_file
from sglang_server import running_sglang, speculation

from drafter_operator.api.spec import DrafterRunSpec
from drafter_operator.api.status import Candidate, CandidateState, LoadStatus
from drafter_operator.lifecycle.select import select
from drafter_sandbox.observe.monitored import free_port, rendered_monitoring, start_prometheus
from drafter_sandbox.observe.panel_queries import panel_queries
from drafter_sandbox.observe.prometheus import Prometheus, prometheus_tool
from drafter_sandbox.quickstart.cluster import Cluster, Layout, model_volume
from drafter_sandbox.quickstart.tiny_target import make_predictable
from job_process import start

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts/drafter-operator"
RUN = "tiny"
TIMEOUT_SECONDS = 900
# The first test waits for the whole run.
pytestmark = pytest.mark.timeout(1200)
WORDS = ("rain", "bread", "trains", "tea", "snow", "apples", "a harbour", "an engine")
ACTIONS = ("Explain", "Describe", "Compare", "Summarise", "Draw", "Translate", "List", "Write")


@dataclass
class FinishedRun:
    """A run that has ended, in a sandbox that is still up."""

    cluster: Cluster
    status: dict[str, Any]
    directory: Path
    target: Path
    prompts: Path
    started: float
    ended: float
    watched: Prometheus | None

    @property
    def prometheus(self) -> Prometheus:
        """The Prometheus that scraped the run; the test is skipped where there is none."""
        if self.watched is None:
            pytest.skip("Prometheus is neither on the PATH nor fetched: run make prometheus")
        return self.watched


def prompt_lines(count: int, offset: int) -> str:
    lines = []
    for number in range(offset, offset + count):
        action = ACTIONS[number % len(ACTIONS)]
        word = WORDS[number // len(ACTIONS) % len(WORDS)]
        row = {"id": f"p{number}", "prompt": f"{action} {word} in {number} words."}
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def finished(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    home = tmp_path_factory.mktemp("chain")
    layout = Layout(REPOSITORY, home)
    layout.models.mkdir()
    shutil.copytree(tiny_target, layout.models / "tiny")
    make_predictable(layout.models / "tiny")
    cluster = Cluster(layout)
    cluster.start()
    prometheus = None
    try:
        cluster.install_operator()
        if prometheus_tool("prometheus"):
            manifests = rendered_monitoring(cluster.run, CHART, "1s")
            directory = home / "prometheus"
            prometheus = start_prometheus(manifests, layout.kubeconfig, directory, free_port())
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "prompts", "namespace": "default"},
            "data": {"train.jsonl": prompt_lines(64, 0), "held_out.jsonl": prompt_lines(6, 64)},
        }
        cluster.apply(*model_volume(layout.models), config_map)
        manifest = yaml.safe_load((Path(__file__).parent / "tiny.yaml").read_text())
        started = time.time()
        cluster.apply(manifest)
        status = wait_for_end(cluster)
        volumes = home / "cluster" / "volumes"
        (directory,) = volumes.glob(f"pvc-*/{status['workDirectory']}")
        prompts = home / "held_out.jsonl"
        prompts.write_text(config_map["data"]["held_out.jsonl"])
        target = layout.models / "tiny"
        ended = time.time()
        yield FinishedRun(cluster, status, directory, target, prompts, started, ended, prometheus)
    finally:
        if prometheus is not None:
            prometheus.stop()
        cluster.stop()


def wait_for_end(cluster: Cluster) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    status: dict[str, Any] = {}
    while time.monotonic() < deadline:
        run = cluster.drafter_run(RUN)
        assert run is not None, "the run was deleted"
        status = run.get("status") or {}
        if status.get("phase") in ("Succeeded", "Failed"):
            return status
        time.sleep(1)
    raise AssertionError(f"the run has not ended after {TIMEOUT_SECONDS} s: {status}")


def test_the_run_succeeds_with_a_drafter_that_is_accepted(finished: FinishedRun) -> None:
    status = finished.status
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    candidates = {found["name"]: found for found in status["candidates"]}
    assert set(candidates) == {"baseline", "depth-2", "depth-4"}
    for name in ("depth-2", "depth-4"):
        candidate = candidates[name]
        assert candidate["outputsEqual"] is True, candidate
        assert float(candidate["acceptanceLength"]) > 1.3, candidate
        assert [load["concurrency"] for load in candidate["loads"]] == [1, 4]
    assert status["data"]["auxiliaryLayers"] == [2, 4, 5]
    # SGLang captures what leaves the layer before.
    assert status["export"]["auxiliaryLayers"] in ([], [1, 3, 4])
    assert status["training"]["bestEpoch"] is not None


def test_nothing_is_lost_between_the_jobs(finished: FinishedRun) -> None:
    prepare = json.loads((finished.directory / "dataset/prepare.json").read_text())["result"]
    extract = json.loads((finished.directory / "hidden-states/extract.json").read_text())["result"]
    for counts in (prepare, extract):
        assert counts["written"] + counts["skipped"] + counts["failed"] == counts["input"]
    assert extract["input"] == prepare["written"]
    files = list((finished.directory / "hidden-states").glob("hs_*.safetensors"))
    assert len(files) == extract["written"] + extract["skipped"]


def test_no_panel_of_a_dashboard_is_empty(finished: FinishedRun) -> None:
    variables = {"namespace": "default", "run": RUN, "__rate_interval": "10s"}
    empty = []
    for query in panel_queries(CHART / "dashboards", variables):
        found = finished.prometheus.query_range(
            query.expression, finished.started, finished.ended, 1
        )
        if not found:
            empty.append(f"{query.board}: {query.panel}: {query.expression}")
    assert not empty, "\n".join(empty)


def test_the_series_of_training_are_those_of_its_files(finished: FinishedRun) -> None:
    checkpoints = (finished.directory / "checkpoints").glob("[0-9]*")
    files = [json.loads((found / "validation.json").read_text()) for found in checkpoints]
    scraped = finished.prometheus.query_range(
        'drafter_training_accuracy_ratio{split="validation", kind="full"}',
        *(finished.started, finished.ended, 1),
    )
    for series in scraped:
        step = series["metric"]["ttt_step"]
        written = [found[f"full_acc_{step}_epoch"] for found in files]
        for _, value in series["values"]:
            assert any(abs(float(value) - one) < 1e-6 for one in written), (step, value, written)
    assert {series["metric"]["ttt_step"] for series in scraped} == {"0", "1", "2"}

    epoch = finished.status["training"]["bestEpoch"]
    path = finished.directory / "checkpoints" / str(epoch) / "validation.json"
    best = json.loads(path.read_text())
    (loss,) = finished.prometheus.query("drafter_run_checkpoint_loss")
    assert float(loss["value"][1]) == pytest.approx(best["loss_epoch"], abs=1e-4)
    for series in finished.prometheus.query("drafter_run_checkpoint_accuracy_ratio"):
        expected = best[f"full_acc_{series['metric']['ttt_step']}_epoch"]
        assert float(series["value"][1]) == pytest.approx(expected, abs=1e-4)


def test_the_acceptance_length_is_that_of_the_benchmark(finished: FinishedRun) -> None:
    for name in ("depth-2", "depth-4"):
        report = json.loads((finished.directory / f"benchmark/{name}.json").read_text())
        measured = float(report["acceptanceLength"])
        match = f'{{run="{RUN}", candidate="{name}"}}'
        (shown,) = finished.prometheus.query(f"drafter_run_candidate_acceptance_length{match}")
        assert float(shown["value"][1]) == pytest.approx(measured, abs=1e-3)
        # What the server itself counted, warm-up included.
        totals = []
        for metric in ("sglang:generation_tokens_total", "sglang:spec_verify_calls_total"):
            found = finished.prometheus.query_range(
                f"sum({metric}{match})", finished.started, finished.ended, 1
            )
            totals.append(max(float(value) for _, value in found[0]["values"]))
        assert totals[0] / totals[1] == pytest.approx(measured, rel=0.15)


def test_the_promoted_drafter_answers_on_the_stable_service(finished: FinishedRun) -> None:
    promoted = finished.status["promoted"]
    service = finished.cluster.get("service", promoted["service"])
    assert service is not None
    url = f"http://{service['spec']['clusterIP']}:30000/v1/chat/completions"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert answer["model"] == "tiny"
    assert answer["usage"]["completion_tokens"] >= 1


def test_a_checkpoint_without_a_tensor_is_refused_before_it_is_served(
    finished: FinishedRun, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(finished.directory / "checkpoints" / "0", checkpoint)
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["fc.weight"]
    save_file(tensors, checkpoint / "model.safetensors")

    ended = export(checkpoint, tmp_path / "out", finished)

    assert ended["reason"] == "CheckpointNotServable"
    assert "fc.weight" in ended["message"]
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_other_auxiliary_layers_is_refused_before_it_is_served(
    finished: FinishedRun, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(finished.directory / "checkpoints" / "0", checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = [1, 3, 4]
    (checkpoint / "config.json").write_text(json.dumps(config))

    ended = export(checkpoint, tmp_path / "out", finished)

    assert ended["reason"] in ("CheckpointNotServable", "HiddenStatesInvalid")
    assert "[2, 4, 5]" in ended["message"]
    assert not (tmp_path / "out").exists()


def export(checkpoint: Path, output: Path, finished: FinishedRun) -> dict[str, Any]:
    """Run the export job on a checkpoint and return its termination message."""
    log = output.with_suffix(".termination")
    record = finished.directory / "hidden-states/extract.json"
    arguments = [checkpoint, output, "--target", finished.target, "--extract-record", record]
    process = start("drafter_jobs.export", arguments, log)
    process.communicate(timeout=120)
    found: dict[str, Any] = json.loads(log.read_text())
    return found


def test_a_broken_drafter_served_through_a_back_door_is_refused_by_select(
    finished: FinishedRun, tmp_path: Path
) -> None:
    """SGLang says nothing of a missing tensor: only the acceptance length shows it."""
    drafter = tmp_path / "drafter"
    shutil.copytree(finished.directory / "drafter", drafter)
    tensors = load_file(drafter / "model.safetensors")
    del tensors["midlayer.mlp.down_proj.weight"]
    # As an engine does that knows other names: the head keeps its random beginning.
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0).contiguous()
    save_file(tensors, drafter / "model.safetensors")
    output = tmp_path / "depth-4.json"
    with running_sglang(finished.target, tmp_path, speculation(drafter, 4)) as server:
        log = tmp_path / "termination"
        arguments = [
            *("--url", server.url, "--candidate", "depth-4", "--depth", "4"),
            *("--prompts", finished.prompts, "--dataset", finished.directory / "dataset"),
            *("--target", finished.target, "--output", output, "--concurrencies", "1"),
            *("--requests", "4", "--maximum-new-tokens", "24"),
        ]
        process = start("drafter_jobs.benchmark", arguments, log)
        process.communicate(timeout=240)
    message = json.loads(log.read_text())
    assert message["outcome"] == "Succeeded", message
    result = message["result"]
    assert float(result["acceptanceLength"]) < 1.1, result

    spec = DrafterRunSpec.model_validate(
        yaml.safe_load((Path(__file__).parent / "tiny.yaml").read_text())["spec"]
    )
    load = result["loads"][0]
    candidate = Candidate(
        name="depth-4",
        depth=4,
        state=CandidateState.MEASURED,
        acceptance_length=result["acceptanceLength"],
        loads=[
            LoadStatus(
                concurrency=1,
                output_tokens_per_second=load["outputTokensPerSecond"],
                ttft_milliseconds_p50=load["ttftMillisecondsP50"],
                ttft_milliseconds_p95=load["ttftMillisecondsP95"],
                itl_milliseconds_p50=load["itlMillisecondsP50"],
                itl_milliseconds_p95=load["itlMillisecondsP95"],
            )
        ],
    )
    selection = select(spec, [candidate])
    assert selection.best is None
    assert selection.candidates[0].reason == "AcceptanceTooLow"
    assert "weight names" in selection.message
    assert "auxiliary layers" in selection.message


def test_a_promoted_drafter_that_breaks_fires_an_alert(finished: FinishedRun) -> None:
    prometheus, cluster = finished.prometheus, finished.cluster
    promoted = finished.status["promoted"]
    weights = finished.directory / "drafter" / "model.safetensors"
    tensors = load_file(weights)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0).contiguous()
    save_file(tensors, weights)
    deployment = f"{RUN}-{promoted['candidate']}"
    cluster.kubectl("rollout", "restart", f"deployment/{deployment}", "-n", "default")
    cluster.kubectl(
        "rollout", "status", f"deployment/{deployment}", "-n", "default", "--timeout=240s"
    )
    service = cluster.get("service", promoted["service"])
    assert service is not None
    url = f"http://{service['spec']['clusterIP']}:30000/v1/chat/completions"
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
    }

    def fires() -> list[dict[str, Any]]:
        request = urllib.request.Request(
            url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()
        return [
            alert
            for alert in prometheus.alerts()
            if alert["state"] == "firing"
            and alert["labels"]["alertname"] == "DrafterAcceptsNothing"
        ]

    (alert,) = prometheus.wait_until(fires, "the alert fires", timeout=120)
    labels = {name: alert["labels"][name] for name in ("namespace", "run", "candidate")}
    assert labels == {"namespace": "default", "run": RUN, "candidate": promoted["candidate"]}
    assert alert["annotations"]["runbook_url"].endswith("DrafterAcceptsNothing.md")


def test_no_process_of_a_pod_outlives_the_sandbox(finished: FinishedRun) -> None:
    """The last test: it stops the sandbox."""
    finished.cluster.stop()
    state = str(finished.cluster.layout.state)
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SANDBOX_STATE") == state and process.pid != os.getpid():
                left.append(process.name())
        except (psutil.Error, OSError):
            continue
    assert left == []
