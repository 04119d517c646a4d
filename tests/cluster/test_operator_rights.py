"""The real operator as a Pod of the chart, at an API server that enforces the chart's roles."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from chart_cluster import NAMESPACE, QUICK, RELEASE, ChartCluster, used

from drafter_operator.rights import OWN_RIGHTS, RUN_RIGHTS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartCluster]:
    directory = tmp_path_factory.mktemp("rights")
    found = ChartCluster(directory)
    found.make_references(directory / "models")
    found.install(**QUICK, **{"crds.enabled": False})
    yield found
    found.stop()


def denied(cluster: ChartCluster, after: int = 0) -> list[str]:
    return [
        f"{event['verb']} {event['requestURI']}: {event['responseStatus'].get('message')}"
        for event in cluster.requests(after)
        if event["responseStatus"]["code"] == 403
    ]


def test_a_whole_life_uses_every_right_of_the_chart_and_lacks_none(cluster: ChartCluster) -> None:
    cluster.fail("drafter-prepare", 11, "PromptsInvalid", "line 3 is not JSON")
    (cluster.control / "server-depth-4.crash").touch()
    cluster.hold("drafter-train")
    cluster.apply_run("life")
    cluster.wait_for_phase("life", "Failed")
    cluster.sandbox.kubectl("annotate", "drun", "life", "drafters.dev/retry=1")
    cluster.wait_for_step("life", "Train", "Running")
    suspend = ("patch", "drun", "life", "--type=merge", "-p")
    cluster.sandbox.kubectl(*suspend, '{"spec":{"suspend":true}}')
    cluster.wait_for_phase("life", "Suspended")
    cluster.release("drafter-train")
    cluster.sandbox.kubectl(*suspend, '{"spec":{"suspend":false}}')
    status = cluster.wait_for_phase("life", "Succeeded")
    assert status["promoted"]["candidate"] == "depth-2"
    cluster.sandbox.kubectl("delete", "drun", "life", "--timeout=20s")

    assert denied(cluster) == []
    needed = set().union(*(used(event) for event in cluster.requests()))
    granted = cluster.granted()
    assert granted - needed == set(), "rights of the chart that no request used"
    assert needed - granted == set(), "requests allowed by other roles than the chart's"
    explained = {
        (right.group, right.resource, verb)
        for right in (*RUN_RIGHTS, *OWN_RIGHTS)
        for verb in right.verbs
    }
    assert granted == explained, "docs/rights.md and the chart's roles differ"


def test_an_operator_of_one_namespace_asks_for_nothing_outside_it(cluster: ChartCluster) -> None:
    # The operator of the cluster has ended before the other begins, which need not wait for it.
    cluster.uninstall()
    cluster.sandbox.kubectl("delete", "lease", RELEASE, "-n", NAMESPACE)
    before = len(cluster.audit_lines())
    values = {**QUICK, "crds.enabled": False, "watchNamespaces": ["default"]}
    cluster.install(**values)
    cluster.apply_run("local", serving={"depths": [2]})
    tested = cluster.helm("test", RELEASE, "--timeout", "50s", "--logs")
    assert "takes a DrafterRun in default and refuses a wrong one" in tested
    cluster.wait_for_phase("local", "Succeeded")

    assert denied(cluster, before) == []
    places = {
        event["objectRef"].get("namespace")
        for event in cluster.requests(before)
        if "objectRef" in event
    }
    assert places == {"default", NAMESPACE}
    names = [item["metadata"]["name"] for item in cluster.sandbox.get("clusterroles")["items"]]
    assert RELEASE not in names


def test_a_missing_right_is_named_on_the_run_and_in_the_log_until_it_is_given(
    cluster: ChartCluster,
) -> None:
    values = {**QUICK, "crds.enabled": False, "watchNamespaces": ["default"]}
    cluster.install(**values)
    role = cluster.sandbox.get("role", RELEASE, "-n", "default")
    complete = json.dumps({"rules": role["rules"]})
    for rule in role["rules"]:
        if rule["resources"] == ["jobs"]:
            rule["verbs"].remove("create")
    patch = ("patch", "role", RELEASE, "-n", "default", "--type=merge", "-p")
    cluster.sandbox.kubectl(*patch, json.dumps({"rules": role["rules"]}))
    cluster.apply_run("lacking")

    cluster.wait(
        "lacking",
        lambda status: any(
            found["reason"] == "MissingRight" for found in status.get("conditions", [])
        ),
    )
    words = (
        "the operator may not create jobs.batch in the namespace default (it is the"
        f" ServiceAccount {NAMESPACE}/{RELEASE}): give it this verb"
    )
    progressing = cluster.condition("lacking", "Progressing")
    assert progressing["status"] == "False"
    assert words in progressing["message"]
    assert words in cluster.operator_log()
    assert words in cluster.sandbox.kubectl("describe", "drun", "lacking").split("Events:")[1]

    cluster.sandbox.kubectl(*patch, complete)
    cluster.wait_for_step("lacking", "Prepare", "Succeeded")
    assert cluster.condition("lacking", "Progressing")["status"] == "True"
