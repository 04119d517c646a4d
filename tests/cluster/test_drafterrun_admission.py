"""What the API server says to a wrong DrafterRun before any operator sees it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_sandbox import RunningSandbox

REPOSITORY = Path(__file__).resolve().parents[2]
GOOD: dict[str, Any] = {
    "apiVersion": "drafters.dev/v1alpha1",
    "kind": "DrafterRun",
    "metadata": {"name": "good"},
    "spec": {
        "target": {"path": "model"},
        "storage": {"claimName": "claim"},
        "data": {"prompts": {"path": "prompts.jsonl"}},
    },
}


@pytest.fixture(scope="module")
def server(api: RunningSandbox) -> RunningSandbox:
    api.kubectl("apply", "-f", str(REPOSITORY / "crds"))
    api.kubectl("wait", "--for=condition=Established", "crd/drafterruns.drafters.dev")
    return api


def changed(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            body = body.setdefault(parent, {})
        body[last] = value

    return change


BAD = {
    "depth 1": ("spec.serving.depths", [16, 1], "should be greater than or equal to 2"),
    "equal depths": ("spec.serving.depths", [4, 4], "depths must be distinct"),
    "no depths": ("spec.serving.depths", [], "should have at least 1 items"),
    "negative epochs": ("spec.training.epochs", -1, "should be greater than or equal to 1"),
    "huge epochs": ("spec.training.epochs", 10**12, "should be less than or equal to 1000"),
    "unknown trainer": ("spec.training.trainer", "other", 'Unsupported value: "other"'),
    "unknown strategy": ("spec.serving.strategy", "Random", 'Unsupported value: "Random"'),
    "a float": ("spec.training.learningRate", 0.001, "must be of type string"),
    "no number": ("spec.training.learningRate", "fast", "should match"),
    "two targets": ("spec.target.hubId", "a/b", "set exactly one of path"),
    "no target": ("spec.target", {}, "set exactly one of path"),
    "an absolute path": ("spec.target.path", "/etc", "spec.target.path"),
    "two claims": ("spec.storage.claimTemplate", {"size": "1Gi"}, "exactly one of claimName"),
    "two prompts": (
        "spec.data.prompts.configMap",
        {"name": "a", "key": "b"},
        "set exactly one of path, configMap and dataset",
    ),
    "no validation": ("spec.data.validationShare", "0", "data.validationShare"),
    "another objective": (
        "spec.benchmark.objectiveConcurrency",
        7,
        "must be one of benchmark.concurrencies",
    ),
    "a minimum above": (
        "spec.training.minimumPackedSequenceLength",
        16384,
        "must not exceed packedSequenceLength",
    ),
    "an argument of the operator": (
        "spec.serving.extraArguments",
        ["--speculative-num-steps=3"],
        "the operator itself sets",
    ),
    "a typing error": ("spec.serving.depth", [4], 'unknown field "spec.serving.depth"'),
    "a long name": ("metadata.name", "a" * 41, "at most 40 characters"),
    "a dotted name": ("metadata.name", "kimi.k2", "must be a DNS label"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_manifest_is_refused_by_name(server: RunningSandbox, case: str) -> None:
    path, value, message = BAD[case]
    body = copy.deepcopy(GOOD)
    changed(path, value)(body)

    error = server.refused("apply", "--validate=strict", "-f", "-", stdin=as_json(body))

    assert message in error, error


def as_json(body: dict[str, Any]) -> str:
    import json

    return json.dumps(body)


@pytest.mark.parametrize("example", ["install-demo", "kimi-k2.5", "minimal", "quickstart"])
def test_the_examples_are_accepted_and_completed_with_defaults(
    server: RunningSandbox, example: str
) -> None:
    server.kubectl("apply", "--validate=strict", "-f", str(REPOSITORY / f"examples/{example}.yaml"))
    name = example.replace(".", "-")
    spec = server.get("drun", name)["spec"]
    assert spec["serving"]["baseline"] is True
    assert spec["promotion"]["mode"] == "Auto"
    if example == "minimal":
        assert spec["serving"]["depths"] == [16, 10, 5]
        assert spec["benchmark"]["concurrencies"] == [1, 8, 32]


def test_kubectl_explains_the_fields_and_lists_the_columns(server: RunningSandbox) -> None:
    explained = server.kubectl("explain", "drafterrun.spec.serving.depths")
    assert "speculative-num-draft-tokens" in explained
    server.apply(GOOD)
    header = server.kubectl("get", "drun").splitlines()[0].split()
    columns = ["NAME", "PHASE", "STEP", "PROGRESS", "BEST", "ACCEPT", "SPEEDUP", "AGE"]
    assert header == columns
    assert "good" in server.kubectl("get", "drafters")
