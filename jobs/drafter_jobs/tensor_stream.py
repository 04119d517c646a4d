"""Pass over tensors' bytes in constant memory: checksums, non-finite values, copies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from drafter_jobs.safetensors_header import DTYPE_BYTES, Tensor, build_header

CHUNK_BYTES = 4 * 1024 * 1024

# A floating-point number is infinite or not a number exactly if all its exponent bits are set.
_EXPONENT_BITS: dict[str, tuple[str, int]] = {
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F32": ("<u4", 0x7F800000),
    "F64": ("<u8", 0x7FF0000000000000),
}


def _chunks(file: BinaryIO, start: int, size: int) -> Iterator[bytes]:
    file.seek(start)
    left = size
    while left > 0:
        chunk = file.read(min(CHUNK_BYTES, left))
        if not chunk:
            raise OSError(f"{file.name} ended {left} bytes early; it was changed while being read")
        left -= len(chunk)
        yield chunk


def file_checksum(path: Path) -> str:
    """SHA-256 of a whole file, as a hexadecimal string."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in _chunks(file, 0, path.stat().st_size):
            digest.update(chunk)
    return digest.hexdigest()


def files_checksum(paths: Sequence[Path]) -> str:
    """SHA-256 over the names and contents of several files, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name}\0{file_checksum(path)}\n".encode())
    return digest.hexdigest()


def count_non_finite(tensor: Tensor) -> int:
    """Count the elements of a floating-point tensor that are infinite or not a number.

    Returns
    -------
    int
        Zero for tensors of integers and booleans.
    """
    layout = _EXPONENT_BITS.get(tensor.dtype)
    if layout is None:
        return 0
    unsigned, exponent = layout
    mask = np.array(exponent, dtype=unsigned)
    total = 0
    with tensor.file.open("rb") as file:
        # CHUNK_BYTES is a multiple of every element's size, so no element is split.
        for chunk in _chunks(file, tensor.start, tensor.size):
            bits = np.frombuffer(chunk, dtype=unsigned)
            total += int(np.count_nonzero((bits & mask) == mask))
    return total


def read_integers(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Read an integer or boolean tensor into memory.

    Returns
    -------
    numpy.ndarray
        Of dtype int64 and the tensor's shape.
    """
    kinds = {"I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "u1", "I8": "i1", "I16": "<i2"}
    with tensor.file.open("rb") as file:
        data = b"".join(_chunks(file, tensor.start, tensor.size))
    values = np.frombuffer(data, dtype=kinds[tensor.dtype]).astype(np.int64)
    return values.reshape(tensor.shape)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    written: Callable[[], None] | None = None,
) -> str:
    """Write a safetensors file whose data are streamed from other files.

    Parameters
    ----------
    path
        The new file.
    tensors
        Source of each tensor by its new name.
    metadata
        For the header.
    written
        Called after each tensor.

    Returns
    -------
    str
        SHA-256 of the new file.
    """
    # Wide elements first, so that each tensor stays aligned to its element's size.
    ordered = dict(sorted(tensors.items(), key=lambda item: -DTYPE_BYTES[item[1].dtype]))
    digest = hashlib.sha256()
    with path.open("wb") as output:
        header = build_header(ordered, metadata)
        digest.update(header)
        output.write(header)
        for tensor in ordered.values():
            with tensor.file.open("rb") as file:
                for chunk in _chunks(file, tensor.start, tensor.size):
                    digest.update(chunk)
                    output.write(chunk)
            if written is not None:
                written()
        output.flush()
        os.fsync(output.fileno())
    return digest.hexdigest()
