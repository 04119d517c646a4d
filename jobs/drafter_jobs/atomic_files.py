"""Output that appears whole or not at all: written beside, synced, renamed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def synchronise(path: Path) -> None:
    """Make a file's content, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is seen whole or not at all.

    Parameters
    ----------
    path
        The file; its directory must exist. An existing file is replaced.
    content
        Its bytes.

    Raises
    ------
    OSError
        The volume is full or read-only; what was there before is untouched.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    synchronise(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON with :func:`write_atomically`."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    write_atomically(path, text.encode() + b"\n")


@contextlib.contextmanager
def directory_atomically(path: Path) -> Iterator[Path]:
    """Yield a directory to fill, which becomes ``path`` when the block ends well.

    Parameters
    ----------
    path
        The directory to make. One that exists is replaced; its parents are created.

    Yields
    ------
    Path
        An empty directory beside ``path``.

    Raises
    ------
    OSError
        The volume is full or read-only; what was there before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        beside.chmod(0o755)
        yield beside
        for folder, _, files in os.walk(beside):
            for name in files:
                _sync_file(Path(folder) / name)
            synchronise(Path(folder))
        if path.exists():
            _exchange(beside, path)
        else:
            beside.rename(path)
        synchronise(path.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _exchange(beside: Path, path: Path) -> None:
    """Put ``beside`` in the place of ``path``; a crash in between loses neither."""
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
    path.rename(old / path.name)
    beside.rename(path)
    shutil.rmtree(old, ignore_errors=True)
