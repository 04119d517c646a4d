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
from drafter_sandbox.quickstart.cluster import Cluster, Layout, model_volume
from drafter_sandbox.quickstart.tiny_target import make_predictable
from job_process import start

REPOSITORY = Path(__file__).resolve().parents[2]
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
    try:
        cluster.install_operator()
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "prompts", "namespace": "default"},
            "data": {"train.jsonl": prompt_lines(64, 0), "held_out.jsonl": prompt_lines(6, 64)},
        }
        cluster.apply(*model_volume(layout.models), config_map)
        manifest = yaml.safe_load((Path(__file__).parent / "tiny.yaml").read_text())
        cluster.apply(manifest)
        status = wait_for_end(cluster)
        volumes = home / "cluster" / "volumes"
        (directory,) = volumes.glob(f"pvc-*/{status['workDirectory']}")
        prompts = home / "held_out.jsonl"
        prompts.write_text(config_map["data"]["held_out.jsonl"])
        yield FinishedRun(cluster, status, directory, layout.models / "tiny", prompts)
    finally:
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
