"""``make observe``: a real Prometheus on the sandbox that ``make quickstart KEEP=1`` left up."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.parse
from pathlib import Path

import psutil

from drafter_sandbox.observe.monitored import free_port, rendered_monitoring, start_prometheus
from drafter_sandbox.observe.prometheus import PrometheusUnavailableError, fetch_prometheus
from drafter_sandbox.quickstart.cluster import Cluster, Layout, QuickstartError

REPOSITORY = Path(__file__).resolve().parents[3]
CHART = REPOSITORY / "charts/drafter-operator"
INTERVAL = "2s"
SHOWN = {
    "to-do list": 'drafter_run_step_state{state!="Pending"} == 1',
    "acceptance length in the benchmark": "drafter_run_candidate_acceptance_length",
    "throughput in the benchmark": "drafter_run_candidate_output_tokens_per_second",
    "output tokens of each server": "sglang:generation_tokens_total",
}


def _stop(record: Path) -> bool:
    """Stop what an earlier start left; return whether it ran."""
    if not record.exists():
        return False
    stopped = False
    for known in json.loads(record.read_text()):
        try:
            process = psutil.Process(known["pid"])
            # A process id is used again after a while; the start time tells them apart.
            if abs(process.create_time() - known["started"]) < 1:
                process.terminate()
                stopped = True
        except psutil.NoSuchProcess:
            continue
    record.unlink()
    return stopped


def _observe(layout: Layout, record: Path) -> None:
    cluster = Cluster(layout)
    if cluster.running_process() is None:
        raise QuickstartError("no sandbox is up. Run: make quickstart KEEP=1")
    fetch_prometheus()
    _stop(record)
    manifests = rendered_monitoring(cluster.run, CHART, INTERVAL)
    home = layout.home / "prometheus"
    prometheus = start_prometheus(manifests, layout.kubeconfig, home, free_port())
    processes = [psutil.Process(number) for number in prometheus.process_ids()]
    record.write_text(
        json.dumps([{"pid": found.pid, "started": found.create_time()} for found in processes])
    )
    prometheus.wait_until(
        lambda: prometheus.query("drafter_run_info"), "the operator and its runs are scraped"
    )
    print(f"Prometheus: {prometheus.url} (its rules in quick time: a minute is a second)")
    for name in ("targets", "alerts", "rules"):
        print(f"  {name}: {prometheus.url}/{name}")
    for title, expression in SHOWN.items():
        query = urllib.parse.urlencode({"g0.expr": expression, "g0.tab": 1})
        print(f"  {title}: {prometheus.url}/graph?{query}")
    print("Stop it with: make observe-stop")


def main() -> None:
    """Start or stop Prometheus; exit 1 with the reason where it cannot be had."""
    parser = argparse.ArgumentParser(prog="make observe", description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="only fetch Prometheus")
    parser.add_argument("--stop", action="store_true", help="stop what was left up")
    arguments = parser.parse_args()
    layout = Layout(REPOSITORY, REPOSITORY / ".quickstart")
    record = layout.home / "prometheus.json"
    try:
        if arguments.fetch:
            fetch_prometheus()
        elif arguments.stop:
            print("stopped" if _stop(record) else "no Prometheus is running")
        else:
            _observe(layout, record)
    except (QuickstartError, PrometheusUnavailableError) as error:
        sys.exit(f"observe: {error}")


if __name__ == "__main__":
    main()
