"""An operator that is there before the CustomResourceDefinition is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_cluster import REPOSITORY, OperatorCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OperatorCluster]:
    found = OperatorCluster(tmp_path)
    found.make_references(tmp_path / "models")
    found.sandbox.kubectl("delete", "crd", "drafterruns.drafters.dev")
    yield found
    found.stop()


def test_an_operator_waits_for_the_definition_and_then_watches(cluster: OperatorCluster) -> None:
    command = [
        *(sys.executable, "-m", "drafter_operator.main", "--log-format", "text"),
        *("--metrics-address", "127.0.0.1", "--metrics-port", "0"),
        # No resync and no second look comes in time: what is noticed comes from a watch.
        *("--resync-seconds", "600", "--active-seconds", "600"),
    ]
    environment = cluster.sandbox.environment() | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, pipesize=1 << 20
    ) as operator:
        assert operator.stderr is not None
        words = "CustomResourceDefinition drafterruns.drafters.dev is not there yet"
        assert any(words in line for line in operator.stderr)
        cluster.sandbox.kubectl("apply", "-f", str(REPOSITORY / "crds"))
        cluster.apply_run("early")
        cluster.wait_for_step("early", "Prepare", "Succeeded")
        operator.terminate()
        assert operator.wait(timeout=10) == 0
