"""Linear layers over weights packed once."""

from __future__ import annotations

import torch

# The layout oneDNN chooses for this many rows serves one to four rows at the cost of one (a
# layout chosen for one row does not), and adds up each row in the same order whatever the number
# of rows: greedy decoding one token at a time and verifying several then agree bit by bit.
ROWS_HINT = 4


def convert_weight_packed(weight: torch.Tensor) -> torch.Tensor:
    """Return ``weight`` (out x in) in oneDNN's packed layout, an opaque tensor.

    Raises
    ------
    RuntimeError
        If this build of torch has no oneDNN.
    """
    if not torch._C._has_mkldnn:
        raise RuntimeError("this build of torch has no oneDNN: install torch's own CPU wheel")
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS_HINT)
    return packed


def weight_packed_linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, is_packed: bool
) -> torch.Tensor:
    """Return ``x @ weight.T + bias``; a weight not packed yet is packed for this call."""
    if not is_packed:
        packed = convert_weight_packed(packed)
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return output
