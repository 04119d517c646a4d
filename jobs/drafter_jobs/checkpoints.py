"""Which of a trainer's checkpoints are complete, and which one is the best.

Layout, as speculators 0.9.0 writes it: ``<root>/<epoch>/`` with the files of
:data:`REQUIRED_FILES`. ``training_state.json`` holds ``epoch``, ``local_step`` (0 at the end of
an epoch) and ``global_step``; ``validation.json`` the metrics of the epoch's validation.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

from drafter_jobs.safetensors_header import read_header

STATE_FILE = "training_state.json"
VALIDATION_FILE = "validation.json"
INTERRUPTED = "interrupted"
REQUIRED_FILES = ("model.safetensors", "config.json", "optimizer_state_dict.pt", STATE_FILE)


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
    """Whether every file of a checkpoint is there and its weights can be read."""
    if not all((directory / name).is_file() for name in REQUIRED_FILES):
        return False
    try:
        read_header(directory / "model.safetensors")
        json.loads((directory / STATE_FILE).read_text())
    except (OSError, ValueError):
        return False
    return True


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
    leftovers = [entry for entry in numbered_directories(root) if not is_complete(entry)]
    if root.is_dir():
        leftovers += [entry for entry in root.glob(".*.part") if entry.is_dir()]
    for leftover in leftovers:
        shutil.rmtree(leftover)
    best = root / "checkpoint_best"
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
