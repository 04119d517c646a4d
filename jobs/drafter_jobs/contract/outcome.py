"""How a job tells the operator what became of it.

A job ends with an exit code of :class:`ExitCode` and a JSON termination message,
:class:`TerminationMessage`, of at most 4096 bytes (the limit of the kubelet).
"""

from __future__ import annotations

import bisect
import enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

TERMINATION_MESSAGE_LIMIT_BYTES = 4096
"""Source: Kubernetes, "Determine the Reason for Pod Failure"."""

TERMINATION_LOG_VARIABLE = "DRAFTER_TERMINATION_LOG"
"""Environment variable that names the file of the termination message."""

METRICS_PORT = 9400
"""TCP port on which a job serves its Prometheus metrics."""


class ExitCode(enum.IntEnum):
    """Exit codes of the jobs; an API between a job and the operator."""

    SUCCEEDED = 0
    CONFIGURATION_ERROR = 10
    """The run's settings cannot work: fail the run at once."""
    INVALID_INPUT = 11
    """A prompt file, target, dataset, hidden state or checkpoint is unusable: fail at once."""
    OUT_OF_GPU_MEMORY = 12
    """CUDA or Triton ran out of memory: the operator shortens the packed length and retries."""
    DISK_FULL = 13
    """The volume is full or read-only: fail at once, resume after the user's repair."""
    TRAINING_DIVERGED = 14
    """The loss is not a number, or accuracy stays at zero: fail at once."""
    GATE_NOT_MET = 15
    """The result is below the gate the user set: fail at once."""
    SERVER_FAILED = 16
    """The SGLang server died, restarted or answered too few requests during the benchmark."""
    INTERRUPTED = 143
    """SIGTERM: state was saved, the next start resumes."""


class Reason(enum.StrEnum):
    """Fixed vocabulary of reasons a job gives in its termination message."""

    SUCCEEDED = "Succeeded"
    CONFIGURATION_ERROR = "ConfigurationError"
    TARGET_INVALID = "TargetInvalid"
    PROMPTS_INVALID = "PromptsInvalid"
    VOCABULARY_NOT_FILLED = "VocabularyNotFilled"
    DATASET_INVALID = "DatasetInvalid"
    HIDDEN_STATES_INVALID = "HiddenStatesInvalid"
    CHECKPOINT_INVALID = "CheckpointInvalid"
    CHECKPOINT_NOT_SERVABLE = "CheckpointNotServable"
    OUT_OF_GPU_MEMORY = "OutOfGpuMemory"
    DISK_FULL = "DiskFull"
    VOLUME_READ_ONLY = "VolumeReadOnly"
    VOLUME_TOO_SMALL = "VolumeTooSmall"
    TRAINING_DIVERGED = "TrainingDiverged"
    ACCURACY_BELOW_GATE = "AccuracyBelowGate"
    SERVER_UNREACHABLE = "ServerUnreachable"
    SERVER_RESTARTED = "ServerRestarted"
    REQUESTS_FAILED = "RequestsFailed"
    TEMPLATE_MISMATCH = "TemplateMismatch"
    INTERRUPTED = "Interrupted"
    INTERNAL_ERROR = "InternalError"


class ContractModel(BaseModel):
    """Base of the messages: camelCase in JSON, unknown fields ignored by readers."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class PrepareResult(ContractModel):
    """Counts of the prepare job; ``written + skipped + failed == input``."""

    input: int
    written: int
    skipped: int
    failed: int
    tokens: int = Field(description="Token ids written, prompt and response together.")
    response_tokens: int = Field(description="Token ids with a loss mask of one.")
    held_out: int = Field(description="Prompts kept back for the benchmark.")
    draft_vocabulary_size: int
    vocabulary_coverage: str = Field(
        description="Share of response tokens inside the draft vocabulary, a decimal string."
    )


class ExtractResult(ContractModel):
    """Counts of the extract job; ``written + skipped + failed == input``."""

    input: int
    written: int
    skipped: int = Field(description="Samples found complete from an earlier start.")
    failed: int
    tokens: int
    bytes: int
    auxiliary_layers: list[int] = Field(description="Input-of-layer ids, as speculators counts.")


class TrainResult(ContractModel):
    """Result of the train job, from the validation metrics of the best epoch."""

    epochs: int
    steps: int
    best_epoch: int
    loss: str
    full_accuracy: list[str] = Field(
        description="Per TTT step: share right at this and every earlier step, decimal strings."
    )
    estimated_acceptance_length: str = Field(
        description="1 + sum of full_accuracy; a decimal string."
    )
    checkpoint: str = Field(description="Path of the best checkpoint inside the volume.")
    resumed_from_epoch: int | None = None


class ExportResult(ContractModel):
    """Result of the export job."""

    architecture: str
    tensors: int
    renamed: int
    dropped: list[str]
    added: list[str]
    auxiliary_layers: list[int] = Field(description="Ids as written for the engine; may be empty.")
    parameters: int
    sha256: str = Field(description="Checksum of the exported model.safetensors.")


class LoadResult(ContractModel):
    """One concurrency of a benchmark."""

    concurrency: int
    requested: int
    completed: int
    output_tokens_per_second: str
    ttft_milliseconds_p50: str
    ttft_milliseconds_p95: str
    itl_milliseconds_p50: str
    itl_milliseconds_p95: str
    acceptance_length: str | None = None


class BenchmarkResult(ContractModel):
    """Result of the benchmark job for one candidate."""

    candidate: str
    depth: int = Field(description="Draft tokens; 0 for the baseline.")
    acceptance_length: str | None = Field(
        default=None, description="Output tokens for each verify call, from the server's counters."
    )
    acceptance_rate: str | None = None
    loads: list[LoadResult]
    outputs_compared: int = 0
    outputs_equal: int = 0
    degenerate_outputs: int = 0


class TerminationMessage(ContractModel):
    """The JSON a job leaves in its termination log."""

    outcome: str = Field(description="Succeeded or Failed.")
    reason: Reason
    message: str = Field(description="One or two sentences that name the value and the way out.")
    result: dict[str, Any] | None = None

    def to_bytes(self) -> bytes:
        """Serialise within the kubelet's limit, shortening ``message`` if it must.

        Returns
        -------
        bytes
            UTF-8 JSON of at most :data:`TERMINATION_MESSAGE_LIMIT_BYTES` bytes.

        Raises
        ------
        ValueError
            The result alone is too large: it must be kept shorter where it is made.
        """
        text = self._json()
        if len(text) <= TERMINATION_MESSAGE_LIMIT_BYTES:
            return text
        # JSON escapes some characters: what a shorter message takes must be measured.
        fitting = bisect.bisect_right(
            range(len(self.message)),
            TERMINATION_MESSAGE_LIMIT_BYTES,
            key=lambda kept: len(self._shortened(kept)._json()),
        )
        if fitting == 0:
            raise ValueError(f"the result takes {len(text)} bytes of a termination message")
        return self._shortened(fitting - 1)._json()

    def _json(self) -> bytes:
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()

    def _shortened(self, kept: int) -> TerminationMessage:
        return self.model_copy(update={"message": f"{self.message[:kept]} …"})
