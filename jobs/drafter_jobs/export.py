"""Make a drafter SGLang can serve out of a checkpoint of speculators, or check a directory.

The checkpoint is never modified. The output appears whole, with a report, or not at all.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from drafter_jobs.atomic_files import directory_atomically
from drafter_jobs.contract.config_fields import ENGINE_DTYPES
from drafter_jobs.contract.eagle3_llama import ARCHITECTURE, FLOAT_DTYPES
from drafter_jobs.contract.outcome import ExitCode, ExportResult, Reason
from drafter_jobs.contract.target_facts import TargetFacts, TargetUnsupportedError, target_facts
from drafter_jobs.drafter_check import Severity, check_drafter
from drafter_jobs.export_plan import ExportPlan, non_finite_faults, plan_export
from drafter_jobs.export_report import (
    REPORT_FILE,
    ExportReport,
    LayersReport,
    SourceReport,
    TargetReport,
    TensorReport,
    read_report,
)
from drafter_jobs.job import JobError, Progress, job_parser, log, run_job
from drafter_jobs.speculators_checkpoint import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Checkpoint,
    CheckpointUnreadableError,
    locate_checkpoint,
    open_checkpoint,
    read_json_object,
)
from drafter_jobs.target_config import TargetUnreadableError, read_target_config
from drafter_jobs.tensor_stream import file_checksum, files_checksum, write_tensors

EXTRACTED_LAYERS_FIELD = "auxiliary_layers"
"""Field of ``extract.json`` with the input-of-layer ids of the hidden states."""

LISTED_FAULTS = 12
"""Faults named in the termination message; all go to standard error."""


def export_drafter(
    checkpoint_path: Path,
    output: Path,
    target: str,
    *,
    target_revision: str | None = None,
    extract_record: Path | None = None,
    dtype: str = "bfloat16",
    replace: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Export a checkpoint.

    A second export of the same checkpoint for the same target finds its work done and changes
    nothing.

    Parameters
    ----------
    checkpoint_path
        A checkpoint, or the trainer's directory of checkpoints.
    output
        Directory to create; it may exist if it is empty or holds the same export.
    target
        Directory or Hub id of the target.
    target_revision
        Revision on the Hub.
    extract_record
        ``extract.json`` of the hidden states the drafter was trained on.
    dtype
        Type in which the engine shall compute. The tensors keep theirs; the engine casts them.
    replace
        Replace an earlier export of another checkpoint.
    progress
        Told how many tensors are written.

    Raises
    ------
    JobError
        With reason ``CheckpointNotServable`` and everything that is missing, unexpected,
        misshapen or beyond repair; or with the reason that an input or the output is unusable.
    """
    checkpoint = _open(checkpoint_path)
    facts = _facts(target, target_revision)
    plan = plan_export(checkpoint, facts, dtype, _extracted_layers(extract_record))
    # The data are read only if the headers hold what they should.
    faults = plan.faults or non_finite_faults(plan.tensors)
    if faults:
        raise _not_servable(checkpoint.path, faults)
    config = json.dumps(plan.translation.config, indent=2) + "\n"
    source = SourceReport(
        path=str(checkpoint.path),
        files=[file.name for file in checkpoint.files],
        sha256=files_checksum([checkpoint.path / CONFIG_FILE, *checkpoint.files]),
    )
    decoder = checkpoint.config["transformer_layer_config"]
    added = sorted(plan.translation.config.keys() - checkpoint.config.keys() - decoder.keys())
    report = _report(plan, source, facts, target, added)
    earlier = _earlier_export(output, report, config, replace)
    if earlier is not None:
        return earlier
    if progress is not None:
        progress.expect(len(plan.tensors))
    with directory_atomically(output) as directory:
        weights_checksum = write_tensors(
            directory / WEIGHTS_FILE,
            plan.tensors,
            {"format": "pt"},
            progress.advance if progress is not None else None,
        )
        (directory / CONFIG_FILE).write_text(config, encoding="utf-8")
        report = report.model_copy(
            update={
                "sha256": {
                    WEIGHTS_FILE: weights_checksum,
                    CONFIG_FILE: file_checksum(directory / CONFIG_FILE),
                }
            }
        )
        text = report.model_dump_json(by_alias=True, indent=2) + "\n"
        (directory / REPORT_FILE).write_text(text, encoding="utf-8")
    return report


