"""Runs in flight under the previous release are finished by this one, upgraded with real helm.

The previous release is its chart, its definition of runs and what its operator left in a cluster,
recorded; its program is not run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from chart_cluster import QUICK, RELEASE, ChartCluster
from operator_cluster import EVERY_PROGRAM_ONCE

PREVIOUS = Path(__file__).parent / "previous_release"
(PREVIOUS_CHART,) = PREVIOUS.glob("*.tgz")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ChartCluster]:
    """A sandbox with the previous release, whose operator does not run."""
    found = ChartCluster(tmp_path)
    found.make_references(tmp_path / "models")
    found.sandbox.kubectl("delete", "crd", "drafterruns.drafters.dev")
    # An image the sandbox does not have: nothing but this release's operator is to act.
    image = "image.repository=example/previous"
    found.helm("install", RELEASE, str(PREVIOUS_CHART), "--create-namespace", "--set", image)
    yield found
    found.stop()


def restore(cluster: ChartCluster, step: str) -> str:
    """Make the objects of a run in flight; return the uid of the run."""
    text = (PREVIOUS / f"{step}.yaml").read_text()
    run, *_ = yaml.safe_load_all(text)
    status = run.pop("status")
    cluster.sandbox.apply(run)
    uid = str(cluster.run("inflight")["metadata"]["uid"])
    _, *children = yaml.safe_load_all(text.replace("RUN-UID", uid).replace("RUN-ID8", uid[:8]))
    cluster.sandbox.apply(*children)
    api: Any = kubernetes.client.CustomObjectsApi(cluster.sandbox.client())
    api.patch_namespaced_custom_object_status(
        *("drafters.dev", "v1alpha1", "default", "drafterruns", "inflight"), {"status": status}
    )
    return uid


@pytest.mark.parametrize(
    ("step", "program"),
    [("train", "drafter-train"), ("benchmark-depth-2", "drafter-benchmark-depth-2")],
)
def test_a_run_in_flight_is_finished_after_the_upgrade(
    cluster: ChartCluster, step: str, program: str
) -> None:
    cluster.hold(program)
    uid = restore(cluster, step)
    assert cluster.status("inflight")["phase"] == "Running"

    cluster.install("upgrade", **QUICK)
    cluster.release(program)
    status = cluster.wait_for_phase("inflight", "Succeeded")

    assert cluster.run("inflight")["metadata"]["uid"] == uid
    assert [found["state"] for found in status["steps"]] == ["Succeeded"] * 12
    assert status["promoted"]["candidate"] == "depth-4"
    # What had been done is not done again, what was at work goes on, the rest follows once.
    # (The sandbox starts a restored server once more: its Pod was not recorded.)
    begun = EVERY_PROGRAM_ONCE.index(program)
    restored = {"train": [], "benchmark-depth-2": ["server-depth-2"]}[step]
    assert sorted(cluster.starts()) == sorted([*restored, *EVERY_PROGRAM_ONCE[begun:]])
