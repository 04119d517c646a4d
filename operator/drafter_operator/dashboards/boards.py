"""What the dashboards Fleet, Run, Serving and Operator show."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from drafter_operator.dashboards.panels import STATE_NUMBER, board, curves, number, rows, states

RUN = 'namespace=~"$namespace", run=~"$run"'
SECONDS, RATIO, BYTES, TIMESTAMP = "s", "percentunit", "bytes", "dateTimeFromNow"


def fleet() -> dict[str, Any]:
    """Return the dashboard of all runs: what goes on, what is stuck."""
    return board(
        "drafter-fleet",
        "Drafter: fleet",
        "All runs: what goes on and what is stuck.",
        "now-24h",
        [
            *[
                number(
                    phase,
                    f"Runs in the phase {phase}.",
                    (f'sum(drafter_run_phase{{{RUN}, phase="{phase}"}})', phase),
                    span=4,
                )
                for phase in ("Pending", "Running", "Suspended", "Succeeded", "Failed")
            ],
            number(
                "Promoted",
                "Runs whose drafter is served.",
                (f"count(drafter_run_promoted{{{RUN}}} == 1) or vector(0)", "promoted"),
                span=4,
            ),
            states(
                "Steps of all runs",
                "The to-do list of each run.",
                (STATE_NUMBER.format(match=RUN), "{{namespace}}/{{run}} {{step}}"),
            ),
            rows(
                "Present reasons",
                "What each step says of its state: PodPending waits for quota or a node.",
                (f"drafter_run_step_reason{{{RUN}}} == 1", "{{run}} {{step}} {{reason}}"),
            ),
            curves(
                "Duration of steps",
                "Time each step took, or has taken so far.",
                (f"drafter_run_step_duration_seconds{{{RUN}}}", "{{run}} {{step}}"),
                unit=SECONDS,
            ),
            curves(
                "Retries",
                "Tries after the first one, by why the try before ended.",
                (
                    f"sum by (run, step, reason) (drafter_run_retries_total{{{RUN}}}) or vector(0)",
                    "{{run}} {{step}} {{reason}}",
                ),
            ),
        ],
    )


def run() -> dict[str, Any]:
    """Return the dashboard of one run, from its data to its candidates."""

    def benchmarked(metric: str, *matchers: str) -> str:
        return f"drafter_run_candidate_{metric}{{{', '.join((RUN, *matchers))}}}"

    return board(
        "drafter-run",
        "Drafter: run",
        "One run: its steps, data, training and candidates.",
        "now-6h",
        [
            states(
                "To-do list",
                "The state of each step over time.",
                (STATE_NUMBER.format(match=RUN), "{{step}}"),
            ),
            curves(
                "Training loss",
                "Loss of the last optimizer step, and at each TTT step in the last validation.",
                (f"drafter_training_loss{{{RUN}}}", "training"),
                (
                    f'drafter_training_ttt_step_loss{{{RUN}, split="validation"}}',
                    "validation, TTT step {{ttt_step}}",
                ),
            ),
            curves(
                "Accuracy",
                "Share of tokens that are right at a TTT step and at every earlier one.",
                (
                    f'drafter_training_accuracy_ratio{{{RUN}, kind="full"}}',
                    "{{split}}, TTT step {{ttt_step}}",
                ),
                unit=RATIO,
            ),
            curves(
                "Estimated acceptance length",
                "1 + the sum of the validation's accuracies, in tokens for each verify call.",
                (f"drafter_training_estimated_acceptance_length{{{RUN}}}", "estimate"),
                span=8,
            ),
            curves(
                "Training speed",
                "Tokens trained on in a second.",
                (
                    "sum by (run)"
                    f" (rate(drafter_training_tokens_total{{{RUN}}}[$__rate_interval]))",
                    "{{run}}",
                ),
                span=8,
            ),
            curves(
                "Learning rate and steps",
                "Learning rate; optimizer steps done, as a share of all.",
                (f"drafter_training_learning_rate{{{RUN}}}", "learning rate"),
                (
                    f"drafter_training_step{{{RUN}}} / (drafter_training_steps{{{RUN}}} > 0)",
                    "share of steps",
                ),
                span=8,
            ),
            curves(
                "Data and extraction speed",
                "Tokens written in a second.",
                (
                    f"sum by (run) (rate(drafter_prepare_tokens_total{{{RUN}}}[$__rate_interval]))",
                    "prepared",
                ),
                (
                    f"sum by (run) (rate(drafter_extract_tokens_total{{{RUN}}}[$__rate_interval]))",
                    "extracted",
                ),
                span=8,
            ),
            curves(
                "Samples",
                "Samples by what became of them.",
                (
                    f"sum by (result) (drafter_prepare_samples_total{{{RUN}}})",
                    "prepare: {{result}}",
                ),
                (
                    f"sum by (result) (drafter_extract_samples_total{{{RUN}}})",
                    "extract: {{result}}",
                ),
                span=8,
            ),
            curves(
                "Room on the volume",
                "Bytes the jobs may still write.",
                (f"min by (run) (drafter_job_volume_available_bytes{{{RUN}}})", "{{run}}"),
                unit=BYTES,
                span=8,
            ),
            number(
                "Checkpoint",
                "Size of the last complete checkpoint.",
                (f"max by (run) (drafter_training_checkpoint_size_bytes{{{RUN}}} > 0)", "{{run}}"),
                unit=BYTES,
            ),
            number(
                "Last checkpoint",
                "When it was complete.",
                (
                    "1000 * max by (run)"
                    f" (drafter_training_checkpoint_timestamp_seconds{{{RUN}}} > 0)",
                    "{{run}}",
                ),
                unit=TIMESTAMP,
            ),
            number(
                "Loss of the exported checkpoint",
                "Its validation loss.",
                (f"drafter_run_checkpoint_loss{{{RUN}}}", "{{run}}"),
            ),
            number(
                "Accuracy of the exported checkpoint",
                "Its validation accuracy at each TTT step.",
                (
                    f"drafter_run_checkpoint_accuracy_ratio{{{RUN}}}",
                    "TTT step {{ttt_step}}",
                ),
                unit=RATIO,
            ),
            curves(
                "Acceptance length of the candidates",
                "Output tokens for each verify call in the benchmark.",
                (benchmarked("acceptance_length"), "{{run}} {{candidate}}"),
            ),
            curves(
                "Throughput by depth",
                "Output tokens in a second in the benchmark.",
                (
                    benchmarked("output_tokens_per_second"),
                    "{{run}} {{candidate}}, {{concurrency}} at once",
                ),
            ),
            curves(
                "Time to first token",
                "In the benchmark, 95th percentile.",
                (
                    benchmarked("time_to_first_token_seconds", 'percentile="95"'),
                    "{{run}} {{candidate}}, {{concurrency}} at once",
                ),
                unit=SECONDS,
            ),
            curves(
                "Inter-token latency",
                "In the benchmark, 95th percentile.",
                (
                    benchmarked("inter_token_latency_seconds", 'percentile="95"'),
                    "{{run}} {{candidate}}, {{concurrency}} at once",
                ),
                unit=SECONDS,
            ),
        ],
    )


def serving() -> dict[str, Any]:
    """Return the dashboard of a promoted drafter over weeks."""
    return board(
        "drafter-serving",
        "Drafter: serving",
        "Servers of candidates: acceptance against the benchmark's, throughput and latency.",
        "now-14d",
        [
            curves(
                "Acceptance length and its benchmark's",
                "Tokens for each verify call now, and as benchmarked.",
                (
                    f"run_candidate:drafter_acceptance_length:rate5m{{{RUN}}}",
                    "{{run}} {{candidate}}",
                ),
                (
                    f"drafter_run_candidate_acceptance_length{{{RUN}}}",
                    "{{run}} {{candidate}}, benchmark",
                ),
            ),
            curves(
                "Acceptance rate",
                "Share of draft tokens that the target accepts.",
                (
                    f"run_candidate:drafter_acceptance_ratio:rate5m{{{RUN}}}",
                    "{{run}} {{candidate}}",
                ),
                unit=RATIO,
            ),
            curves(
                "Throughput",
                "Output tokens in a second.",
                (f"run_candidate:drafter_output_tokens:rate5m{{{RUN}}}", "{{run}} {{candidate}}"),
            ),
            curves(
                "Requests",
                "Requests that run and that wait.",
                (
                    f"sum by (run, candidate) (sglang:num_running_reqs{{{RUN}}})",
                    "{{run}} {{candidate}} run",
                ),
                (
                    f"sum by (run, candidate) (sglang:num_queue_reqs{{{RUN}}})",
                    "{{run}} {{candidate}} wait",
                ),
            ),
            curves(
                "Time to first token",
                "95th percentile over five minutes.",
                (
                    f"run_candidate:drafter_time_to_first_token_seconds:p95_5m{{{RUN}}}",
                    "{{run}} {{candidate}}",
                ),
                unit=SECONDS,
            ),
            curves(
                "Inter-token latency",
                "95th percentile over five minutes.",
                (
                    f"run_candidate:drafter_inter_token_latency_seconds:p95_5m{{{RUN}}}",
                    "{{run}} {{candidate}}",
                ),
                unit=SECONDS,
            ),
            curves(
                "Restarts of servers",
                "Times the container of the present server restarted.",
                (f"drafter_run_server_restarts{{{RUN}}}", "{{run}} {{candidate}}"),
                span=24,
            ),
        ],
    )


def operator() -> dict[str, Any]:
    """Return the dashboard of the operator itself."""
    return board(
        "drafter-operator",
        "Drafter: operator",
        "The operator: its passes, errors and requests to the API server.",
        "now-6h",
        [
            number(
                "Version",
                "Version of the operator.",
                ("max by (version) (drafter_operator_build_info)", "{{version}}"),
            ),
            number(
                "Last resync",
                "When all runs were listed last.",
                ("1000 * max(drafter_operator_last_resync_timestamp_seconds)", "resync"),
                unit=TIMESTAMP,
            ),
            number(
                "Queue depth",
                "Runs that wait for a pass or are in one.",
                ("sum(drafter_operator_queue_depth)", "runs"),
            ),
            number(
                "Errors in an hour",
                "Passes that failed.",
                (
                    "sum(increase(drafter_operator_reconcile_errors_total[1h])) or vector(0)",
                    "errors",
                ),
            ),
            curves(
                "Duration of passes",
                "Median and 95th percentile.",
                *[
                    (
                        f"histogram_quantile({share}, sum by (le)"
                        " (rate(drafter_operator_reconcile_duration_seconds_bucket"
                        "[$__rate_interval])))",
                        name,
                    )
                    for share, name in (("0.5", "median"), ("0.95", "95th percentile"))
                ],
                unit=SECONDS,
            ),
            curves(
                "Errors by kind",
                "Passes that failed in a second.",
                (
                    "sum by (kind) (rate(drafter_operator_reconcile_errors_total"
                    "[$__rate_interval])) or vector(0)",
                    "{{kind}}",
                ),
            ),
            curves(
                "Requests to the API server",
                "In a second, by verb and status.",
                (
                    "sum by (verb, code) (rate(drafter_operator_api_requests_total"
                    "[$__rate_interval]))",
                    "{{verb}} {{code}}",
                ),
            ),
            curves(
                "Age of the last watch event",
                "Time since each watch told anything.",
                (
                    "time() - max by (resource)"
                    " (drafter_operator_watch_last_event_timestamp_seconds)",
                    "{{resource}}",
                ),
                unit=SECONDS,
            ),
        ],
        of_runs=False,
    )


BOARDS = {"fleet": fleet, "run": run, "serving": serving, "operator": operator}
"""The dashboards by file name."""


def dashboard_files() -> dict[str, str]:
    """Return the JSON of every dashboard by file name."""
    return {
        f"{name}.json": json.dumps(make(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
        for name, make in BOARDS.items()
    }
