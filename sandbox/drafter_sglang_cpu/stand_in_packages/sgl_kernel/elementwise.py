"""Norms, gated activations and rotary embedding. Shapes: T tokens, H hidden size."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rmsnorm_cpu(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return ``x / rms(x) * weight`` over the last dimension."""
    return torch.rms_norm(x, (x.shape[-1],), weight, eps)


def fused_add_rmsnorm_cpu(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> None:
    """Add ``x`` to ``residual`` in place, then put the norm of the sum into ``x``."""
    residual.add_(x)
    x.copy_(torch.rms_norm(residual, (x.shape[-1],), weight, eps))


def silu_and_mul_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return ``silu(a) * b`` for ``x = [a, b]`` along the last dimension."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate).mul_(up)


def gelu_and_mul_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return ``gelu(a) * b`` for ``x = [a, b]`` along the last dimension."""
    gate, up = x.chunk(2, -1)
    return F.gelu(gate).mul_(up)


def gelu_tanh_and_mul_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return ``gelu(a) * b``, with the tanh approximation, for ``x = [a, b]``."""
    gate, up = x.chunk(2, -1)
    return F.gelu(gate, approximate="tanh").mul_(up)


def rotary_embedding_cpu(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate the first ``rotary_dim`` numbers of each head by its token's position.

    Parameters
    ----------
    positions : torch.Tensor
        T positions.
    query, key : torch.Tensor
        T x (heads * head_size); the numbers of heads may differ.
    head_size : int
        Width of a head.
    cos_sin_cache : torch.Tensor
        positions x rotary_dim: the cosines, then the sines.
    is_neox : bool
        Pairs are (i, i + rotary_dim / 2) if true, (2i, 2i + 1) if not.

    Returns
    -------
    tuple of torch.Tensor
        The rotated query and key, new tensors in the given shapes.
    """
    half = cos_sin_cache.shape[-1] // 2
    tokens = positions.numel()
    cos_sin = cos_sin_cache.index_select(0, positions.flatten()).view(tokens, 1, 2, half)
    heads = torch.cat((query.reshape(tokens, -1), key.reshape(tokens, -1)), 1)
    heads = heads.view(tokens, -1, head_size)
    rotated = heads[..., : 2 * half]
    if is_neox:
        first, second = rotated[..., :half], rotated[..., half:]
    else:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    cos, sin = cos_sin[:, :, 0], cos_sin[:, :, 1]
    old_first = first.clone()
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).addcmul_(old_first, sin)
    flat = heads.view(tokens, -1)
    width = query.numel() // tokens if tokens else 0
    return flat[:, :width].reshape(query.shape), flat[:, width:].reshape(key.shape)
