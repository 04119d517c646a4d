"""A real Prometheus scrapes runs of stand-ins through the monitors of the rendered chart."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_cluster import CHART, QUICK, ChartCluster
from running_sandbox import tool

from drafter_sandbox.observe.monitored import free_port, rendered_monitoring, start_prometheus
from drafter_sandbox.observe.panel_queries import panel_queries
from drafter_sandbox.observe.prometheus import Prometheus, prometheus_tool

TRAINING = """\
# TYPE drafter_training_loss gauge
drafter_training_loss NaN
# TYPE python_info gauge
python_info 1
"""


def helm(command: list[str]) -> str:
    done = subprocess.run([tool("helm"), *command[1:]], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartCluster]:
    if prometheus_tool("prometheus") is None:
        pytest.skip("Prometheus is neither on the PATH nor fetched: run make prometheus")
    directory = tmp_path_factory.mktemp("monitoring")
    found = ChartCluster(directory)
    found.make_references(directory / "models")
    found.sandbox.kubectl("delete", "crd", "drafterruns.drafters.dev")
    found.install(**QUICK)
    yield found
    found.stop()


@pytest.fixture
def prometheus(cluster: ChartCluster, tmp_path: Path) -> Iterator[Prometheus]:
    manifests = rendered_monitoring(helm, CHART, "1s")
    found = start_prometheus(
        manifests, cluster.sandbox.kubeconfig, tmp_path / "prometheus", free_port()
    )
    yield found
    found.stop()


def test_what_a_run_exports_is_found_alerted_on_and_gone_with_it(
    cluster: ChartCluster, prometheus: Prometheus
) -> None:
    (cluster.control / "drafter-train.metrics").write_text(TRAINING)
    cluster.hold("drafter-train")
    cluster.apply_run("seen")
    cluster.wait_for_step("seen", "Train", "Running")

    (loss,) = prometheus.wait_until(
        lambda: prometheus.query("drafter_training_loss"), "the job is scraped"
    )
    labels = loss["metric"]
    assert (labels["namespace"], labels["run"], labels["step"]) == ("default", "seen", "Train")
    assert prometheus.query('python_info{run="seen"}') == []
    (state,) = prometheus.wait_until(
        lambda: prometheus.query('drafter_run_step_state{step="Train", state="Running"} == 1'),
        "the operator is scraped",
    )
    # The run's namespace, and not that of the operator which exports it.
    assert (state["metric"]["namespace"], state["metric"]["run"]) == ("default", "seen")
    assert prometheus.query('drafter_operator_build_info{namespace="drafter-system"}')

    def firing() -> list[str]:
        return [
            alert["labels"]["run"]
            for alert in prometheus.alerts()
            if alert["state"] == "firing"
            and alert["labels"]["alertname"] == "DrafterLossNotANumber"
        ]

    assert prometheus.wait_until(firing, "the alert fires") == ["seen"]

    cluster.release("drafter-train")
    cluster.wait_for_phase("seen", "Succeeded")
    prometheus.wait_until(lambda: not firing(), "the alert ends with the training")
    for query in panel_queries(CHART / "dashboards", VARIABLES):
        # Prometheus itself parses it, or this raises.
        prometheus.query(query.expression)

    cluster.sandbox.kubectl("delete", "drun", "seen", "--timeout=20s")
    prometheus.wait_until(
        lambda: not prometheus.query('{run="seen", __name__=~"drafter_.*"}'),
        "the series of the deleted run are gone",
    )


def rendered(*values: str) -> list[dict[str, Any]]:
    options = [part for value in values for part in ("--set", value)]
    text = helm(["helm", "template", "rel", str(CHART), "--namespace", "drafters", *options])
    return [body for body in yaml.safe_load_all(text) if body]


def test_nothing_of_monitoring_is_installed_unless_asked_for() -> None:
    kinds = {body["kind"] for body in rendered()}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"}


def test_monitoring_follows_the_values() -> None:
    bodies = rendered(
        "monitoring.enabled=true",
        "monitoring.labels.release=prom",
        "monitoring.rules.runbookBaseUrl=https://runbooks.example",
        "monitoring.dashboards.label=dashboard",
        "watchNamespaces={team-a,team-b}",
    )
    monitors = [body for body in bodies if body["kind"] == "PodMonitor"]
    assert len(monitors) == 2
    for monitor in monitors:
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}
        assert monitor["metadata"]["labels"]["release"] == "prom"
    (rule,) = [body for body in bodies if body["kind"] == "PrometheusRule"]
    links = [
        found["annotations"]["runbook_url"]
        for group in rule["spec"]["groups"]
        for found in group["rules"]
        if "alert" in found
    ]
    assert links
    assert all(link.startswith("https://runbooks.example/Drafter") for link in links)
    (boards,) = [body for body in bodies if body["kind"] == "ConfigMap"]
    assert boards["metadata"]["labels"]["dashboard"] == "1"
    assert sorted(boards["data"]) == ["fleet.json", "operator.json", "run.json", "serving.json"]
    for text in boards["data"].values():
        variables = [found["name"] for found in json.loads(text)["templating"]["list"]]
        assert variables in (["datasource"], ["datasource", "namespace", "run"])


VARIABLES = {"namespace": ".*", "run": ".*", "__rate_interval": "10s"}