def _open(path: Path) -> Checkpoint:
    try:
        return open_checkpoint(locate_checkpoint(path))
    except CheckpointUnreadableError as error:
        raise JobError(ExitCode.INVALID_INPUT, Reason.CHECKPOINT_INVALID, str(error)) from None


def _facts(target: str, revision: str | None) -> TargetFacts:
    try:
        return target_facts(read_target_config(target, revision))
    except (TargetUnreadableError, TargetUnsupportedError) as error:
        raise JobError(ExitCode.INVALID_INPUT, Reason.TARGET_INVALID, str(error)) from None


def _extracted_layers(record: Path | None) -> list[int] | None:
    if record is None:
        return None
    try:
        layers = read_json_object(record)[EXTRACTED_LAYERS_FIELD]
        return [int(layer) for layer in layers]
    except CheckpointUnreadableError as error:
        problem = str(error)
    except (KeyError, TypeError, ValueError):
        problem = f"{record} has no list {EXTRACTED_LAYERS_FIELD}"
    raise JobError(ExitCode.INVALID_INPUT, Reason.HIDDEN_STATES_INVALID, problem)


def _not_servable(path: Path, faults: Sequence[str]) -> JobError:
    for fault in faults:
        log("not servable", fault=fault)
    listed = "; ".join(faults[:LISTED_FAULTS])
    more = f"; and {len(faults) - LISTED_FAULTS} more" if len(faults) > LISTED_FAULTS else ""
    return JobError(
        ExitCode.INVALID_INPUT,
        Reason.CHECKPOINT_NOT_SERVABLE,
        f"SGLang could not serve {path}, so nothing was written: {listed}{more}",
    )


def _report(
    plan: ExportPlan, source: SourceReport, facts: TargetFacts, target: str, added: list[str]
) -> ExportReport:
    weights = [tensor for tensor in plan.tensors.values() if tensor.dtype in FLOAT_DTYPES]
    return ExportReport(
        source=source,
        target=TargetReport(
            name=target,
            architecture=facts.architecture,
            layers=facts.layers,
            hidden_size=facts.hidden_size,
            vocabulary_size=facts.vocabulary_size,
            context_length=facts.context_length,
        ),
        auxiliary_layers=LayersReport(
            trained=plan.translation.trained_layers,
            written=plan.translation.written_layers,
            convention=facts.convention.value,
        ),
        renamed=plan.renamed,
        dropped=plan.dropped,
        added=added,
        tensors=[
            TensorReport(name=name, dtype=tensor.dtype, shape=list(tensor.shape))
            for name, tensor in sorted(plan.tensors.items())
        ],
        parameters=sum(math.prod(tensor.shape) for tensor in weights),
        notes=plan.translation.notes,
        sha256={},
    )


