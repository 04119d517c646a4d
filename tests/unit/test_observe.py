"""Monitors become scrape jobs, and Pods the targets that Prometheus would discover."""

from __future__ import annotations

import pytest

from drafter_sandbox.observe.discovery import endpointslice_targets, pod_targets
from drafter_sandbox.observe.scrape_configuration import in_quick_time, scrape_configuration

POD = {
    "metadata": {"name": "p", "namespace": "n", "labels": {"drafters.dev/run": "r"}},
    "spec": {"containers": [{"name": "c", "ports": [{"name": "metrics", "containerPort": 9400}]}]},
    "status": {"podIP": "127.0.0.9", "phase": "Running"},
}


def test_a_pod_is_a_target_once_it_has_an_address() -> None:
    (target,) = pod_targets([POD])
    assert target["targets"] == ["127.0.0.9:9400"]
    labels = target["labels"]
    assert labels["__meta_kubernetes_pod_label_drafters_dev_run"] == "r"
    assert labels["__meta_kubernetes_pod_labelpresent_drafters_dev_run"] == "true"
    assert labels["__meta_kubernetes_pod_container_port_name"] == "metrics"
    assert list(pod_targets([{**POD, "status": {"phase": "Pending"}}])) == []


def test_an_endpoint_has_the_labels_of_its_service_and_its_pod() -> None:
    service = {"metadata": {"name": "s", "namespace": "n", "labels": {"a": "b"}}}
    found = {
        "metadata": {
            "name": "s-1",
            "namespace": "n",
            "labels": {"kubernetes.io/service-name": "s"},
        },
        "ports": [{"name": "web", "port": 8080}],
        "endpoints": [{"addresses": ["127.0.0.9"], "targetRef": {"kind": "Pod", "name": "p"}}],
    }
    (target,) = endpointslice_targets([found], [service], [POD])
    assert target["targets"] == ["127.0.0.9:8080"]
    labels = target["labels"]
    assert labels["__meta_kubernetes_service_label_a"] == "b"
    assert labels["__meta_kubernetes_pod_name"] == "p"
    assert labels["__meta_kubernetes_endpointslice_port_name"] == "web"


def test_a_selector_that_is_not_translated_is_refused() -> None:
    monitor = {
        "kind": "PodMonitor",
        "metadata": {"name": "m", "namespace": "n"},
        "spec": {
            "selector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]},
            "podMetricsEndpoints": [{"port": "metrics"}],
        },
    }
    with pytest.raises(ValueError, match="DoesNotExist is not translated"):
        scrape_configuration([monitor])


def test_a_monitor_without_a_namespace_selector_looks_at_its_own() -> None:
    monitor = {
        "kind": "PodMonitor",
        "metadata": {"name": "m", "namespace": "n"},
        "spec": {"selector": {}, "podMetricsEndpoints": [{"port": "metrics"}]},
    }
    (job,) = scrape_configuration([monitor])["scrape_configs"]
    kept = {"source_labels": ["__meta_kubernetes_namespace"], "regex": "n", "action": "keep"}
    assert kept in job["relabel_configs"]


def test_quick_time_shortens_ranges_and_waits_and_nothing_else() -> None:
    rule = {"alert": "A", "expr": "rate(x[5m]) > 300 and rate(y[1h]) > 0", "for": "10m"}
    (group,) = in_quick_time({"groups": [{"name": "g", "rules": [rule]}]}, 60, 10)["groups"]
    expected = {"expr": "rate(x[10s]) > 300 and rate(y[60s]) > 0", "for": "10s"}
    assert group["rules"] == [rule | expected]
