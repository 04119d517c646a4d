"""A target that can be prepared for: checked from its small files before torch is imported."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drafter_jobs.contract.auxiliary_layers import CONVENTIONS, default_layers
from drafter_jobs.contract.config_fields import text_config
from drafter_jobs.contract.outcome import ExitCode, Reason
from drafter_jobs.job import JobError
from drafter_jobs.target_config import TargetUnreadableError, read_target_config

WEIGHT_PATTERNS = ("*.safetensors", "*.bin")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda")


def invalid_target(message: str) -> JobError:
    """Return the error of a target that cannot be used."""
    return JobError(ExitCode.INVALID_INPUT, Reason.TARGET_INVALID, message)


def check_target(target: str, revision: str | None) -> dict[str, Any]:
    """Read a target's config and check that a drafter for it can be trained and served.

    Parameters
    ----------
    target
        A directory, or a model id of the Hub.
    revision
        Branch, tag or commit of the Hub's repository.

    Returns
    -------
    dict
        The whole ``config.json``.

    Raises
    ------
    JobError
        ``TargetInvalid``, naming what is missing and the way out.
    """
    directory = Path(target)
    if directory.is_dir() and not any(directory.iterdir()):
        raise invalid_target(f"target {target} is an empty directory: put the model's files there")
    try:
        config = read_target_config(target, revision)
    except TargetUnreadableError as error:
        raise invalid_target(str(error)) from None
    architecture = next(iter(config.get("architectures") or ()), None)
    if architecture not in CONVENTIONS:
        raise invalid_target(
            f"target {target} has the architecture {architecture}, for which SGLang has no"
            f" EAGLE-3 support; supported are {', '.join(sorted(CONVENTIONS))}"
        )
    for field in ("num_hidden_layers", "hidden_size", "vocab_size"):
        value = text_config(config).get(field)
        if not isinstance(value, int) or value < 1:
            raise invalid_target(
                f"config.json of target {target} has {field} {value!r}, not a positive number"
            )
    if directory.is_dir():
        _check_files(directory)
    return config


def _check_files(directory: Path) -> None:
    if not any(True for pattern in WEIGHT_PATTERNS for _ in directory.glob(pattern)):
        raise invalid_target(f"target {directory} has no weights (*.safetensors)")
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise invalid_target(
            f"target {directory} has no tokenizer (one of {', '.join(TOKENIZER_FILES)})"
        )


def resolve_auxiliary_layers(config: Mapping[str, Any], wanted: Sequence[int] | None) -> list[int]:
    """Return the auxiliary layers to use, the defaults when none are wanted.

    Parameters
    ----------
    config
        The target's config.
    wanted
        Ids of layers whose input is taken; empty for the defaults.

    Raises
    ------
    JobError
        ``TargetInvalid`` if the defaults collide on a target of six layers or fewer,
        ``ConfigurationError`` if the layers wanted cannot be served.
    """
    layers = int(text_config(config)["num_hidden_layers"])
    if not wanted:
        chosen = default_layers(layers)
        if chosen[0] >= chosen[1] or chosen[1] >= chosen[2]:
            raise invalid_target(
                f"the target has {layers} layers, on which the default auxiliary layers"
                f" {chosen} collide: name three different ones in hiddenStates.auxiliaryLayers,"
                " or take a target of at least 7 layers"
            )
        return chosen
    chosen = list(wanted)
    if (
        len(chosen) != 3
        or sorted(set(chosen)) != chosen
        or not 0 < chosen[0] <= chosen[-1] < layers
    ):
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"auxiliary layers {chosen} must be three ids in ascending order, each from 1 to"
            f" {layers - 1}, as the target has {layers} layers",
        )
    return chosen


def fingerprint(target: str, revision: str | None, config: Mapping[str, Any]) -> str:
    """Checksum that tells targets apart: config, tokenizer, and sizes of the weight files.

    Weights are not read, since they may be a terabyte.
    """
    directory = Path(target)
    parts = [json.dumps(config, sort_keys=True)]
    if directory.is_dir():
        tokenizer = directory / "tokenizer.json"
        if tokenizer.is_file():
            parts.append(hashlib.sha256(tokenizer.read_bytes()).hexdigest())
        weights = (file for pattern in WEIGHT_PATTERNS for file in directory.glob(pattern))
        parts += sorted(f"{file.name}:{file.stat().st_size}" for file in weights)
    else:
        parts += [target, revision or ""]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load_tokenizer(target: str, revision: str | None, trust_remote_code: bool) -> Any:
    """Load the target's tokenizer.

    Raises
    ------
    JobError
        ``TargetInvalid`` if transformers cannot load it.
    """
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(
            target, revision=revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise invalid_target(
            f"the tokenizer of target {target} cannot be loaded: {_summary(error)}"
        ) from None


def load_model(
    target: str, revision: str | None, trust_remote_code: bool, dtype: str, device: str
) -> Any:
    """Load the target for inference.

    Raises
    ------
    JobError
        ``TargetInvalid`` if transformers cannot load it, ``ConfigurationError`` if the device
        is not there.
    """
    import torch
    import transformers

    if device == "cuda" and not torch.cuda.is_available():
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            "device cuda was asked for, but torch sees no GPU: request one, or use --device cpu",
        )
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            target,
            revision=revision,
            trust_remote_code=trust_remote_code,
            dtype=getattr(torch, dtype),
            # Several GPUs hold a target that one cannot.
            device_map="auto" if device == "cuda" else None,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise invalid_target(f"target {target} cannot be loaded: {_summary(error)}") from None
    return model.eval()


def _summary(error: Exception) -> str:
    """Return the first line of an error of transformers, which may write paragraphs."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def compute_dtype(wanted: str, device: str, stored: str) -> str:
    """Element type to run the target in.

    ``auto`` is float32 on a CPU, where few have fast 16-bit arithmetic, and the type of the
    files on a GPU.
    """
    if wanted != "auto":
        return wanted
    return "float32" if device == "cpu" else stored


@contextlib.contextmanager
def out_of_memory_is_an_outcome(field: str) -> Iterator[None]:
    """Turn running out of GPU memory into the job's outcome.

    Parameters
    ----------
    field
        The setting that lowers the need, for the message.

    Raises
    ------
    JobError
        ``OutOfGpuMemory``.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        summary = str(error).splitlines()[0]
        raise JobError(
            ExitCode.OUT_OF_GPU_MEMORY,
            Reason.OUT_OF_GPU_MEMORY,
            f"{summary}: lower {field}; what was finished is kept",
        ) from None
