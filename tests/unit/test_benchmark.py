import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_sglang import FakeSGLang, plain_output

from drafter_jobs.benchmark import BenchmarkSettings, completeness_error, run_benchmark
from drafter_jobs.benchmark_report import BenchmarkReport, benchmark_result, read_benchmark
from drafter_jobs.contract.outcome import ExitCode, Reason, TerminationMessage
from drafter_jobs.job import JobError
from drafter_jobs.load_generator import TokenizedPrompt
from drafter_jobs.sglang_client import SGLangClient

PROMPTS = [TokenizedPrompt(f"p{index}", [index, index + 1, 7]) for index in range(6)]
NEW_TOKENS = 25


async def measure(
    server: FakeSGLang,
    *,
    depth: int | None = None,
    baseline: BenchmarkReport | None = None,
    ready_timeout_seconds: float = 10.0,
    **changes: Any,
) -> BenchmarkReport:
    asked = server.depth if depth is None else depth
    settings = BenchmarkSettings(
        **{
            "candidate": f"depth-{asked}" if asked else "baseline",
            "depth": asked,
            "concurrencies": [1, 3],
            "maximum_new_tokens": NEW_TOKENS,
            "warm_up_requests": 2,
            "template_sha256": "t",
            **changes,
        }
    )
    async with server.serve() as url, aiohttp.ClientSession() as session:
        return await run_benchmark(
            SGLangClient(url, session, request_timeout_seconds=10),
            PROMPTS,
            settings,
            baseline,
            ready_timeout_seconds=ready_timeout_seconds,
        )


def speculating(**settings: Any) -> FakeSGLang:
    return FakeSGLang(**{"depth": 4, "algorithm": "EAGLE3", **settings})


async def failure(server: FakeSGLang, **options: Any) -> JobError:
    with pytest.raises(JobError) as caught:
        await measure(server, **options)
    return caught.value


async def test_every_prompt_is_sent_once_in_order_at_each_concurrency() -> None:
    server = speculating(not_ready_answers=1)
    report = await measure(server)
    sent = [list(prompt.token_ids) for prompt in PROMPTS]
    assert server.prompts[2:8] == sent
    assert sorted(server.prompts[8:]) == sorted(sent)
    assert server.flushes == 2
    assert server.most_running == 3
    assert [level.concurrency for level in report.levels] == [1, 3]
    assert [(level.requested, level.completed) for level in report.levels] == [(6, 6), (6, 6)]
    assert completeness_error(report) is None


async def test_acceptance_comes_from_tokens_and_verify_calls() -> None:
    report = await measure(speculating(accepted=3))
    # 25 tokens: one from the prefill, then eight verify calls of three tokens each.
    for level in report.levels:
        assert (level.counted_tokens, level.counted_verify_calls) == (6 * 25, 6 * 8)
        assert level.acceptance_length == pytest.approx(25 / 8)
        assert level.acceptance_rate == pytest.approx(16 / 24)
        assert level.counters_agree
    assert report.acceptance_length == pytest.approx(25 / 8)


async def test_baseline_has_no_acceptance() -> None:
    report = await measure(FakeSGLang())
    assert report.acceptance_length is None
    assert all(level.acceptance_length is None for level in report.levels)
    assert all(level.counters_agree for level in report.levels)
    assert report.comparison is None


async def test_throughput_and_latencies_are_consistent() -> None:
    report = await measure(FakeSGLang())
    for level in report.levels:
        assert level.output_tokens == 6 * NEW_TOKENS
        assert level.output_tokens_per_second == pytest.approx(150 / level.seconds)
        assert level.ttft_milliseconds_p50 is not None and level.ttft_milliseconds_p50 > 0
        for request in level.requests:
            assert request.total is not None and request.ttft is not None
            assert request.itl_mean is not None
            decoding = request.itl_mean * (NEW_TOKENS - 1)
            assert request.ttft + decoding <= request.total * 1.001 + 0.01


async def test_incremental_streams_are_put_together() -> None:
    report = await measure(speculating(incremental=True))
    for level in report.levels:
        for request, prompt in zip(level.requests, PROMPTS, strict=True):
            assert request.output_ids == plain_output(prompt.token_ids, NEW_TOKENS)


async def test_outputs_are_compared_by_prompt_and_concurrency() -> None:
    baseline = await measure(FakeSGLang())
    equal = await measure(speculating(), baseline=baseline)
    assert equal.comparison is not None
    assert (equal.comparison.compared, equal.comparison.equal) == (12, 12)

    def wrong(prompt: Sequence[int], length: int) -> list[int]:
        tokens = plain_output(prompt, length)
        if prompt[0] == 4:
            tokens[9] += 1
        return tokens

    differing = await measure(speculating(output=wrong), baseline=baseline)
    assert differing.comparison is not None
    assert (differing.comparison.compared, differing.comparison.equal) == (12, 10)
    found = {
        (item.id, item.concurrency, item.position) for item in differing.comparison.differences
    }
    assert found == {("p4", 1, 9), ("p4", 3, 9)}


