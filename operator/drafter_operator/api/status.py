"""What the operator reports: ``DrafterRun.status``."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from drafter_operator.api.base import ApiModel

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""RFC 3339 time in UTC."""


class Phase(enum.StrEnum):
    """A summary for people; programs read the conditions."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class StepState(enum.StrEnum):
    """State of one step of the to-do list."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"


class CandidateState(enum.StrEnum):
    """State of one candidate."""

    PENDING = "Pending"
    STARTING = "Starting"
    BENCHMARKING = "Benchmarking"
    MEASURED = "Measured"
    FAILED = "Failed"
    PROMOTED = "Promoted"


class Condition(ApiModel):
    """A condition as in the Kubernetes API conventions."""

    type: str = Field(
        max_length=316,
        description=("Accepted, Progressing, Complete, Failed, Suspended, Promoted or Serving."),
    )
    status: str = Field(
        description="True, False or Unknown.",
        json_schema_extra={"enum": ["True", "False", "Unknown"]},
    )
    reason: str = Field(min_length=1, max_length=1024, description="A word from a fixed list.")
    message: str = Field(max_length=32_768, description="What happened and what to do.")
    last_transition_time: Timestamp = Field(description="Time of the last change of `status`.")
    observed_generation: int = Field(default=0, ge=0, description="Generation it speaks of.")


class Progress(ApiModel):
    """How far a running step is."""

    done: int = Field(ge=0, description="Units done.")
    total: int = Field(ge=0, description="Units in all.")
    unit: str = Field(max_length=32, description="samples, steps or requests.")
    counted_from: int = Field(
        default=0, ge=0, description="Units already done when this Pod was first asked."
    )
    counted_since: Timestamp | None = Field(
        default=None, description="Time when this Pod was first asked."
    )
    rate_per_second: str | None = Field(default=None, description="Units a second since then.")
    seconds_left: int | None = Field(default=None, ge=0, description="Estimated time left.")


class Step(ApiModel):
    """One line of the to-do list."""

    name: str = Field(max_length=64, description="Name, such as Train or Benchmark-depth-16.")
    state: StepState = Field(default=StepState.PENDING, description="State.")
    reason: str | None = Field(default=None, max_length=128, description="A word: why.")
    message: str | None = Field(
        default=None, max_length=4096, description="What happened and what to do."
    )
    attempt: int = Field(default=1, ge=1, description="Attempt, in the child's name.")
    started_at: Timestamp | None = Field(default=None, description="Start.")
    finished_at: Timestamp | None = Field(default=None, description="End.")
    progress: Progress | None = Field(default=None, description="Progress while running.")


class TrainingStatus(ApiModel):
    """Progress and result of training."""

    epoch: int | None = Field(default=None, description="Present or last epoch, from 0.")
    epochs: int | None = Field(default=None, description="Epochs in all.")
    step: int | None = Field(default=None, description="Optimizer steps done.")
    steps: int | None = Field(default=None, description="Optimizer steps in all.")
    loss: str | None = Field(default=None, description="Last loss.")
    accuracy: list[str] = Field(
        default_factory=list,
        description="Validation accuracy of each TTT step (right at it and all before).",
    )
    estimated_acceptance_length: str | None = Field(
        default=None, description="1 + the sum of the accuracies."
    )
    packed_sequence_length: int | None = Field(
        default=None, description="Packed length in use, after any out-of-memory."
    )
    best_epoch: int | None = Field(default=None, description="Epoch of the exported checkpoint.")
    checkpoint: str | None = Field(default=None, description="Path of the best checkpoint.")


class DataStatus(ApiModel):
    """Counts of preparation and extraction."""

    samples: int | None = Field(default=None, description="Samples of the training corpus.")
    tokens: int | None = Field(default=None, description="Tokens of the training corpus.")
    held_out: int | None = Field(default=None, description="Prompts kept for the benchmark.")
    draft_vocabulary_size: int | None = Field(default=None, description="Draft vocabulary.")
    vocabulary_coverage: str | None = Field(
        default=None, description="Share of response tokens in the draft vocabulary."
    )
    hidden_states_bytes: int | None = Field(default=None, description="Bytes of hidden states.")
    auxiliary_layers: list[int] = Field(
        default_factory=list, description="Layers captured, as extracted."
    )


