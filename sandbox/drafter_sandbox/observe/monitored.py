"""A real Prometheus for a sandbox, through the monitors and rules of the rendered chart."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from drafter_sandbox.observe.prometheus import Prometheus
from drafter_sandbox.observe.scrape_configuration import (
    in_quick_time,
    rule_groups,
    scrape_configuration,
)

RELEASE, NAMESPACE = "drafter-operator", "drafter-system"
QUICK_FACTOR = 60
"""Minutes of the rules become seconds: the quick start lives minutes, a fleet weeks."""

QUICK_SHORTEST_SECONDS = 10


def rendered_monitoring(
    helm: Callable[[Sequence[str]], str], chart: Path, interval: str
) -> list[dict[str, Any]]:
    """Return the objects that the chart installs with ``monitoring.enabled``.

    Parameters
    ----------
    helm
        Runs a command and returns what it printed.
    interval
        Time between two scrapes, such as ``1s``.
    """
    values = ("monitoring.enabled=true", f"monitoring.interval={interval}")
    options = [part for value in values for part in ("--set", value)]
    text = helm(["helm", "template", RELEASE, str(chart), "--namespace", NAMESPACE, *options])
    return [body for body in yaml.safe_load_all(text) if body]


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def start_prometheus(
    manifests: Sequence[dict[str, Any]], kubeconfig: Path, directory: Path, port: int
) -> Prometheus:
    """Start Prometheus on a sandbox, with the rules in quick time.

    Raises
    ------
    PrometheusUnavailableError
        There is none, or it does not come up.
    """
    configuration = scrape_configuration(manifests)
    configuration["global"]["evaluation_interval"] = "1s"
    rules = in_quick_time(rule_groups(manifests), QUICK_FACTOR, QUICK_SHORTEST_SECONDS)
    prometheus = Prometheus(directory, port)
    prometheus.start(configuration, rules, kubeconfig)
    return prometheus
