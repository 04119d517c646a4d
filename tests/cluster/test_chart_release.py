"""A release of the chart with real helm: install, test, upgrade, roll back, uninstall, again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from chart_cluster import NAMESPACE, QUICK, RELEASE, ChartCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartCluster]:
    directory = tmp_path_factory.mktemp("release")
    found = ChartCluster(directory)
    found.make_references(directory / "models")
    # The chart installs its own.
    found.sandbox.kubectl("delete", "crd", "drafterruns.drafters.dev")
    yield found
    found.stop()


def arguments(cluster: ChartCluster) -> list[str]:
    body = cluster.sandbox.get("deployment", RELEASE, "-n", NAMESPACE)
    found: list[str] = body["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def history(cluster: ChartCluster) -> list[str]:
    """Return the state of each revision."""
    revisions = json.loads(cluster.helm("history", RELEASE, "-o", "json"))
    return [revision["status"] for revision in revisions]


def test_a_release_lives_and_ends_without_harm_to_a_run(cluster: ChartCluster) -> None:
    notes = cluster.install("install", **QUICK)
    assert f"helm test {RELEASE} --namespace {NAMESPACE}" in notes
    assert "kubectl get drafterruns --namespace default --watch" in notes
    output = cluster.helm("test", RELEASE, "--timeout", "50s", "--logs")
    assert "takes a DrafterRun in drafter-system and refuses a wrong one" in output
    assert "the operator is ready" in output
    assert cluster.sandbox.get("drafterruns", "-A")["items"] == []
    left = cluster.sandbox.get("pods,roles,serviceaccounts", "-n", NAMESPACE)["items"]
    assert not [item for item in left if item["metadata"]["name"].endswith("-test")]

    cluster.hold("drafter-train")
    cluster.apply_run("survivor")
    cluster.wait_for_step("survivor", "Train", "Running")
    upgraded = QUICK | {"operator.logLevel": "debug", "podDisruptionBudget.enabled": True}
    cluster.install("upgrade", **upgraded, **{"networkPolicy.enabled": True})
    assert "--log-level=debug" in arguments(cluster)
    cluster.sandbox.get("poddisruptionbudget,networkpolicy", "-n", NAMESPACE)
    cluster.helm("rollback", RELEASE, "1", "--wait", "--timeout", "50s")
    assert "--log-level=info" in arguments(cluster)
    assert cluster.sandbox.get("poddisruptionbudget", "-n", NAMESPACE)["items"] == []
    assert history(cluster) == ["superseded", "superseded", "deployed"]

    job = cluster.sandbox.get("job", "survivor-train-1")["metadata"]["uid"]
    before = cluster.run("survivor")
    cluster.uninstall()
    assert cluster.sandbox.get("all", "-n", NAMESPACE)["items"] == []
    assert cluster.run("survivor")["metadata"]["uid"] == before["metadata"]["uid"]
    assert cluster.sandbox.get("job", "survivor-train-1")["status"]["active"] == 1

    cluster.install("install", **QUICK)
    cluster.release("drafter-train")
    cluster.wait_for_phase("survivor", "Succeeded")
    assert cluster.sandbox.get("job", "survivor-train-1")["metadata"]["uid"] == job
    assert cluster.starts().count("drafter-train") == 1


def test_the_operator_ends_at_once_and_the_check_misses_it(cluster: ChartCluster) -> None:
    cluster.sandbox.kubectl("scale", f"deployment/{RELEASE}", "-n", NAMESPACE, "--replicas=0")
    label = f"app.kubernetes.io/instance={RELEASE}"
    # kopf waits five seconds at its end for whatever the process left open.
    cluster.sandbox.kubectl(
        "wait", "--for=delete", "pod", "-n", NAMESPACE, "-l", label, "--timeout=4s"
    )
    done = cluster.sandbox.run(
        *("helm", "test", RELEASE, "--namespace", NAMESPACE, "--timeout", "50s", "--logs"),
        check=False,
    )
    assert done.returncode != 0
    assert "the operator does not answer at http://drafter-operator-metrics" in (
        done.stdout + done.stderr
    )