class ExportStatus(ApiModel):
    """Report of the export."""

    path: str | None = Field(default=None, description="Drafter directory inside the volume.")
    architecture: str | None = Field(default=None, description="Architecture SGLang loads.")
    tensors: int | None = Field(default=None, description="Tensors written.")
    renamed: int | None = Field(default=None, description="Tensors renamed.")
    dropped: list[str] = Field(default_factory=list, description="Tensors left out.")
    added: list[str] = Field(default_factory=list, description="Tensors added.")
    auxiliary_layers: list[int] = Field(
        default_factory=list, description="Layer ids in the engine's convention."
    )
    parameters: int | None = Field(default=None, description="Parameters of the drafter.")
    sha256: str | None = Field(default=None, description="Checksum of the weights.")


class LoadStatus(ApiModel):
    """One concurrency of a candidate's benchmark."""

    concurrency: int = Field(description="Requests in flight.")
    output_tokens_per_second: str = Field(description="Output tokens per second.")
    speedup: str | None = Field(default=None, description="Throughput over the baseline's.")
    ttft_milliseconds_p50: str = Field(description="Time to first token, median.")
    ttft_milliseconds_p95: str = Field(description="Time to first token, 95th percentile.")
    itl_milliseconds_p50: str = Field(description="Inter-token latency, median.")
    itl_milliseconds_p95: str = Field(description="Inter-token latency, 95th percentile.")
    acceptance_length: str | None = Field(default=None, description="At this concurrency.")


class Candidate(ApiModel):
    """One candidate: the baseline or a depth."""

    name: str = Field(max_length=64, description="baseline or depth-N.")
    depth: int = Field(ge=0, description="Draft tokens; 0 for the baseline.")
    state: CandidateState = Field(default=CandidateState.PENDING, description="State.")
    acceptance_length: str | None = Field(
        default=None, description="Output tokens for each verify call."
    )
    acceptance_rate: str | None = Field(
        default=None, description="Accepted draft tokens over proposed ones."
    )
    loads: list[LoadStatus] = Field(default_factory=list, description="By concurrency.")
    outputs_equal: bool | None = Field(
        default=None, description="Greedy outputs equal the baseline's."
    )
    outputs_compared: int | None = Field(default=None, description="Outputs compared.")
    outputs_different: int | None = Field(default=None, description="Outputs that differ.")
    degenerate_outputs: int | None = Field(default=None, description="Outputs that loop.")
    eligible: bool | None = Field(default=None, description="Passed every gate.")
    reason: str | None = Field(default=None, description="Why not eligible: a word.")
    message: str | None = Field(default=None, description="Why not eligible: likely causes.")


class Best(ApiModel):
    """The winner of the benchmark."""

    candidate: str = Field(description="Name of the candidate.")
    depth: int = Field(description="Its draft tokens.")
    acceptance_length: str = Field(description="Its acceptance length.")
    speedup: str | None = Field(default=None, description="Its speed-up at the objective.")
    output_tokens_per_second: str = Field(description="Its throughput at the objective.")
    message: str = Field(description="Why it was chosen.")


class Promoted(ApiModel):
    """What the stable Service serves."""

    candidate: str = Field(description="Name of the candidate.")
    service: str = Field(description="Name of the stable Service.")
    drafter_path: str = Field(description="Drafter directory inside the volume.")
    promoted_at: Timestamp = Field(description="Time of the promotion.")


class DrafterRunStatus(ApiModel):
    """Observed state of a drafter run."""

    observed_generation: int = Field(default=0, ge=0, description="Generation acted upon.")
    phase: Phase = Field(default=Phase.PENDING, description="Summary for people.")
    step: str | None = Field(default=None, description="Present step.")
    progress: str | None = Field(default=None, description="Steps done of all, such as 5/12.")
    retry: str | None = Field(
        default=None, description="Value of the retry annotation already acted upon."
    )
    work_directory: str | None = Field(
        default=None, description="Directory of the run inside its volume."
    )
    claim_name: str | None = Field(default=None, description="Claim that holds the run's files.")
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Conditions by type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    steps: list[Step] = Field(
        default_factory=list,
        description="The to-do list, in order.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    data: DataStatus | None = Field(default=None, description="Preparation and extraction.")
    training: TrainingStatus | None = Field(default=None, description="Training.")
    export: ExportStatus | None = Field(default=None, description="Export.")
    candidates: list[Candidate] = Field(
        default_factory=list,
        description="Baseline and depths.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    best: Best | None = Field(default=None, description="Winner.")
    promoted: Promoted | None = Field(default=None, description="What is served.")
