"""docs/metrics.md: every metric there is, from the tables in code, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from drafter_jobs.contract.metrics import JOB_METRICS, Metric
from drafter_operator import metrics

SGLANG_METRICS = {
    "sglang:generation_tokens_total": ("counter", "Output tokens."),
    "sglang:prompt_tokens_total": ("counter", "Tokens of prompts."),
    "sglang:spec_verify_calls_total": ("counter", "Verify calls; none of a baseline."),
    "sglang:spec_accept_length": (
        "gauge",
        "Acceptance length of the last log interval only; use the recorded one.",
    ),
    "sglang:spec_num_draft_tokens": ("gauge", "Draft tokens, the depth."),
    "sglang:num_running_reqs": ("gauge", "Requests that run."),
    "sglang:num_queue_reqs": ("gauge", "Requests that wait."),
    "sglang:time_to_first_token_seconds": ("histogram", "Time to the first token."),
    "sglang:inter_token_latency_seconds": ("histogram", "Time between two tokens."),
    "sglang:e2e_request_latency_seconds": ("histogram", "Time of a whole request."),
    "sglang:num_aborted_requests_total": ("counter", "Requests that were aborted."),
}
"""What is used of SGLang 0.5.23's own metrics."""

_INTRODUCTION = """\
# Metrics

<!-- Written from the tables in operator/drafter_operator/metrics.py and
jobs/drafter_jobs/contract/metrics.py by `make generate`; do not edit. -->

The chart's monitors (`monitoring.enabled`) let the Prometheus operator scrape three programs:

- the operator, on port 8080, through a ServiceMonitor;
- the Pods of jobs, on port 9400, through a PodMonitor that adds `namespace`, `run`, `step`, `pod`;
- the SGLang servers, on port 30000, through a PodMonitor that adds `namespace`, `run`,
  `candidate`, `depth`, `pod`.

No quantity is exported twice. What a job or a server exports itself, the operator does not repeat;
its `drafter_run_*` are states, and results that outlive the Pods they came from. When a run is
deleted, its series go with the next pass; those of Pods go with the Pods.
"""


def _table(rows: Iterable[tuple[str, str, Iterable[str], str]]) -> str:
    text = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    for name, kind, labels, meaning in rows:
        quoted = ", ".join(f"`{label}`" for label in labels)
        text += f"| `{name}` | {kind} | {quoted} | {meaning} |\n"
    return text


def _rows(found: Iterable[Metric]) -> Iterable[tuple[str, str, Iterable[str], str]]:
    return ((metric.name, metric.kind, metric.labels, metric.meaning) for metric in found)


def metrics_reference(rules: Mapping[str, Any]) -> str:
    """Return docs/metrics.md.

    Parameters
    ----------
    rules
        Recording rules and alerts, as in a Prometheus rule file.
    """
    text = _INTRODUCTION
    text += "\n## Operator\n\n" + _table(_rows(metrics.EXPORTED))
    for exporter, found in JOB_METRICS.items():
        text += f"\n## Jobs: {exporter}\n\n" + _table(_rows(found))
    text += (
        "\n## Servers: SGLang's own\n\nWith `model_name` and other labels of SGLang. It has more;"
        " these are used by the rules and dashboards.\n\n"
    )
    text += _table((name, kind, (), meaning) for name, (kind, meaning) in SGLANG_METRICS.items())
    text += "\n## Recorded\n\n| series | expression |\n|---|---|\n"
    alerts = "\n## Alerts\n\n| alert | severity | for | meaning |\n|---|---|---|---|\n"
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "record" in rule:
                expression = " ".join(rule["expr"].split()).replace("|", "\\|")
                text += f"| `{rule['record']}` | `{expression}` |\n"
            else:
                name = rule["alert"]
                alerts += (
                    f"| [{name}](runbooks/{name}.md) | {rule['labels']['severity']} |"
                    f" {rule.get('for', '0m')} | {rule['annotations']['summary']} |\n"
                )
    return text + alerts
