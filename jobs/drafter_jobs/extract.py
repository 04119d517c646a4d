"""Compute the target's hidden states that a drafter is trained on."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafter_jobs import arguments as argument_types
from drafter_jobs.atomic_files import write_atomically, write_json
from drafter_jobs.contract import metrics
from drafter_jobs.contract.config_fields import text_config
from drafter_jobs.contract.outcome import ExitCode, ExtractResult, Reason
from drafter_jobs.hidden_state_files import (
    HIDDEN_STATES,
    TOKEN_IDS,
    StateShape,
    find_damage,
    human_bytes,
    remove_unfinished,
    state_path,
)
from drafter_jobs.job import REGISTRY, JobError, Progress, job_parser, log, run_job
from drafter_jobs.length_batches import batches_by_tokens
from drafter_jobs.target_model import (
    DEVICES,
    DTYPES,
    check_target,
    compute_dtype,
    fingerprint,
    load_model,
    out_of_memory_is_an_outcome,
    resolve_auxiliary_layers,
)

RECORD = "extract.json"
IDENTITY = "identity.json"
DEFAULT_HEADROOM_BYTES = 1 << 30
REPORTED_ROWS = 20

_SAMPLES = metrics.EXTRACT_SAMPLES.counter(REGISTRY)
_TOKENS = metrics.EXTRACT_TOKENS.counter(REGISTRY)
_BYTES = metrics.EXTRACT_BYTES.counter(REGISTRY)


@dataclass(frozen=True)
class Work:
    """What is left to do.

    Attributes
    ----------
    samples
        Token ids of each row of the data set.
    finished
        Rows whose files are whole.
    missing
        Rows to compute.
    """

    samples: Sequence[Sequence[int]]
    finished: Sequence[int]
    missing: Sequence[int]


def check_volume(needed: int, free: int, headroom: int, where: str) -> None:
    """Check that the files to be written fit the volume.

    Parameters
    ----------
    needed, free, headroom
        Bytes to write, bytes free, and bytes to leave for the later steps.
    where
        The volume, for the error.

    Raises
    ------
    JobError
        ``VolumeTooSmall`` with the numbers.
    """
    if needed + headroom > free:
        raise JobError(
            ExitCode.DISK_FULL,
            Reason.VOLUME_TOO_SMALL,
            f"hidden states need {human_bytes(needed)} and {human_bytes(headroom)} must stay free,"
            f" but {where} has {human_bytes(free)} free: enlarge the volume, or lower data.limit"
            " or data.maximumLength",
        )


def survey(samples: Sequence[Sequence[int]], directory: Path, shape: StateShape) -> Work:
    """Verify the files that are there, and say which rows are to be computed.

    A damaged file is reported and counts as missing.
    """
    finished, missing = [], []
    for row, token_ids in enumerate(samples):
        path = state_path(directory, row)
        if not path.exists():
            missing.append(row)
            continue
        damage = find_damage(path, token_ids, shape)
        if damage is None:
            finished.append(row)
        else:
            log("damaged file is made anew", row=row, damage=damage)
            missing.append(row)
    return Work(samples, finished, missing)


def extract(arguments: argparse.Namespace) -> ExtractResult:
    """Extract hidden states; the body of ``drafter-extract``.

    Raises
    ------
    JobError
        If target, data set or settings cannot be used, the volume is too small, or hidden
        states are not finite.
    """
    output: Path = arguments.output
    config = check_target(arguments.target, arguments.target_revision)
    layers = resolve_auxiliary_layers(config, arguments.auxiliary_layers)
    text = text_config(config)
    shape = StateShape(len(layers) + 1, int(text["hidden_size"]), arguments.dtype)
    samples = read_samples(arguments.dataset, int(text["vocab_size"]))
    computed_in = compute_dtype(arguments.compute_dtype, arguments.device, arguments.dtype)
    identity = {
        "target_fingerprint": fingerprint(arguments.target, arguments.target_revision, config),
        "auxiliary_layers": layers,
        "dtype": arguments.dtype,
        "compute_dtype": computed_in,
    }
    _begin(output, identity)
    work = survey(samples, output, shape)
    check_volume(
        shape.file_bytes([len(samples[row]) for row in work.missing]),
        shutil.disk_usage(output).free,
        arguments.volume_headroom_bytes,
        str(output),
    )
    progress = Progress("samples")
    progress.expect(len(samples))
    progress.reach(len(work.finished))
    _SAMPLES.labels("skipped").inc(len(work.finished))
    log("extracting", missing=len(work.missing), finished=len(work.finished), layers=layers)
    failed = _compute(arguments, work, layers, computed_in, progress) if work.missing else []
    if failed:
        raise JobError(
            ExitCode.INVALID_INPUT,
            Reason.HIDDEN_STATES_INVALID,
            f"{len(failed)} of {len(samples)} samples give hidden states that are not finite"
            f" (rows {', '.join(map(str, failed[:REPORTED_ROWS]))}): try hiddenStates.dtype"
            " bfloat16 or float32, or take these prompts out; the other samples are kept",
        )
    result = ExtractResult(
        input=len(samples),
        written=len(work.missing),
        skipped=len(work.finished),
        failed=0,
        tokens=sum(map(len, samples)),
        bytes=sum(state_path(output, row).stat().st_size for row in range(len(samples))),
        auxiliary_layers=layers,
    )
    write_json(
        output / RECORD,
        {
            **identity,
            "target": arguments.target,
            "target_revision": arguments.target_revision,
            "hidden_size": shape.hidden_size,
            "result": result.model_dump(mode="json"),
        },
    )
    return result


def read_samples(dataset: Path, vocabulary_size: int) -> list[list[int]]:
    """Read the token ids of a data set of ``drafter-prepare``.

    Raises
    ------
    JobError
        ``DatasetInvalid`` if it cannot be read, is empty, or holds ids the target lacks.
    """
    import datasets

    try:
        table = datasets.load_from_disk(str(dataset)).with_format(None)
        samples: list[list[int]] = list(table["input_ids"])
    except (OSError, ValueError, KeyError) as error:
        summary = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _invalid_dataset(f"data set {dataset} cannot be read: {summary}") from None
    if not samples or not all(samples):
        raise _invalid_dataset(f"data set {dataset} has no rows, or rows without tokens")
    greatest = max(max(sample) for sample in samples)
    if greatest >= vocabulary_size:
        raise _invalid_dataset(
            f"data set {dataset} holds token id {greatest}, the target has {vocabulary_size}: it"
            " was prepared for another target"
        )
    return samples


def _invalid_dataset(message: str) -> JobError:
    return JobError(
        ExitCode.INVALID_INPUT, Reason.DATASET_INVALID, f"{message}; run drafter-prepare again"
    )


def _begin(output: Path, identity: Mapping[str, Any]) -> None:
    """Create the directory, or check that what it holds was made with the same settings."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / IDENTITY
    if not path.is_file():
        write_json(path, identity)
        return
    found = json.loads(path.read_bytes())
    differing = [
        f"{name} {found.get(name)} there, {wanted} now"
        for name, wanted in identity.items()
        if found.get(name) != wanted
    ]
    if differing:
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.HIDDEN_STATES_INVALID,
            f"{output} was extracted with other settings ({'; '.join(differing)}): remove it, or"
            " give another output",
        )
    removed = remove_unfinished(output)
    if removed:
        log("removed half-written files", count=removed)


