"""Read and write the header of a safetensors file without touching its data.

Source of the format: https://huggingface.co/docs/safetensors, "Format": eight bytes of
little-endian length, a JSON object, then the data. Offsets count from the end of the header.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADER_LIMIT_BYTES = 100_000_000
"""The format's own limit on the length of a header."""

ALIGNMENT_BYTES = 8

DTYPE_BYTES: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
"""Bytes of one element by safetensors dtype."""


class HeaderError(ValueError):
    """A file that is not a whole, valid safetensors file; the message names the file."""


@dataclass(frozen=True)
class Tensor:
    """Where one tensor's bytes lie.

    ``start`` counts from the beginning of the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def read_header(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file from its header, and check that the file is whole.

    Parameters
    ----------
    path
        A safetensors file.

    Returns
    -------
    dict
        Tensors by name, in the order of their data.

    Raises
    ------
    HeaderError
        If the header is damaged, or the data do not fill the file exactly.
    OSError
        If the file cannot be read.
    """
    length = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise HeaderError(f"{path}: {length} bytes are too few for a safetensors file")
        header_size = int.from_bytes(prefix, "little")
        if header_size > min(HEADER_LIMIT_BYTES, length - 8):
            raise HeaderError(
                f"{path}: the header claims {header_size} bytes, the file has {length}; "
                "it is truncated or not a safetensors file"
            )
        try:
            header = json.loads(file.read(header_size))
        except ValueError as error:
            raise HeaderError(f"{path}: the header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise HeaderError(f"{path}: the header is not a JSON object")
    header.pop("__metadata__", None)
    data_start = 8 + header_size
    tensors = [(name, _tensor(path, name, entry, data_start)) for name, entry in header.items()]
    tensors.sort(key=lambda item: (item[1].start, item[1].size))
    end = data_start
    for name, tensor in tensors:
        if tensor.start != end:
            raise HeaderError(f"{path}: the data of {name} overlap or leave a gap")
        end += tensor.size
    if end != length:
        raise HeaderError(
            f"{path}: the header describes {end} bytes, the file has {length}; it is truncated "
            "or has been appended to"
        )
    return dict(tensors)


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> Tensor:
    try:
        dtype = str(entry["dtype"])
        shape = tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise HeaderError(f"{path}: the header's entry for {name} is malformed") from None
    if dtype not in DTYPE_BYTES:
        raise HeaderError(f"{path}: {name} has the unknown dtype {dtype}")
    size = math.prod(shape) * DTYPE_BYTES[dtype]
    if min(shape, default=0) < 0 or begin < 0 or end - begin != size:
        raise HeaderError(
            f"{path}: {name} of dtype {dtype} and shape {list(shape)} needs {size} bytes, "
            f"its offsets give {end - begin}"
        )
    return Tensor(path, dtype, shape, data_start + begin, size)


def build_header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Build length prefix and header for tensors laid out in the order of the mapping.

    Parameters
    ----------
    tensors
        Tensors by their name in the new file.
    metadata
        Strings for the header's ``__metadata__``.

    Returns
    -------
    bytes
        Padded with spaces so that the data start at a multiple of eight bytes.
    """
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.size],
        }
        offset += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text
