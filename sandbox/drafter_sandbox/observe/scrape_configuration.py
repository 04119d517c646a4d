"""What the Prometheus operator makes of monitors and rules, as far as the chart's need it.

The relabelling follows prometheus-operator's generator, ``pkg/prometheus/promcfg.go``: keep by
the selector's labels and the port's name, set namespace, pod, container or service, then the
monitor's own relabelling, unchanged but for the spelling of its fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drafter_sandbox.observe.discovery import sanitised

Body = Mapping[str, Any]


def scrape_configuration(manifests: Iterable[Body]) -> dict[str, Any]:
    """Return a Prometheus configuration with a job for each endpoint of each monitor.

    Parameters
    ----------
    manifests
        Objects as ``helm template`` renders them; all but monitors are passed over.
    """
    jobs = []
    for body in manifests:
        kind = body["kind"]
        if kind not in ("ServiceMonitor", "PodMonitor"):
            continue
        field = "endpoints" if kind == "ServiceMonitor" else "podMetricsEndpoints"
        for index, endpoint in enumerate(body["spec"][field]):
            jobs.append(_job(body, kind == "PodMonitor", index, endpoint))
    return {
        "global": {"evaluation_interval": "5s"},
        "scrape_configs": jobs,
    }


def _job(body: Body, of_pods: bool, index: int, endpoint: Body) -> dict[str, Any]:
    metadata = body["metadata"]
    role = "pod" if of_pods else "endpointslice"
    selected = "pod" if of_pods else "service"
    chosen: list[dict[str, Any]] = []
    namespaces = body["spec"].get("namespaceSelector") or {}
    if not namespaces.get("any"):
        names = namespaces.get("matchNames") or [metadata["namespace"]]
        chosen.append(_keep("__meta_kubernetes_namespace", "|".join(map(re.escape, names))))
    port = "pod_container_port_name" if of_pods else "endpointslice_port_name"
    relabelling = [
        *chosen,
        *_selection(body["spec"]["selector"], selected),
        _keep(f"__meta_kubernetes_{port}", endpoint["port"]),
        *[
            {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}
            for source, target in (
                ("namespace", "namespace"),
                ("pod_container_name", "container"),
                ("pod_name", "pod"),
                *(() if of_pods else (("service_name", "service"),)),
            )
        ],
        {
            "source_labels": ["__meta_kubernetes_pod_phase"],
            "regex": "(Failed|Succeeded)",
            "action": "drop",
        },
        {"target_label": "job", "replacement": f"{metadata['namespace']}/{metadata['name']}"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
        *map(_plain, endpoint.get("relabelings", ())),
    ]
    job = {
        "job_name": f"{body['kind']}/{metadata['namespace']}/{metadata['name']}/{index}",
        "honor_labels": bool(endpoint.get("honorLabels")),
        # Written by the discovery beside it.
        "file_sd_configs": [{"files": [f"{role}.json"], "refresh_interval": "5s"}],
        "relabel_configs": relabelling,
        "metric_relabel_configs": list(map(_plain, endpoint.get("metricRelabelings", ()))),
    }
    if interval := endpoint.get("interval"):
        job |= {"scrape_interval": interval}
    return job


def _keep(label: str, value: str) -> dict[str, Any]:
    return {"source_labels": [label], "regex": value, "action": "keep"}


def _selection(selector: Body, of: str) -> list[dict[str, Any]]:
    found = [
        _keep(f"__meta_kubernetes_{of}_label_{sanitised(label)}", re.escape(value))
        for label, value in (selector.get("matchLabels") or {}).items()
    ]
    for expression in selector.get("matchExpressions") or ():
        label = sanitised(expression["key"])
        if expression["operator"] == "Exists":
            found.append(_keep(f"__meta_kubernetes_{of}_labelpresent_{label}", "true"))
        elif expression["operator"] == "In":
            values = "|".join(map(re.escape, expression["values"]))
            found.append(_keep(f"__meta_kubernetes_{of}_label_{label}", values))
        else:
            raise ValueError(f"matchExpressions: {expression['operator']} is not translated")
    return found


def _plain(relabelling: Body) -> dict[str, Any]:
    """Return a relabelling with Prometheus' own spelling of its fields."""
    return {re.sub(r"([A-Z])", r"_\1", key).lower(): value for key, value in relabelling.items()}


def rule_groups(manifests: Iterable[Body]) -> dict[str, Any]:
    """Return the rule file of every PrometheusRule."""
    rules = [body for body in manifests if body["kind"] == "PrometheusRule"]
    return {"groups": [group for body in rules for group in body["spec"]["groups"]]}


_DURATION = re.compile(r"\[(\d+)([smh])\]")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def in_quick_time(rules: Body, factor: int, shortest: int) -> dict[str, Any]:
    """Return rules with shorter ranges and waits, for a run that lives minutes, not days.

    Parameters
    ----------
    factor
        What every range and ``for`` is divided by.
    shortest
        Seconds that a range keeps at least: twice the time between scrapes.
    """

    def shortened(match: re.Match[str]) -> str:
        seconds = int(match[1]) * _SECONDS[match[2]]
        return f"[{max(seconds // factor, shortest)}s]"

    groups: Sequence[Body] = rules["groups"]
    quick = []
    for group in groups:
        changed = []
        for rule in group["rules"]:
            rule = {**rule, "expr": _DURATION.sub(shortened, rule["expr"])}
            if (wait := re.fullmatch(r"(\d+)([smh])", rule.get("for", ""))) is not None:
                rule["for"] = f"{int(wait[1]) * _SECONDS[wait[2]] // factor}s"
            changed.append(rule)
        quick.append({**group, "rules": changed})
    return {"groups": quick}
