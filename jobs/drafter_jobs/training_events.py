"""What the lines of a training process mean.

Events are JSON behind a prefix; everything else is the log of speculators, torch or Triton.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from drafter_jobs.contract.outcome import ExitCode, Reason
from drafter_jobs.job import JobError

DEVICE_VARIABLE = "DRAFTER_TRAINING_DEVICE"
"""Tells the training processes whether they run on ``cpu`` or ``cuda``."""

_PREFIX = "DRAFTER-EVENT "

_TRITON_OUT_OF_RESOURCE = re.compile(
    r"out of resources?: (?P<what>[\w ]+), Required: (?P<required>\d+), "
    r"Hardware limit: (?P<limit>\d+)",
    re.IGNORECASE,
)
"""Text of ``triton.runtime.errors.OutOfResources``."""

_CUDA_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA error: out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure.*out of memory"
)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_READ_ONLY = re.compile(r"Read-only file system")
_HIDDEN_STATES = re.compile(
    r"(?P<why>(Failed to load hidden states|[Hh]idden.states? (unavailable|not found|missing)"
    r"|SafetensorError|Token ids? mismatch|non-finite).*)"
)
_TOKENS_DIFFER = re.compile(
    r"Loaded token ids .{0,4000}? for index (?P<index>\d+) don't", re.DOTALL
)
_KILLED = re.compile(r"Signal 9 \(SIGKILL\) received by PID|exitcode\s*: -9\b")

TOKENS_DIFFER_WARNING = "Loaded token ids"
"""How speculators' warning begins that a sample's hidden states belong to other tokens."""


class TrainingProcessError(RuntimeError):
    """What a training process itself finds wrong; its last line names the class."""


class VocabularyMapChangedError(TrainingProcessError):
    """A resume would put the trained head under another vocabulary map."""


class NonFiniteWeightsError(TrainingProcessError):
    """The weights are no longer numbers."""


class SplitEmptyError(TrainingProcessError):
    """A split gives a process no batch."""


_CHANGED_MAP = re.compile(rf"{VocabularyMapChangedError.__name__}: (?P<why>.*)")
_NON_FINITE_WEIGHTS = re.compile(rf"{NonFiniteWeightsError.__name__}: (?P<why>.*)")
_EMPTY_SPLIT = re.compile(r"(?P<why>(train|val) split (is empty|has fewer samples).*)")


def event_line(event: Mapping[str, Any]) -> str:
    """Return the line that carries an event."""
    return _PREFIX + json.dumps(event, default=float)


def parse_event(line: str) -> dict[str, Any] | None:
    """Return the event a line carries, or None for a line of the log."""
    _, found, text = line.partition(_PREFIX)
    if not found:
        return None
    try:
        event = json.loads(text)
    except json.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None


def full_accuracies(metrics: Mapping[str, float], suffix: str = "") -> list[float]:
    """Return the accuracy of each TTT step: right at it and at every earlier one.

    Parameters
    ----------
    metrics
        Metrics as speculators names them: ``full_acc_0``, ``full_acc_1``, …
    suffix
        ``_epoch`` for the metrics of a validation.
    """
    accuracies: list[float] = []
    while (name := f"full_acc_{len(accuracies)}{suffix}") in metrics:
        accuracies.append(float(metrics[name]))
    return accuracies


def divergence(event: Mapping[str, Any]) -> JobError | None:
    """Return why training has to stop, if an event shows that it has diverged."""
    train = event.get("train")
    if train and "loss" in train and not math.isfinite(train["loss"]):
        return JobError(
            ExitCode.TRAINING_DIVERGED,
            Reason.TRAINING_DIVERGED,
            f"the loss became {train['loss']} at epoch {event.get('epoch')}, step"
            f" {event.get('global_step')}: lower training.learningRate"
            " or look for damaged samples",
        )
    validation = event.get("val")
    if validation:
        loss = validation.get("loss_epoch")
        if loss is not None and not math.isfinite(loss):
            return JobError(
                ExitCode.TRAINING_DIVERGED,
                Reason.TRAINING_DIVERGED,
                f"the validation loss became {loss} after epoch {event.get('epoch')}: lower"
                " training.learningRate or look for damaged samples",
            )
        accuracies = full_accuracies(validation, "_epoch")
        if accuracies and accuracies[0] == 0.0:
            return JobError(
                ExitCode.TRAINING_DIVERGED,
                Reason.TRAINING_DIVERGED,
                f"the first-step accuracy is 0 after epoch {event.get('epoch')}: the hidden"
                " states, the auxiliary layers or the vocabulary map do not belong together",
            )
    return None


def failure_of_log(lines: Iterable[str], packed_sequence_length: int) -> JobError | None:
    """Recognise why a training process died from the end of its log.

    Parameters
    ----------
    lines
        Last lines of standard output and standard error.
    packed_sequence_length
        Tokens of a packed batch, to be named after an out-of-memory.
    """
    text = "\n".join(lines)
    if found := _TRITON_OUT_OF_RESOURCE.search(text):
        detail = (
            f"Triton needs {found['required']} of {found['what']} where the GPU has"
            f" {found['limit']}"
        )
    elif _CUDA_OUT_OF_MEMORY.search(text):
        detail = "CUDA ran out of memory"
    else:
        return _failure_of_training(text) or _failure_of_files(text)
    return JobError(
        ExitCode.OUT_OF_GPU_MEMORY,
        Reason.OUT_OF_GPU_MEMORY,
        f"{detail} with batches packed to {packed_sequence_length} tokens: lower"
        " training.packedSequenceLength",
    )


def _failure_of_training(text: str) -> JobError | None:
    if found := _CHANGED_MAP.search(text):
        return JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"{found['why'].strip()}: a resumed training cannot change it; give another directory"
            " or the data of before",
        )
    if found := _NON_FINITE_WEIGHTS.search(text):
        return JobError(
            ExitCode.TRAINING_DIVERGED,
            Reason.TRAINING_DIVERGED,
            f"the {found['why'].strip()}: lower training.learningRate or look for damaged samples",
        )
    if found := _EMPTY_SPLIT.search(text):
        return JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"{found['why'].strip()[:300]}: give more prompts, or change data.validationShare",
        )
    return None


def _failure_of_files(text: str) -> JobError | None:
    if _DISK_FULL.search(text):
        return JobError(
            ExitCode.DISK_FULL,
            Reason.DISK_FULL,
            "the volume is full: enlarge it, then retry; finished epochs are kept",
        )
    if _READ_ONLY.search(text):
        return JobError(
            ExitCode.DISK_FULL, Reason.VOLUME_READ_ONLY, "the volume is read-only for the trainer"
        )
    if found := _TOKENS_DIFFER.search(text):
        return JobError(
            ExitCode.INVALID_INPUT,
            Reason.HIDDEN_STATES_INVALID,
            f"the hidden states of sample {found['index']} belong to other tokens: retry Extract,"
            " which redoes only what is damaged",
        )
    if found := _HIDDEN_STATES.search(text):
        return JobError(
            ExitCode.INVALID_INPUT,
            Reason.HIDDEN_STATES_INVALID,
            f"{found['why'].strip()[:300]}: retry Extract, which redoes only what is damaged",
        )
    return None


def was_killed(lines: Iterable[str]) -> bool:
    """Whether torchrun reports that a training process got SIGKILL."""
    return any(_KILLED.search(line) for line in lines)