async def test_loop_of_two_tokens_is_seen_unless_the_target_loops_too() -> None:
    def loop(prompt: Sequence[int], length: int) -> list[int]:
        return [5, 9] * (length // 2) + [5]

    baseline = await measure(FakeSGLang())
    report = await measure(speculating(output=loop), baseline=baseline)
    assert report.comparison is not None
    assert len(report.comparison.degenerate) == 12
    assert benchmark_result(report).degenerate_outputs == 12

    looping = await measure(FakeSGLang(output=loop))
    both = await measure(speculating(output=loop), baseline=looping)
    assert both.comparison is not None
    assert both.comparison.degenerate == []
    assert len(both.comparison.degenerate_in_both) == 12


@pytest.mark.parametrize("kind", ["error", "cut", "status"])
async def test_a_failed_request_fails_the_benchmark_but_not_the_others(kind: str) -> None:
    server = speculating(fail_request=lambda number: kind if number == 4 else None)
    report = await measure(server)
    assert [level.completed for level in report.levels] == [5, 6]
    error = completeness_error(report)
    assert error is not None
    assert error.exit_code == ExitCode.SERVER_FAILED
    assert error.reason == Reason.REQUESTS_FAILED
    assert "11 of 12 requests completed" in error.message
    assert "p2 at concurrency 1" in error.message


async def test_restart_is_noticed() -> None:
    error = await failure(speculating(restart_at_request=10))
    assert (error.exit_code, error.reason) == (ExitCode.SERVER_FAILED, Reason.SERVER_RESTARTED)
    assert "at concurrency 3" in error.message


async def test_death_is_noticed() -> None:
    server = speculating()
    settings = BenchmarkSettings("depth-4", 4, [1], NEW_TOKENS, 0, "t")
    async with aiohttp.ClientSession() as session:
        serving = server.serve()
        url = await serving.__aenter__()
        client = SGLangClient(url, session, request_timeout_seconds=10)
        generate = client.generate

        async def die(prompt_ids: Sequence[int], maximum_new_tokens: int) -> Any:
            if len(server.prompts) == 3:
                await serving.__aexit__(None, None, None)
            return await generate(prompt_ids, maximum_new_tokens)

        client.generate = die  # type: ignore[method-assign]
        with pytest.raises(JobError) as caught:
            await run_benchmark(client, PROMPTS[:4], settings)
    assert caught.value.reason == Reason.SERVER_RESTARTED


async def test_server_that_never_gets_ready() -> None:
    error = await failure(speculating(not_ready_answers=10**6), ready_timeout_seconds=0.1)
    assert (error.exit_code, error.reason) == (ExitCode.SERVER_FAILED, Reason.SERVER_UNREACHABLE)
    assert "503" in error.message


async def test_server_without_metrics() -> None:
    error = await failure(speculating(metrics=False))
    assert error.reason == Reason.SERVER_UNREACHABLE
    assert "--enable-metrics" in error.message


@pytest.mark.parametrize(
    ("server", "depth", "expected"),
    [
        (speculating(), 0, "the baseline's server speculates"),
        (speculating(), 8, "speculative_num_draft_tokens is 4"),
        (speculating(algorithm="EAGLE"), 4, "EAGLE3 is needed"),
        (FakeSGLang(), 4, "speculative_algorithm is None"),
    ],
)
async def test_server_with_other_arguments(server: FakeSGLang, depth: int, expected: str) -> None:
    error = await failure(server, depth=depth)
    assert error.exit_code == ExitCode.CONFIGURATION_ERROR
    assert expected in error.message


@pytest.mark.parametrize(
    ("server", "changes", "expected"),
    [
        (speculating(limits={"max_running_requests": 48}), {}, "max_running_requests is 48"),
        (speculating(), {"maximum_new_tokens": 9}, "maximum_new_tokens is 9"),
        (speculating(), {"concurrencies": [1]}, "concurrencies is [1]"),
        (speculating(), {"template_sha256": "u"}, "template_sha256 is u"),
    ],
)
async def test_baseline_of_other_conditions(
    server: FakeSGLang, changes: dict[str, Any], expected: str
) -> None:
    error = await failure(server, baseline=await measure(FakeSGLang()), **changes)
    assert error.exit_code == ExitCode.CONFIGURATION_ERROR
    assert expected in error.message


async def test_report_survives_its_file(tmp_path: Path) -> None:
    report = await measure(speculating(), baseline=await measure(FakeSGLang()))
    path = tmp_path / "depth-4.json"
    path.write_text(report.model_dump_json(by_alias=True))
    assert read_benchmark(path) == report


async def test_result_of_many_concurrencies_fits_the_termination_message() -> None:
    report = await measure(speculating(), concurrencies=list(range(1, 11)), warm_up_requests=0)
    result = benchmark_result(report)
    message = TerminationMessage(
        outcome="Succeeded",
        reason=Reason.SUCCEEDED,
        message="done",
        result=result.model_dump(mode="json", by_alias=True),
    )
    assert len(message.to_bytes()) <= 4096
    assert json.loads(message.to_bytes())["result"]["loads"][9]["concurrency"] == 10
