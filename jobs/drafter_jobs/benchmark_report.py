"""The file a benchmark leaves: every request, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from drafter_jobs.contract.outcome import BenchmarkResult, LoadResult
from drafter_jobs.greedy_equality import OutputKey

FORMAT = "drafters.dev/benchmark/v1"


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class ServerReport(_Part):
    """The server measured."""

    version: str
    algorithm: str | None
    draft_tokens: int | None
    steps: int | None
    top_k: int | None
    limits: dict[str, Any] = Field(description="Settings equal for comparable servers.")


class SettingsReport(_Part):
    """What was asked; equal for comparable benchmarks."""

    prompts_sha256: str = Field(description="Of the prompts' ids and token ids, in order.")
    template_sha256: str
    concurrencies: list[int]
    requests: int = Field(description="At each concurrency.")
    maximum_new_tokens: int


class RequestReport(_Part):
    """One request; times in milliseconds."""

    id: str
    prompt_tokens: int = 0
    output_ids: list[int] = []
    text: str = ""
    finish_reason: str = ""
    ttft: float | None = None
    itl_mean: float | None = None
    itl_p95: float | None = None
    total: float | None = None
    verify_calls: int = 0
    correct_drafts: int = 0
    proposed_drafts: int = 0
    error: str | None = None


class LevelReport(_Part):
    """One concurrency."""

    concurrency: int
    requested: int
    completed: int
    seconds: float = Field(description="From the first request's start to the last one's end.")
    output_tokens: int
    output_tokens_per_second: float
    ttft_milliseconds_p50: float | None
    ttft_milliseconds_p95: float | None
    itl_milliseconds_p50: float | None
    itl_milliseconds_p95: float | None
    acceptance_length: float | None
    acceptance_rate: float | None
    counted_tokens: int = Field(description="Rise of the server's own total.")
    counted_verify_calls: int = Field(description="Rise of the server's own total.")
    counters_agree: bool = Field(description="False if something else used the server as well.")
    requests: list[RequestReport]


class DifferenceReport(_Part):
    """One output that differs from the baseline's."""

    id: str
    concurrency: int
    position: int = Field(description="Of the first token that differs.")


class ComparisonReport(_Part):
    """Comparison with the baseline's outputs."""

    compared: int
    equal: int
    differences: list[DifferenceReport]
    degenerate: list[str] = Field(description="Prompts whose output loops here only.")
    degenerate_in_both: list[str]


class BenchmarkReport(_Part):
    """A whole benchmark."""

    format: str = FORMAT
    candidate: str
    depth: int
    server: ServerReport
    settings: SettingsReport
    levels: list[LevelReport]
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    comparison: ComparisonReport | None = None

    def outputs(self) -> dict[OutputKey, list[int]]:
        """Output token ids of the completed requests."""
        return {
            (request.id, level.concurrency): request.output_ids
            for level in self.levels
            for request in level.requests
            if request.error is None
        }


class ReportUnreadableError(ValueError):
    """A file that is no benchmark report; the message names it."""


def read_benchmark(path: Path) -> BenchmarkReport:
    """Read a report.

    Raises
    ------
    ReportUnreadableError
        If it is missing or of another form.
    """
    try:
        report = BenchmarkReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ReportUnreadableError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        raise ReportUnreadableError(
            f"{path} is not the report of a benchmark: {error.errors()[0]['msg']}"
        ) from None
    if report.format != FORMAT:
        raise ReportUnreadableError(f"{path} has the format {report.format}, not {FORMAT}")
    return report


def benchmark_result(report: BenchmarkReport) -> BenchmarkResult:
    """Shorten a report to what the operator needs."""
    comparison = report.comparison
    return BenchmarkResult(
        candidate=report.candidate,
        depth=report.depth,
        acceptance_length=_decimal(report.acceptance_length, 3),
        acceptance_rate=_decimal(report.acceptance_rate, 4),
        loads=[
            LoadResult(
                concurrency=level.concurrency,
                requested=level.requested,
                completed=level.completed,
                output_tokens_per_second=_decimal(level.output_tokens_per_second, 2) or "0",
                ttft_milliseconds_p50=_decimal(level.ttft_milliseconds_p50, 1) or "",
                ttft_milliseconds_p95=_decimal(level.ttft_milliseconds_p95, 1) or "",
                itl_milliseconds_p50=_decimal(level.itl_milliseconds_p50, 2) or "",
                itl_milliseconds_p95=_decimal(level.itl_milliseconds_p95, 2) or "",
                acceptance_length=_decimal(level.acceptance_length, 3),
            )
            for level in report.levels
        ],
        outputs_compared=comparison.compared if comparison else 0,
        outputs_equal=comparison.equal if comparison else 0,
        degenerate_outputs=len(comparison.degenerate) if comparison else 0,
    )


def _decimal(value: float | None, places: int) -> str | None:
    return None if value is None else f"{value:.{places}f}"
