"""Hidden states in speculators' file format, one file a sample.

``hs_<row>.safetensors`` holds ``token_ids``, int64 ``[T]``, and ``hidden_states``
``[T, A + 1, H]``: the inputs of the ``A`` auxiliary layers and, last, the residual before the
final norm. Source: ``speculators.train.data.ArrowDataset`` of speculators 0.9.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drafter_jobs.safetensors_header import DTYPE_BYTES, HeaderError, read_header

TOKEN_IDS = "token_ids"
HIDDEN_STATES = "hidden_states"
SAFETENSORS_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
HEADER_BYTES = 256
"""Upper bound of a file's header and padding."""

_UNFINISHED = re.compile(r"\.hs_\d+\.safetensors\.\d+\.part")


@dataclass(frozen=True)
class StateShape:
    """What does not vary from file to file.

    Attributes
    ----------
    vectors
        Vectors of a token: auxiliary layers and the last residual.
    hidden_size
        Numbers in a vector.
    dtype
        Element type: float32, bfloat16 or float16.
    """

    vectors: int
    hidden_size: int
    dtype: str

    def bytes_of(self, tokens: int) -> int:
        """Bytes of the hidden states of so many tokens, without token ids and headers."""
        size = DTYPE_BYTES[SAFETENSORS_DTYPES[self.dtype]]
        return tokens * self.vectors * self.hidden_size * size

    def file_bytes(self, lengths: Sequence[int]) -> int:
        """Upper bound of the bytes of files for samples of these lengths in tokens."""
        tokens = sum(lengths)
        return self.bytes_of(tokens) + tokens * DTYPE_BYTES["I64"] + len(lengths) * HEADER_BYTES


def state_path(directory: Path, row: int) -> Path:
    """Path of the file of a row of the data set."""
    return directory / f"hs_{row}.safetensors"


def find_damage(path: Path, token_ids: Sequence[int], shape: StateShape) -> str | None:
    """Say what is wrong with a file, or None if it can stay.

    Reads header and token ids; the hidden states only by their size.

    Parameters
    ----------
    path
        An existing file.
    token_ids
        The sample's token ids.
    shape
        What the hidden states must look like.
    """
    try:
        tensors = read_header(path)
    except HeaderError as error:
        return str(error)
    expected = {
        TOKEN_IDS: ("I64", (len(token_ids),)),
        HIDDEN_STATES: (
            SAFETENSORS_DTYPES[shape.dtype],
            (len(token_ids), shape.vectors, shape.hidden_size),
        ),
    }
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        return f"{path} holds {found}, expected {expected}"
    ids = tensors[TOKEN_IDS]
    with path.open("rb") as file:
        file.seek(ids.start)
        stored = np.frombuffer(file.read(ids.size), dtype="<i8")
    if not np.array_equal(stored, np.asarray(token_ids, dtype=np.int64)):
        return f"{path} holds the hidden states of another text"
    return None


def remove_unfinished(directory: Path) -> int:
    """Remove what a killed job left half-written, and say how many files that were."""
    leftovers = [file for file in directory.iterdir() if _UNFINISHED.fullmatch(file.name)]
    for file in leftovers:
        file.unlink()
    return len(leftovers)


def human_bytes(count: int) -> str:
    """Return a size with a binary unit, such as ``4.58 TiB``."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.2f} {unit}" if unit != "B" else f"{count} B"
