"""Train an EAGLE-3 drafter with speculators under torchrun."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafter_jobs.arguments import not_negative, open_share, positive, positive_number, share
from drafter_jobs.atomic_files import write_atomically
from drafter_jobs.checkpoints import (
    Checkpoint,
    best_checkpoint,
    complete_checkpoints,
    point_to_best,
    remove_incomplete,
)
from drafter_jobs.contract.outcome import ExitCode, Reason, TrainResult
from drafter_jobs.job import (
    INTERNAL_ERROR_EXIT_CODE,
    InterruptedJobError,
    JobError,
    job_parser,
    log,
    run_job,
)
from drafter_jobs.target_model import check_target
from drafter_jobs.trainer_process import SAVE_TIMEOUT_SECONDS, TrainerProcess, rendezvous
from drafter_jobs.training_events import (
    DEVICE_VARIABLE,
    TOKENS_DIFFER_WARNING,
    divergence,
    failure_of_log,
    full_accuracies,
    was_killed,
)
from drafter_jobs.training_flags import TrainingSettings, training_flags
from drafter_jobs.training_metrics import TrainingMetrics, log_milestone

IDENTITY_FILE = "training.json"
EXTRACT_RECORD = "extract.json"
_ERROR_LINE = re.compile(
    r"(\[rank\d+\]: ?)?(?!torch\.distributed\.elastic)[\w.]*(Error|Exception)\b"
)
"""The last line of a traceback, but of torchrun's own."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser("drafter-train", __doc__ or "")
    parser.add_argument("--target", required=True, help="directory or hub id of the target")
    parser.add_argument("--target-revision", help="revision on the hub")
    parser.add_argument("--trust-remote-code", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--dataset", type=Path, required=True, help="output of drafter-prepare")
    parser.add_argument(
        "--hidden-states", type=Path, required=True, help="output of drafter-extract"
    )
    parser.add_argument("--output", type=Path, required=True, help="directory of checkpoints")
    parser.add_argument("--epochs", type=positive, default=5)
    parser.add_argument("--ttt-steps", type=positive, default=5)
    parser.add_argument("--packed-sequence-length", type=positive, default=8192)
    parser.add_argument("--learning-rate", type=positive_number, default="1e-4")
    parser.add_argument("--draft-vocabulary-size", type=positive, default=32_000)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument(
        "--train-share",
        type=open_share,
        default="0.9",
        help="share trained on; the rest validates",
    )
    parser.add_argument("--nodes", type=positive, default=1)
    parser.add_argument(
        "--node-rank", type=not_negative, default=int(os.environ.get("JOB_COMPLETION_INDEX", "0"))
    )
    parser.add_argument("--processes-per-node", type=positive, default=1)
    parser.add_argument("--rendezvous", help="HOST:PORT of node 0, for several nodes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--minimum-first-step-accuracy", type=share, default=0.0)
    parser.add_argument("--seed", type=not_negative, default=0)
    return parser


def _recorded_layers(hidden_states: Path) -> list[int]:
    record = hidden_states / EXTRACT_RECORD
    try:
        layers = [int(layer) for layer in json.loads(record.read_text())["auxiliary_layers"]]
    except FileNotFoundError:
        problem = f"{record} is missing: run Extract to its end first"
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{record} has no readable list auxiliary_layers ({error})"
    else:
        return layers
    raise JobError(ExitCode.INVALID_INPUT, Reason.HIDDEN_STATES_INVALID, problem)


def _identity(parsed: argparse.Namespace, layers: list[int]) -> dict[str, Any]:
    """Return what a resumed training must share with its beginning.

    The vocabulary map follows from the token frequencies and the size of the draft vocabulary:
    a map that changes under a trained head makes every draft token a wrong one.
    """
    frequencies = parsed.dataset / "token_freq.pt"
    try:
        checksum = hashlib.sha256(frequencies.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise JobError(
            ExitCode.INVALID_INPUT,
            Reason.DATASET_INVALID,
            f"{frequencies} is missing, without which the trainer ignores"
            " training.draftVocabularySize: run Prepare to its end first",
        ) from None
    return {
        "target": str(parsed.target),
        "auxiliary_layers": layers,
        "draft_vocabulary_size": parsed.draft_vocabulary_size,
        "token_frequencies_sha256": checksum,
        "ttt_steps": parsed.ttt_steps,
        "epochs": parsed.epochs,
        # The trainer restores optimizer and schedule from the checkpoint, and passes over new ones.
        "optimizer": parsed.optimizer,
        "learning_rate": parsed.learning_rate,
        # Both decide which samples validate: another choice would validate on trained ones.
        "train_share": parsed.train_share,
        "seed": parsed.seed,
    }


def _keep_identity(output: Path, identity: dict[str, Any]) -> None:
    file = output / IDENTITY_FILE
    if file.exists():
        try:
            before = json.loads(file.read_text())
        except ValueError as error:
            raise JobError(
                ExitCode.INVALID_INPUT,
                Reason.CHECKPOINT_INVALID,
                f"{file} is not JSON ({error}): restore it, or give another directory",
            ) from None
        changed = [key for key, value in identity.items() if before.get(key) != value]
        if changed:
            differences = "; ".join(
                f"{key} was {before.get(key)}, is {identity[key]}" for key in changed
            )
            raise JobError(
                ExitCode.CONFIGURATION_ERROR,
                Reason.CONFIGURATION_ERROR,
                f"{output} holds a training of other settings ({differences}): a resumed training"
                " cannot change them; give another directory",
            )
    else:
        write_atomically(file, json.dumps(identity, indent=2).encode())


def train(parsed: argparse.Namespace) -> TrainResult:
    """Train, or go on with a training that was stopped.

    Parameters
    ----------
    parsed
        The command line of ``drafter-train``.

    Raises
    ------
    JobError
        With the reason why the training cannot succeed, or should be tried in another way.
    InterruptedJobError
        SIGTERM came; the state is saved.
    """
    layers = _recorded_layers(parsed.hidden_states)
    identity = _identity(parsed, layers)
    output: Path = parsed.output
    output.mkdir(parents=True, exist_ok=True)
    first_node = parsed.node_rank == 0
    if first_node:
        _keep_identity(output, identity)
        for leftover in remove_incomplete(output):
            log("removed an incomplete checkpoint", path=leftover)
    before = complete_checkpoints(output)
    resumed = before[-1].epoch if before else None
    metrics = TrainingMetrics(output)
    if not _is_finished(before, parsed.epochs):
        _run_trainer(parsed, layers, metrics)
    after = complete_checkpoints(output)
    best = best_checkpoint(output)
    if best is None or best.validation is None or not _is_finished(after, parsed.epochs):
        raise JobError(
            ExitCode.INVALID_INPUT,
            Reason.CHECKPOINT_INVALID,
            f"the trainer ended without a validated checkpoint of epoch {parsed.epochs - 1}"
            f" in {output}; it has {[checkpoint.path.name for checkpoint in after]}",
        )
    if first_node:
        point_to_best(output, best)
    metrics.finish(best, parsed.epochs, after[-1].global_step)
    if (reason := divergence({"val": best.validation, "epoch": best.epoch})) is not None:
        raise reason
    result = _result(best, parsed.epochs, resumed)
    accuracy = full_accuracies(best.validation, "_epoch")
    if accuracy and accuracy[0] < parsed.minimum_first_step_accuracy:
        raise JobError(
            ExitCode.GATE_NOT_MET,
            Reason.ACCURACY_BELOW_GATE,
            f"the first-step accuracy is {accuracy[0]:.4f}, below"
            f" training.minimumFirstStepAccuracy {parsed.minimum_first_step_accuracy}: train"
            " longer or on more data, or lower the gate",
        )
    return result


def _is_finished(checkpoints: list[Checkpoint], epochs: int) -> bool:
    last = checkpoints[-1] if checkpoints else None
    return (
        last is not None
        and last.epoch == epochs - 1
        and last.local_step == 0
        and last.validation is not None
    )


def _local_target(target: str, revision: str | None) -> str:
    """Return the directory of a target; of one on a hub, the snapshot that Prepare fetched."""
    check_target(target, revision)
    if Path(target).is_dir():
        return target
    from huggingface_hub import snapshot_download

    return str(snapshot_download(target, revision=revision))


def _run_trainer(parsed: argparse.Namespace, layers: list[int], metrics: TrainingMetrics) -> None:
    settings = TrainingSettings(
        target=_local_target(parsed.target, parsed.target_revision),
        dataset=str(parsed.dataset),
        hidden_states=str(parsed.hidden_states),
        output=str(parsed.output),
        auxiliary_layers=layers,
        epochs=parsed.epochs,
        ttt_steps=parsed.ttt_steps,
        packed_sequence_length=parsed.packed_sequence_length,
        learning_rate=parsed.learning_rate,
        draft_vocabulary_size=parsed.draft_vocabulary_size,
        optimizer=parsed.optimizer,
        seed=parsed.seed,
        train_share=parsed.train_share,
        on_cpu=parsed.device == "cpu",
        trust_remote_code=parsed.trust_remote_code,
    )
    command = [
        *(sys.executable, "-m", "drafter_jobs.torchrun"),
        *rendezvous(parsed.nodes, parsed.node_rank, parsed.processes_per_node, parsed.rendezvous),
        *("--shutdown-timeout", str(SAVE_TIMEOUT_SECONDS)),
        *("-m", "drafter_jobs.speculators_worker"),
        *training_flags(settings),
    ]
    environment = os.environ | {
        DEVICE_VARIABLE: parsed.device,
        "TQDM_DISABLE": "1",
        "PYTHONUNBUFFERED": "1",
        # speculators would only leave such a sample out.
        "PYTHONWARNINGS": f"error:{TOKENS_DIFFER_WARNING}",
    }
    if parsed.device == "cpu":
        threads = max(1, len(os.sched_getaffinity(0)) // parsed.processes_per_node)
        environment.setdefault("OMP_NUM_THREADS", str(threads))
        # A thread that spins while it waits takes the processor from the one it waits for.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    process = TrainerProcess(command, environment)
    interrupted = False
    try:
        for event in process.events():
            metrics.show(event)
            log_milestone(event)
            interrupted = interrupted or "interrupted" in event
            if (reason := divergence(event)) is not None:
                raise reason
        exit_code = process.wait()
    except InterruptedJobError:
        process.save_and_stop()
        raise
    finally:
        process.kill()
    if exit_code != 0:
        raise failure_of_log(process.last_lines, parsed.packed_sequence_length) or _unknown_failure(
            exit_code, list(process.last_lines)
        )
    if interrupted:
        # Another node was told to stop, and all of them saved together.
        raise InterruptedJobError


def _unknown_failure(exit_code: int, lines: list[str]) -> JobError:
    if was_killed(lines):
        message = (
            "a training process was killed (SIGKILL), as happens when the memory of the Pod or the"
            " node is exhausted; the next start goes on from the last checkpoint"
        )
    else:
        last = lines[-1] if lines else "it wrote no log"
        said = next((line for line in reversed(lines) if _ERROR_LINE.match(line)), last)
        message = f"the trainer ended with exit code {exit_code}: {said.strip()[:400]}"
    return JobError(INTERNAL_ERROR_EXIT_CODE, Reason.INTERNAL_ERROR, message)


def _result(best: Checkpoint, epochs: int, resumed: int | None) -> TrainResult:
    assert best.validation is not None
    accuracies = full_accuracies(best.validation, "_epoch")
    return TrainResult(
        epochs=epochs,
        steps=best.global_step,
        best_epoch=best.epoch,
        loss=f"{best.validation['loss_epoch']:.4f}",
        full_accuracy=[f"{value:.4f}" for value in accuracies],
        estimated_acceptance_length=f"{1 + sum(accuracies):.3f}",
        checkpoint=str(best.path),
        resumed_from_epoch=resumed,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``drafter-train``."""
    sys.exit(run_job(build_parser(), train, arguments))


if __name__ == "__main__":
    main()