def _earlier_export(
    output: Path, planned: ExportReport, config: str, replace: bool
) -> ExportReport | None:
    """Return the report of an export already done; ``None`` if the output is to be written."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    found = read_report(output) if output.is_dir() else None
    if found is None:
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"{output} exists and is not the output of an export; give another directory",
        )
    intact = all(
        (output / name).is_file() and file_checksum(output / name) == checksum
        for name, checksum in found.sha256.items()
    )
    same = found.same_work(planned) and (output / CONFIG_FILE).read_bytes() == config.encode()
    if intact and same:
        return found
    if not replace:
        state = "was changed since it was exported" if same else "is of other input or settings"
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"{output} holds an export of {found.source.path} that {state}; a server may be "
            "using it: give another directory, or --replace",
        )
    return None


def export_result(report: ExportReport) -> ExportResult:
    """Shorten a report to what the operator needs."""
    return ExportResult(
        architecture=ARCHITECTURE,
        tensors=len(report.tensors),
        renamed=len(report.renamed),
        dropped=sorted(report.dropped),
        added=report.added,
        auxiliary_layers=report.auxiliary_layers.written,
        parameters=report.parameters,
        sha256=report.sha256[WEIGHTS_FILE],
    )


def check_directory(
    directory: Path, target: str | None, target_revision: str | None = None
) -> bool:
    """Print what SGLang would make of a drafter's directory.

    Returns
    -------
    bool
        Whether it can be served.

    Raises
    ------
    JobError
        If the directory or the target cannot be read.
    """
    try:
        checkpoint = open_checkpoint(directory)
    except CheckpointUnreadableError as error:
        raise JobError(ExitCode.INVALID_INPUT, Reason.CHECKPOINT_INVALID, str(error)) from None
    facts = _facts(target, target_revision) if target is not None else None
    findings = check_drafter(checkpoint, facts)
    for finding in findings:
        print(finding)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    if errors:
        print(f"{directory}: SGLang cannot serve this drafter, {errors} errors")
        return False
    against = "" if facts else " (give --target to compare it with its target)"
    print(f"{directory}: {len(checkpoint.tensors)} tensors, fit for SGLang{against}")
    return True


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser("drafter-export", __doc__ or "")
    parser.add_argument(
        "checkpoint", type=Path, nargs="?", help="checkpoint, or the trainer's directory of them"
    )
    parser.add_argument("output", type=Path, nargs="?", help="directory to create")
    parser.add_argument(
        "--check", type=Path, metavar="DIR", help="only tell what SGLang would make of DIR"
    )
    parser.add_argument("--target", help="directory or Hugging Face id of the target model")
    parser.add_argument("--target-revision", help="revision on the Hub")
    parser.add_argument(
        "--extract-record", type=Path, help="extract.json of the hidden states trained on"
    )
    parser.add_argument(
        "--dtype",
        choices=ENGINE_DTYPES,
        default="bfloat16",
        help="type the engine computes in; tensors keep theirs (default: bfloat16)",
    )
    parser.add_argument(
        "--delete-hidden-states",
        type=Path,
        metavar="DIR",
        help="once the drafter is exported, remove the hidden states it was trained on",
    )
    parser.add_argument(
        "--replace",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="replace an earlier export of other input",
    )
    return parser


def _run(arguments: argparse.Namespace) -> ExportResult | None:
    if arguments.check is not None:
        if arguments.checkpoint is not None:
            raise _usage_error("--check takes no CHECKPOINT and OUT besides its DIR")
        if not check_directory(arguments.check, arguments.target, arguments.target_revision):
            raise JobError(
                ExitCode.INVALID_INPUT,
                Reason.CHECKPOINT_NOT_SERVABLE,
                f"{arguments.check} has errors, listed above",
            )
        return None
    if arguments.output is None or arguments.target is None:
        raise _usage_error("give CHECKPOINT OUT --target MODEL, or --check DIR")
    progress = Progress("steps")
    report = export_drafter(
        arguments.checkpoint,
        arguments.output,
        arguments.target,
        target_revision=arguments.target_revision,
        extract_record=arguments.extract_record,
        dtype=arguments.dtype,
        replace=arguments.replace,
        progress=progress,
    )
    for note in report.notes:
        log("note", text=note)
    if arguments.delete_hidden_states is not None:
        _delete_hidden_states(arguments.delete_hidden_states)
    return export_result(report)


def _delete_hidden_states(directory: Path) -> None:
    """Remove the files of a directory of hidden states and nothing else; its record stays."""
    removed = [file for file in directory.glob("hs_*.safetensors") if file.is_file()]
    for file in removed:
        file.unlink()
    log("hidden states removed", directory=directory, files=len(removed))


def _usage_error(message: str) -> JobError:
    return JobError(ExitCode.CONFIGURATION_ERROR, Reason.CONFIGURATION_ERROR, message)


def main() -> None:
    """Run ``drafter-export``."""
    sys.exit(run_job(build_parser(), _run))


if __name__ == "__main__":
    main()