def _compute(
    arguments: argparse.Namespace,
    work: Work,
    layers: Sequence[int],
    computed_in: str,
    progress: Progress,
) -> list[int]:
    """Write the files of the missing rows, and return the rows that failed."""
    import safetensors.torch
    import torch

    from drafter_jobs.layer_capture import LayerCapture, LayersNotFoundError

    model = load_model(
        arguments.target,
        arguments.target_revision,
        arguments.trust_remote_code,
        computed_in,
        arguments.device,
    )
    try:
        capture = LayerCapture(model, layers)
    except LayersNotFoundError as error:
        raise JobError(
            ExitCode.INVALID_INPUT, Reason.TARGET_INVALID, f"target {arguments.target}: {error}"
        ) from None
    dtype = getattr(torch, arguments.dtype)
    failed: list[int] = []
    passed = 0
    lengths = [len(work.samples[row]) for row in work.missing]
    for batch in batches_by_tokens(lengths, arguments.batch_tokens):
        rows = [work.missing[index] for index in batch]
        with out_of_memory_is_an_outcome("hiddenStates.batchTokens"):
            states = capture.run([work.samples[row] for row in rows])
        for row, state in zip(rows, states, strict=True):
            stored = state.to(dtype).contiguous()
            progress.advance()
            if not bool(torch.isfinite(stored).all()):
                failed.append(row)
                _SAMPLES.labels("failed").inc()
                continue
            ids = torch.tensor(work.samples[row], dtype=torch.int64)
            content = safetensors.torch.save({TOKEN_IDS: ids, HIDDEN_STATES: stored})
            write_atomically(state_path(arguments.output, row), content)
            _SAMPLES.labels("written").inc()
            _TOKENS.inc(len(ids))
            _BYTES.inc(len(content))
        passed += len(rows)
        log("batch extracted", samples=len(rows), done=passed, of=len(work.missing))
    return sorted(failed)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser("drafter-extract", __doc__ or "")
    flag = parser.add_argument
    flag("--target", required=True, help="directory or Hub id of the target")
    flag("--target-revision", help="branch, tag or commit on the Hub")
    flag("--trust-remote-code", action=argparse.BooleanOptionalAction, default=False)
    flag("--dataset", type=Path, required=True, help="output of drafter-prepare")
    flag("--output", type=Path, required=True, help="directory of the hidden states")
    flag(
        "--auxiliary-layers",
        type=argument_types.layer_ids,
        default=[],
        help="three input-of-layer ids, such as 2,15,27; empty for the usual ones",
    )
    flag("--dtype", choices=DTYPES, default="bfloat16", help="element type of the files")
    flag(
        "--compute-dtype",
        choices=("auto", *DTYPES),
        default="auto",
        help="element type the target runs in; auto: float32 on a CPU, else that of the files",
    )
    flag(
        "--batch-tokens",
        type=argument_types.positive,
        default=4096,
        help="tokens of a forward pass, padding included",
    )
    flag("--device", choices=DEVICES, default="cpu")
    flag(
        "--volume-headroom-bytes",
        type=argument_types.not_negative,
        default=DEFAULT_HEADROOM_BYTES,
        help="bytes to leave free for the steps that follow",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of :func:`extract`."""
    sys.exit(run_job(build_parser(), extract, arguments))


if __name__ == "__main__":
    main()
