"""Find and open a checkpoint of the trainer: its config and where its tensors lie."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafter_jobs.safetensors_header import HeaderError, Tensor, read_header

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
BEST_CHECKPOINT = "checkpoint_best"


class CheckpointUnreadableError(ValueError):
    """A directory that holds no whole checkpoint; the message names the file and the way out."""


@dataclass(frozen=True)
class Checkpoint:
    """A drafter's directory, opened.

    Attributes
    ----------
    path
        The directory, links resolved.
    config
        Its ``config.json``.
    tensors
        Its tensors by name.
    files
        The weight files, in order of name.
    """

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    files: tuple[Path, ...]


def locate_checkpoint(path: Path) -> Path:
    """Find the checkpoint meant by a path.

    Parameters
    ----------
    path
        A checkpoint, or the trainer's directory of checkpoints: then ``checkpoint_best``, or
        else the complete epoch with the greatest number.

    Raises
    ------
    CheckpointUnreadableError
        If there is none.
    """
    if not path.is_dir():
        raise CheckpointUnreadableError(f"{path} is not a directory")
    if (path / CONFIG_FILE).is_file():
        return path.resolve()
    best = path / BEST_CHECKPOINT
    if _is_complete(best):
        return best.resolve()
    epochs = [entry for entry in path.iterdir() if entry.name.isdecimal() and _is_complete(entry)]
    if not epochs:
        raise CheckpointUnreadableError(
            f"{path} holds neither {CONFIG_FILE}, nor {BEST_CHECKPOINT}, nor a complete epoch"
        )
    return max(epochs, key=lambda entry: int(entry.name)).resolve()


def _is_complete(path: Path) -> bool:
    weights = (path / WEIGHTS_FILE).is_file() or (path / INDEX_FILE).is_file()
    return weights and (path / CONFIG_FILE).is_file()


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a directory with a config and safetensors weights, sharded or not.

    Raises
    ------
    CheckpointUnreadableError
        If a file is missing or damaged, or the weights are pickled.
    """
    config = read_json_object(path / CONFIG_FILE)
    files = _weight_files(path)
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            found = read_header(file)
        except HeaderError as error:
            raise CheckpointUnreadableError(str(error)) from None
        except OSError as error:
            raise CheckpointUnreadableError(f"cannot read {file}: {error.strerror}") from None
        twice = sorted(tensors.keys() & found.keys())
        if twice:
            raise CheckpointUnreadableError(
                f"{twice[0]} is in both {tensors[twice[0]].file.name} and {file.name}"
            )
        tensors.update(found)
    if (path / INDEX_FILE).is_file():
        _compare_with_index(path, tensors)
    return Checkpoint(path.resolve(), config, tensors, files)


def _weight_files(path: Path) -> tuple[Path, ...]:
    index = path / INDEX_FILE
    if index.is_file():
        names = sorted(set(_weight_map(index).values()))
        for name in names:
            if Path(name).name != name:
                raise CheckpointUnreadableError(f"{index} names {name!r}, outside its directory")
            if not (path / name).is_file():
                raise CheckpointUnreadableError(f"{index} names {name}, which is missing")
        return tuple(path / name for name in names)
    single = path / WEIGHTS_FILE
    if single.is_file():
        return (single,)
    pickled = sorted(
        entry.name for entry in path.iterdir() if entry.suffix in {".bin", ".pt", ".pth", ".ckpt"}
    )
    if pickled:
        raise CheckpointUnreadableError(
            f"{path} has pickled weights only ({pickled[0]}), which can run code when loaded; "
            f"save it as {WEIGHTS_FILE} with the program that made it"
        )
    raise CheckpointUnreadableError(f"{path} has no {WEIGHTS_FILE} or {INDEX_FILE}")


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointUnreadableError(f"{index} has no weight_map")
    return {str(name): str(file) for name, file in weight_map.items()}


def _compare_with_index(path: Path, tensors: dict[str, Tensor]) -> None:
    for name, file in _weight_map(path / INDEX_FILE).items():
        if name not in tensors or tensors[name].file.name != file:
            raise CheckpointUnreadableError(
                f"{path / INDEX_FILE} places {name} in {file}, which does not have it"
            )


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises
    ------
    CheckpointUnreadableError
        If it is missing, unreadable, or anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointUnreadableError(f"{path} does not exist") from None
    except OSError as error:
        raise CheckpointUnreadableError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointUnreadableError(f"{path} is not JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointUnreadableError(f"{path} holds no JSON object")
    return value
