"""What the status keeps of each job's result."""

from __future__ import annotations

from typing import Any

from drafter_jobs.contract.outcome import (
    BenchmarkResult,
    ExportResult,
    ExtractResult,
    PrepareResult,
    TrainResult,
)
from drafter_operator.api.status import (
    CandidateState,
    DataStatus,
    ExportStatus,
    LoadStatus,
    TrainingStatus,
)
from drafter_operator.lifecycle.ledger import Ledger
from drafter_operator.resources import names
from drafter_operator.run import CandidateId


def record_prepare(ledger: Ledger, result: dict[str, Any]) -> str:
    """Keep the counts of Prepare; return a sentence about them."""
    prepared = PrepareResult.model_validate(result)
    data = (ledger.status.data or DataStatus()).model_copy(
        update={
            "samples": prepared.written,
            "tokens": prepared.tokens,
            "held_out": prepared.held_out,
            "draft_vocabulary_size": prepared.draft_vocabulary_size,
            "vocabulary_coverage": prepared.vocabulary_coverage,
        }
    )
    ledger.set(data=data)
    return (
        f"{prepared.written} samples, {prepared.tokens} tokens; {prepared.skipped} skipped,"
        f" {prepared.failed} failed of {prepared.input}"
    )


def record_extract(ledger: Ledger, result: dict[str, Any]) -> str:
    """Keep the counts of Extract; return a sentence about them."""
    extracted = ExtractResult.model_validate(result)
    data = (ledger.status.data or DataStatus()).model_copy(
        update={
            "hidden_states_bytes": extracted.bytes,
            "auxiliary_layers": extracted.auxiliary_layers,
        }
    )
    ledger.set(data=data)
    return (
        f"{extracted.written} written, {extracted.skipped} found complete, {extracted.failed}"
        f" failed of {extracted.input}; {extracted.bytes / 1e9:.2f} GB"
    )


def record_train(ledger: Ledger, result: dict[str, Any]) -> str:
    """Keep the result of Train; return a sentence about it."""
    trained = TrainResult.model_validate(result)
    training = (ledger.status.training or TrainingStatus()).model_copy(
        update={
            "epoch": trained.epochs - 1,
            "epochs": trained.epochs,
            "loss": trained.loss,
            "accuracy": trained.full_accuracy,
            "estimated_acceptance_length": trained.estimated_acceptance_length,
            "best_epoch": trained.best_epoch,
            "checkpoint": trained.checkpoint,
        }
    )
    ledger.set(training=training)
    first = trained.full_accuracy[0] if trained.full_accuracy else "unknown"
    return (
        f"best epoch {trained.best_epoch}: first-step accuracy {first}, estimated acceptance"
        f" length {trained.estimated_acceptance_length}"
    )


def record_export(ledger: Ledger, result: dict[str, Any]) -> str:
    """Keep the report of Export; return a sentence about it."""
    exported = ExportResult.model_validate(result)
    ledger.set(
        export=ExportStatus(
            path=str(names.Paths(ledger.run).drafter.relative_to(names.DATA_MOUNT)),
            architecture=exported.architecture,
            tensors=exported.tensors,
            renamed=exported.renamed,
            dropped=exported.dropped,
            added=exported.added,
            auxiliary_layers=exported.auxiliary_layers,
            parameters=exported.parameters,
            sha256=exported.sha256,
        )
    )
    return (
        f"{exported.tensors} tensors for {exported.architecture}, {exported.renamed} renamed,"
        f" {len(exported.dropped)} left out"
    )


def record_benchmark(ledger: Ledger, candidate: CandidateId, result: dict[str, Any]) -> str:
    """Keep a candidate's figures; return a sentence about them."""
    measured = BenchmarkResult.model_validate(result)
    compared = measured.outputs_compared
    ledger.change_candidate(
        candidate,
        state=CandidateState.MEASURED,
        acceptance_length=measured.acceptance_length,
        acceptance_rate=measured.acceptance_rate,
        loads=[
            LoadStatus(
                concurrency=load.concurrency,
                output_tokens_per_second=load.output_tokens_per_second,
                speedup=_speedup(ledger, load.concurrency, load.output_tokens_per_second),
                ttft_milliseconds_p50=load.ttft_milliseconds_p50,
                ttft_milliseconds_p95=load.ttft_milliseconds_p95,
                itl_milliseconds_p50=load.itl_milliseconds_p50,
                itl_milliseconds_p95=load.itl_milliseconds_p95,
                acceptance_length=load.acceptance_length,
            )
            for load in measured.loads
        ],
        outputs_equal=measured.outputs_equal == compared if compared else None,
        outputs_compared=compared or None,
        outputs_different=compared - measured.outputs_equal if compared else None,
        degenerate_outputs=measured.degenerate_outputs,
    )
    rates = ", ".join(
        f"{load.output_tokens_per_second} tokens/s at {load.concurrency}" for load in measured.loads
    )
    accepted = f"acceptance length {measured.acceptance_length}, " if candidate.depth else ""
    return accepted + rates


def _speedup(ledger: Ledger, concurrency: int, rate: str) -> str | None:
    baseline = ledger.candidates.get(CandidateId(0).name)
    for load in baseline.loads if baseline else []:
        if load.concurrency == concurrency and float(load.output_tokens_per_second) > 0:
            return f"{float(rate) / float(load.output_tokens_per_second):.3f}"
    return None
