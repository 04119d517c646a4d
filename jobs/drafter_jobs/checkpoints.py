"""Which of a trainer's checkpoints are complete, and which one is the best.

Layout, as speculators 0.9.0 writes it: ``<root>/<epoch>/`` with the files of
:data:`REQUIRED_FILES`. ``training_state.json`` holds ``epoch``, ``local_step`` (0 at the end of
an epoch) and ``global_step``, and of this project's own ``epoch_steps``, the steps of that epoch,
and ``tokens_per_step``, the room of one step over all processes; ``validation.json`` the metrics
of the epoch's validation.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafter_jobs.atomic_files import synchronise
from drafter_jobs.safetensors_header import read_header

STATE_FILE = "training_state.json"
VALIDATION_FILE = "validation.json"
INTERRUPTED = "interrupted"
BEST = "checkpoint_best"
OPTIMIZER_FILES = ("optimizer_state_dict.pt", "scheduler_state_dict.pt")
REQUIRED_FILES = ("model.safetensors", "config.json", *OPTIMIZER_FILES, STATE_FILE)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes
    ----------
    local_step
        Steps done inside the epoch; 0 when the epoch is finished.
    validation
        Metrics of the validation after this epoch, if there was one.
    """

    path: Path
    epoch: int
    local_step: int
    global_step: int
    validation: dict[str, float] | None

    @property
    def loss(self) -> float | None:
        """Validation loss, if known."""
        return (self.validation or {}).get("loss_epoch")


def is_complete(directory: Path) -> bool:
    """Whether every file of a checkpoint is there and whole."""
    if not all((directory / name).is_file() for name in REQUIRED_FILES):
        return False
    try:
        read_header(directory / "model.safetensors")
        state = json.loads((directory / STATE_FILE).read_text())
        # torch writes zip archives, whose directory is at their end.
        whole = all(zipfile.is_zipfile(directory / name) for name in OPTIMIZER_FILES)
    except (OSError, ValueError):
        return False
    return whole and isinstance(state, dict)


def numbered_directories(root: Path) -> list[Path]:
    """Return the directories of epochs, complete or not, in order."""
    if not root.is_dir():
        return []
    found = [entry for entry in root.iterdir() if entry.name.isdigit() and entry.is_dir()]
    return sorted(found, key=lambda entry: int(entry.name))


def remove_incomplete(root: Path) -> list[Path]:
    """Remove what a killed trainer left half-written, and return it.

    Parameters
    ----------
    root
        The trainer's output directory.
    """
    for old in root.glob(".*.old.part"):
        name = old.name.removeprefix(".").removesuffix(".old.part")
        if not (root / name).exists():
            # Killed after the older checkpoint was put aside, before the newer had its name.
            old.rename(root / name)
    leftovers = [entry for entry in numbered_directories(root) if not is_complete(entry)]
    if root.is_dir():
        leftovers += [entry for entry in root.glob(".*.part") if entry.is_dir()]
    for leftover in leftovers:
        shutil.rmtree(leftover)
    best = root / BEST
    if best.is_symlink() and not best.exists():
        best.unlink()
    return leftovers


def complete_checkpoints(root: Path) -> list[Checkpoint]:
    """Return the complete checkpoints in the order of their epochs."""
    found = []
    for directory in numbered_directories(root):
        if not is_complete(directory):
            continue
        state = json.loads((directory / STATE_FILE).read_text())
        validation = directory / VALIDATION_FILE
        found.append(
            Checkpoint(
                path=directory,
                epoch=int(directory.name),
                local_step=int(state.get("local_step", 0)),
                global_step=int(state.get("global_step", 0)),
                validation=json.loads(validation.read_text()) if validation.is_file() else None,
            )
        )
    return found


def best_checkpoint(root: Path) -> Checkpoint | None:
    """Return the finished epoch of the lowest validation loss; the newest of equals."""
    measured = [
        (checkpoint.loss, -checkpoint.epoch, checkpoint)
        for checkpoint in complete_checkpoints(root)
        if checkpoint.local_step == 0 and checkpoint.loss is not None
    ]
    return min(measured)[2] if measured else None


def point_to_best(root: Path, best: Checkpoint) -> None:
    """Let ``checkpoint_best`` name a checkpoint, whatever a killed trainer left there."""
    link = root / BEST
    if link.is_symlink() and link.readlink() == Path(best.path.name):
        return
    beside = root / f".{BEST}.{os.getpid()}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(best.path.name, target_is_directory=True)
    beside.replace(link)


def publish_checkpoint(part: Path, directory: Path, state: Mapping[str, Any]) -> None:
    """Give a fully written checkpoint its name.

    Parameters
    ----------
    part
        Directory with everything but the training state.
    directory
        Its name from now on; an older checkpoint of that name is replaced.
    state
        Content of its training state.
    """
    (part / STATE_FILE).write_text(json.dumps(dict(state)))
    for file in part.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    synchronise(part)
    if directory.exists():
        old = directory.with_name(f".{directory.name}.old.part")
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
        part.rename(directory)
        shutil.rmtree(old)
    else:
        part.rename(directory)
    synchronise(directory.parent)


def rescaled_position(state: Mapping[str, Any], steps_per_epoch: int) -> tuple[int, int, int]:
    """Return where a training stands once its steps have another number of tokens.

    Parameters
    ----------
    state
        Content of a checkpoint's training state.
    steps_per_epoch
        Optimizer steps of an epoch from now on.

    Returns
    -------
    tuple of int
        The epoch to train next, the steps of it already done, and the steps done in all.
    """
    epoch, done = int(state["epoch"]), int(state["local_step"])
    if done == 0:
        return epoch + 1, 0, (epoch + 1) * steps_per_epoch
    # Rounded down: a few samples again rather than some of them never.
    local_step = done * steps_per_epoch // int(state["epoch_steps"])
    return epoch, local_step, epoch * steps_per_epoch + local_step
