"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file beside its place, flush it to the disk and move it there."""
    beside = path.with_name(f".{path.name}.partial")
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
    """Write JSON with :func:`write_atomically`."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    write_atomically(path, text.encode() + b"\n")


def synchronise(path: Path) -> None:
    """Flush a file, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
