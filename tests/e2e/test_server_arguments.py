"""SGLang's own parser takes the arguments the operator gives, and reads them as they are meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from drafter_operator.resources.server_arguments import server_arguments
from drafter_operator.run import Run

REPOSITORY = Path(__file__).resolve().parents[2]

PARSE = """
import argparse, json, sys
from drafter_sglang_cpu import server_process
server_process.prepare()
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
for line in sys.stdin:
    parsed = parser.parse_args(json.loads(line))
    print("PARSED " + json.dumps(vars(parsed), default=str))
"""


def run_of(example: str) -> Run:
    body = yaml.safe_load((REPOSITORY / "examples" / f"{example}.yaml").read_text())
    body["metadata"] |= {"namespace": "models", "uid": "0a1b2c3d-0000-4000-8000-000000000000"}
    return Run.from_object(body)


@pytest.fixture(scope="module")
def parsed() -> dict[tuple[str, str], dict[str, Any]]:
    """What SGLang's parser makes of every candidate of every example; one import for all."""
    wanted = {
        (example, candidate.name): server_arguments(run, candidate)
        for example in ("kimi-k2.5", "quickstart", "minimal")
        for run in [run_of(example)]
        for candidate in run.candidates
    }
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input="\n".join(json.dumps(arguments) for arguments in wanted.values()),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "sandbox")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("PARSED ")]
    return dict(
        zip(wanted, (json.loads(line.removeprefix("PARSED ")) for line in lines), strict=True)
    )


@pytest.mark.parametrize("depth", [16, 10, 5])
def test_a_depth_is_read_as_draft_tokens_with_a_chain_of_steps(
    parsed: dict[tuple[str, str], dict[str, Any]], depth: int
) -> None:
    found = parsed["kimi-k2.5", f"depth-{depth}"]
    assert found["speculative_algorithm"] == "EAGLE3"
    assert found["speculative_num_draft_tokens"] == depth
    assert found["speculative_num_steps"] == depth - 1
    assert found["speculative_eagle_topk"] == 1
    assert found["speculative_draft_model_path"].endswith("/drafter")
    assert found["speculative_draft_attention_backend"] == "triton"
    assert found["tp_size"] == 8


def test_the_baseline_does_not_speculate_and_has_the_same_limits(
    parsed: dict[tuple[str, str], dict[str, Any]],
) -> None:
    baseline = parsed["kimi-k2.5", "baseline"]
    deepest = parsed["kimi-k2.5", "depth-16"]
    assert baseline["speculative_algorithm"] is None
    for name, value in baseline.items():
        if not name.startswith("speculative"):
            assert deepest[name] == value, name


def test_every_server_can_be_reached_and_measured(
    parsed: dict[tuple[str, str], dict[str, Any]],
) -> None:
    for (example, _), found in parsed.items():
        assert found["host"] == "0.0.0.0"
        assert found["port"] == 30000
        assert found["enable_metrics"] is True
        assert found["trust_remote_code"] is (example == "kimi-k2.5")
    assert parsed["quickstart", "depth-4"]["device"] == "cpu"
