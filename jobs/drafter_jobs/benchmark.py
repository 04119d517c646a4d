"""Measure one SGLang server: throughput, latency, acceptance, and equality with the baseline.

Every candidate gets the same token ids in the same order at the same concurrencies. Decoding is
greedy and stops at the target's end of text, so that outputs can be compared token for token.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from drafter_jobs.acceptance import Counters, measure_acceptance
from drafter_jobs.atomic_files import write_atomically
from drafter_jobs.benchmark_prompts import (
    PromptsUnusableError,
    TemplateMismatchError,
    load_prompts,
)
from drafter_jobs.benchmark_report import (
    BenchmarkReport,
    ComparisonReport,
    DifferenceReport,
    LevelReport,
    ReportUnreadableError,
    RequestReport,
    ServerReport,
    SettingsReport,
    benchmark_result,
    read_benchmark,
)
from drafter_jobs.contract import metrics
from drafter_jobs.contract.outcome import BenchmarkResult, ExitCode, Reason
from drafter_jobs.greedy_equality import compare_outputs
from drafter_jobs.job import (
    REGISTRY,
    InterruptedJobError,
    JobError,
    Progress,
    job_parser,
    log,
    run_job,
)
from drafter_jobs.load_generator import LoadRun, RequestOutcome, TokenizedPrompt, run_load
from drafter_jobs.sglang_client import (
    NotReadyError,
    ServerGoneError,
    ServerInfo,
    SGLangClient,
)
from drafter_jobs.statistics_of_samples import percentile

ALGORITHM = "EAGLE3"
BASELINE_DEPTH = 0

REQUESTS = metrics.BENCHMARK_REQUESTS.counter(REGISTRY)


@dataclass(frozen=True)
class BenchmarkSettings:
    """What to measure.

    Attributes
    ----------
    candidate
        Name of the candidate.
    depth
        Draft tokens the server must be started with; 0 for no speculation.
    concurrencies
        Numbers of requests under way, one after the other.
    maximum_new_tokens
        Limit of each output.
    warm_up_requests
        Sent before measuring.
    template_sha256
        Of the chat template the prompts were rendered with.
    """

    candidate: str
    depth: int
    concurrencies: Sequence[int]
    maximum_new_tokens: int
    warm_up_requests: int
    template_sha256: str


def prompts_checksum(prompts: Sequence[TokenizedPrompt]) -> str:
    """SHA-256 over ids and token ids of prompts, in order."""
    listed = [[prompt.id, list(prompt.token_ids)] for prompt in prompts]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


async def run_benchmark(
    client: SGLangClient,
    prompts: Sequence[TokenizedPrompt],
    settings: BenchmarkSettings,
    baseline: BenchmarkReport | None = None,
    *,
    ready_timeout_seconds: float = 600.0,
    progress: Progress | None = None,
) -> BenchmarkReport:
    """Measure a server.

    Parameters
    ----------
    client
        Of the server.
    prompts
        Sent once each at each concurrency.
    settings
        What to measure.
    baseline
        Report of the server without speculation.
    ready_timeout_seconds
        How long to wait for the server.
    progress
        Told of finished requests.

    Returns
    -------
    BenchmarkReport
        Of a benchmark in which every request completed, or not: that is the caller's to judge
        (:func:`completeness_error`).

    Raises
    ------
    JobError
        If the server is unreachable, runs with other arguments, or restarts on the way; or if
        the baseline was measured under other conditions.
    """
    try:
        await client.wait_until_ready(ready_timeout_seconds)
    except NotReadyError as error:
        raise _server_error(Reason.SERVER_UNREACHABLE, str(error)) from None
    try:
        server = await client.server_info()
        check_server(server, settings.depth)
        asked = SettingsReport(
            prompts_sha256=prompts_checksum(prompts),
            template_sha256=settings.template_sha256,
            concurrencies=list(settings.concurrencies),
            requests=len(prompts),
            maximum_new_tokens=settings.maximum_new_tokens,
        )
        if baseline is not None:
            check_comparable(baseline, asked, server)
        await client.counters()
    except ServerGoneError as error:
        raise _server_error(
            Reason.SERVER_UNREACHABLE,
            f"the server cannot be measured: {error}; is it SGLang, with --enable-metrics?",
        ) from None
    if progress is not None:
        progress.expect(len(prompts) * len(settings.concurrencies))
    await _warm_up(client, prompts, settings)
    levels = []
    for concurrency in settings.concurrencies:
        level = await _measure(client, prompts, concurrency, settings, server, progress)
        log(
            "measured",
            concurrency=concurrency,
            completed=f"{level.completed}/{level.requested}",
            tokens_per_second=round(level.output_tokens_per_second, 2),
            acceptance_length=level.acceptance_length,
        )
        levels.append(level)
    return _report(settings, server, asked, levels, baseline)


def check_server(server: ServerInfo, depth: int) -> None:
    """Check that a server was started with the arguments of its candidate.

    Raises
    ------
    JobError
        With reason ``ConfigurationError`` if it was not.
    """
    if depth == BASELINE_DEPTH:
        if server.algorithm is not None:
            raise _configuration_error(
                f"the baseline's server speculates (speculative_algorithm {server.algorithm}); "
                "start it without --speculative-algorithm"
            )
        return
    if server.algorithm != ALGORITHM:
        raise _configuration_error(
            f"the server's speculative_algorithm is {server.algorithm}, {ALGORITHM} is needed: "
            "with another one it ignores fc and accepts nothing"
        )
    if server.draft_tokens != depth:
        raise _configuration_error(
            f"the server's speculative_num_draft_tokens is {server.draft_tokens}, the candidate's "
            f"depth is {depth}"
        )


def check_comparable(baseline: BenchmarkReport, asked: SettingsReport, server: ServerInfo) -> None:
    """Check that a baseline was measured under the same conditions.

    Raises
    ------
    JobError
        With reason ``ConfigurationError``, naming the first difference.
    """
    if baseline.depth != BASELINE_DEPTH:
        raise _configuration_error(
            f"the baseline's report is of candidate {baseline.candidate} with depth "
            f"{baseline.depth}, a report with depth 0 is needed"
        )
    pairs = [
        *((name, value, getattr(asked, name)) for name, value in baseline.settings),
        *((name, value, server.limits.get(name)) for name, value in baseline.server.limits.items()),
        ("version", baseline.server.version, server.version),
    ]
    for name, theirs, ours in pairs:
        if theirs != ours:
            raise _configuration_error(
                f"{name} is {ours}, the baseline was measured with {theirs}; measure both alike"
            )


def completeness_error(report: BenchmarkReport) -> JobError | None:
    """Return the failure of a benchmark in which requests failed; ``None`` if none did."""
    failed = [
        (level.concurrency, request)
        for level in report.levels
        for request in level.requests
        if request.error is not None
    ]
    if not failed:
        return None
    requested = sum(level.requested for level in report.levels)
    concurrency, first = failed[0]
    return _server_error(
        Reason.REQUESTS_FAILED,
        f"{requested - len(failed)} of {requested} requests completed; the first that failed is "
        f"{first.id} at concurrency {concurrency}: {first.error}",
    )


async def _warm_up(
    client: SGLangClient, prompts: Sequence[TokenizedPrompt], settings: BenchmarkSettings
) -> None:
    chosen = prompts[: settings.warm_up_requests]
    if not chosen:
        return
    run = await run_load(client, chosen, max(settings.concurrencies), settings.maximum_new_tokens)
    for outcome in run.outcomes:
        if outcome.error is not None:
            raise _server_error(
                Reason.REQUESTS_FAILED,
                f"the warm-up request {outcome.prompt.id} failed: {outcome.error}",
            )


async def _measure(
    client: SGLangClient,
    prompts: Sequence[TokenizedPrompt],
    concurrency: int,
    settings: BenchmarkSettings,
    server: ServerInfo,
    progress: Progress | None,
) -> LevelReport:
    def finished(completed: bool) -> None:
        REQUESTS.labels(result="completed" if completed else "failed").inc()
        if progress is not None:
            progress.advance()

    try:
        await client.flush_cache()
        before = await client.counters()
        run = await run_load(client, prompts, concurrency, settings.maximum_new_tokens, finished)
        tokens = sum(
            outcome.generation.acceptance.tokens
            for outcome in run.outcomes
            if outcome.generation is not None
        )
        after = await client.settled_counters(before, tokens)
        now = await client.server_info()
    except ServerGoneError as error:
        raise _server_error(
            Reason.SERVER_RESTARTED,
            f"the server went away at concurrency {concurrency}: {error}; see its log",
        ) from None
    counted = after.since(before)
    if now.identity != server.identity or min(counted.generated_tokens, counted.verify_calls) < 0:
        raise _server_error(
            Reason.SERVER_RESTARTED,
            f"the server restarted at concurrency {concurrency}, so its figures are of a cold "
            "server; see the log of its previous container",
        )
    return _level_report(concurrency, run, counted)


def _level_report(concurrency: int, run: LoadRun, counted: Counters) -> LevelReport:
    finished = [outcome.generation for outcome in run.outcomes if outcome.generation is not None]
    tokens = sum(generation.acceptance.tokens for generation in finished)
    first = [generation.first_token_seconds for generation in finished]
    further = [seconds for generation in finished for seconds in generation.token_seconds]
    acceptance = measure_acceptance(counted, [generation.acceptance for generation in finished])
    return LevelReport(
        concurrency=concurrency,
        requested=len(run.outcomes),
        completed=len(finished),
        seconds=run.seconds,
        output_tokens=tokens,
        output_tokens_per_second=tokens / run.seconds if run.seconds > 0 else 0.0,
        ttft_milliseconds_p50=_milliseconds(first, 0.5),
        ttft_milliseconds_p95=_milliseconds(first, 0.95),
        itl_milliseconds_p50=_milliseconds(further, 0.5),
        itl_milliseconds_p95=_milliseconds(further, 0.95),
        acceptance_length=acceptance.length if acceptance else None,
        acceptance_rate=acceptance.rate if acceptance else None,
        counted_tokens=counted.generated_tokens,
        counted_verify_calls=counted.verify_calls,
        counters_agree=acceptance.counters_agree if acceptance else counted == Counters(tokens, 0),
        requests=[_request_report(outcome) for outcome in run.outcomes],
    )


def _request_report(outcome: RequestOutcome) -> RequestReport:
    generation = outcome.generation
    if generation is None:
        return RequestReport(id=outcome.prompt.id, error=outcome.error)
    further = generation.token_seconds
    return RequestReport(
        id=outcome.prompt.id,
        prompt_tokens=generation.prompt_tokens,
        output_ids=generation.output_ids,
        text=generation.text,
        finish_reason=generation.finish_reason,
        ttft=generation.first_token_seconds * 1000,
        itl_mean=sum(further) / len(further) * 1000 if further else None,
        itl_p95=_milliseconds(further, 0.95),
        total=generation.total_seconds * 1000,
        verify_calls=generation.acceptance.verify_calls,
        correct_drafts=generation.acceptance.correct_drafts,
        proposed_drafts=generation.acceptance.proposed_drafts,
    )


def _report(
    settings: BenchmarkSettings,
    server: ServerInfo,
    asked: SettingsReport,
    levels: list[LevelReport],
    baseline: BenchmarkReport | None,
) -> BenchmarkReport:
    requests = [request for level in levels for request in level.requests]
    calls = sum(request.verify_calls for request in requests)
    proposed = sum(request.proposed_drafts for request in requests)
    report = BenchmarkReport(
        candidate=settings.candidate,
        depth=settings.depth,
        server=ServerReport(
            version=server.version,
            algorithm=server.algorithm,
            draft_tokens=server.draft_tokens,
            steps=server.steps,
            top_k=server.top_k,
            limits=server.limits,
        ),
        settings=asked,
        levels=levels,
        acceptance_length=sum(len(request.output_ids) for request in requests) / calls
        if calls
        else None,
        acceptance_rate=sum(request.correct_drafts for request in requests) / proposed
        if proposed
        else None,
    )
    if baseline is None:
        return report
    comparison = compare_outputs(report.outputs(), baseline.outputs())
    return report.model_copy(
        update={
            "comparison": ComparisonReport(
                compared=comparison.compared,
                equal=comparison.equal,
                differences=[
                    DifferenceReport(id=key[0], concurrency=key[1], position=position)
                    for key, position in comparison.first_differences.items()
                ],
                degenerate=[f"{key[0]} at {key[1]}" for key in comparison.degenerate],
                degenerate_in_both=[
                    f"{key[0]} at {key[1]}" for key in comparison.degenerate_in_both
                ],
            )
        }
    )


def _milliseconds(seconds: Sequence[float], share: float) -> float | None:
    return percentile(seconds, share) * 1000 if seconds else None


def _configuration_error(message: str) -> JobError:
    return JobError(ExitCode.CONFIGURATION_ERROR, Reason.CONFIGURATION_ERROR, message)


def _server_error(reason: Reason, message: str) -> JobError:
    return JobError(ExitCode.SERVER_FAILED, reason, message)


def _concurrencies(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1 or len(set(values)) != len(values):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of distinct positive integers such as 1,8"
        )
    return values


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _not_negative(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 0")
    return int(text)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser("drafter-benchmark", __doc__ or "")
    parser.add_argument("--url", required=True, help="http://host:port of the server")
    parser.add_argument("--candidate", required=True, help="name of the candidate")
    parser.add_argument(
        "--depth", type=_not_negative, required=True, help="its draft tokens; 0: baseline"
    )
    parser.add_argument("--prompts", type=Path, required=True, help="JSON Lines of prompts")
    parser.add_argument(
        "--dataset", type=Path, required=True, help="dataset with the record of the template"
    )
    parser.add_argument("--target", required=True, help="directory or Hub id of the target")
    parser.add_argument("--target-revision", help="revision on the Hub")
    parser.add_argument("--trust-remote-code", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--output", type=Path, required=True, help="report to write")
    parser.add_argument("--baseline", type=Path, help="report of the baseline")
    parser.add_argument("--concurrencies", type=_concurrencies, default=[1, 8])
    parser.add_argument(
        "--requests", type=_positive, default=16, help="prompts taken from the file, at most"
    )
    parser.add_argument("--maximum-new-tokens", type=_positive, default=64)
    parser.add_argument("--warm-up-requests", type=_not_negative, default=2)
    parser.add_argument("--request-timeout-seconds", type=_positive, default=600)
    parser.add_argument("--ready-timeout-seconds", type=_positive, default=600)
    return parser


def _run(arguments: argparse.Namespace) -> BenchmarkResult:
    if arguments.depth == 1:
        raise _configuration_error(
            "--depth is 1: one draft token is the root itself; use 2 or more"
        )
    baseline = None
    if arguments.baseline is not None:
        try:
            baseline = read_benchmark(arguments.baseline)
        except ReportUnreadableError as error:
            raise _configuration_error(f"--baseline: {error}") from None
    try:
        loaded = load_prompts(
            arguments.prompts,
            arguments.dataset,
            arguments.target,
            revision=arguments.target_revision,
            trust_remote_code=arguments.trust_remote_code,
            limit=arguments.requests,
        )
    except TemplateMismatchError as error:
        raise JobError(ExitCode.INVALID_INPUT, Reason.TEMPLATE_MISMATCH, str(error)) from None
    except PromptsUnusableError as error:
        raise JobError(ExitCode.INVALID_INPUT, Reason.PROMPTS_INVALID, str(error)) from None
    settings = BenchmarkSettings(
        candidate=arguments.candidate,
        depth=arguments.depth,
        concurrencies=arguments.concurrencies,
        maximum_new_tokens=arguments.maximum_new_tokens,
        warm_up_requests=arguments.warm_up_requests,
        template_sha256=loaded.template_sha256,
    )

    async def measure() -> BenchmarkReport:
        if threading.current_thread() is threading.main_thread():
            # An exception out of a signal handler could surface in any of the tasks.
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        # No limit of the connections: the concurrency is the load generator's to keep.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            client = SGLangClient(arguments.url, session, arguments.request_timeout_seconds)
            return await run_benchmark(
                client,
                loaded.prompts,
                settings,
                baseline,
                ready_timeout_seconds=arguments.ready_timeout_seconds,
                progress=Progress("requests"),
            )

    try:
        report = asyncio.run(measure())
    except asyncio.CancelledError:
        raise InterruptedJobError from None
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.output, report.model_dump_json(by_alias=True, indent=1).encode())
    failure = completeness_error(report)
    if failure is not None:
        raise failure
    return benchmark_result(report)


def main() -> None:
    """Run ``drafter-benchmark``."""
    sys.exit(run_job(build_parser(), _run))


if __name__ == "__main__":
    main()
