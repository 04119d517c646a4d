"""Norms, gated activations and rotary embedding. Shapes: T tokens, H hidden size.

Between two uses of an operator the weights of a layer pass through the caches, so that each torch
call costs many times its time in a loop of its own: what counts here is their number.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional


def rmsnorm_cpu(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return ``x / rms(x) * weight`` over the last dimension."""
    if x.dtype != torch.float32:
        return torch.rms_norm(x, (x.shape[-1],), weight, eps)
    return torch.mul(x, _inverse_rms(x, eps)).mul_(weight)


def fused_add_rmsnorm_cpu(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> None:
    """Add ``x`` to ``residual`` in place, then put the norm of the sum into ``x``."""
    residual.add_(x)
    if x.dtype != torch.float32:
        x.copy_(torch.rms_norm(residual, (x.shape[-1],), weight, eps))
        return
    torch.mul(residual, _inverse_rms(residual, eps), out=x).mul_(weight)


def _inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    norm = torch.linalg.vector_norm(x, 2, -1, True)
    return torch.addcmul(_scalar(eps), norm, norm, value=1 / x.shape[-1]).rsqrt_()


@lru_cache(maxsize=8)
def _scalar(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float32)


def silu_and_mul_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return ``silu(a) * b`` for ``x = [a, b]`` along the last dimension."""
    gate, up = x.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def gelu_and_mul_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return ``gelu(a) * b`` for ``x = [a, b]`` along the last dimension."""
    gate, up = x.chunk(2, -1)
    return functional.gelu(gate).mul_(up)


def gelu_tanh_and_mul_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return ``gelu(a) * b``, with the tanh approximation, for ``x = [a, b]``."""
    gate, up = x.chunk(2, -1)
    return functional.gelu(gate, approximate="tanh").mul_(up)


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
    tokens = positions.numel()
    half = cos_sin_cache.shape[-1] // 2
    cos_sin = _signed_table(cos_sin_cache).index_select(0, positions.flatten())
    heads = _side_by_side(query.reshape(tokens, -1), key.reshape(tokens, -1))
    width = heads.shape[1]
    heads = heads.view(tokens, width // head_size, head_size)
    whole = head_size == 2 * half
    # Pairs last but one if they lie apart, last if they are neighbours.
    shape = (tokens, -1, 2, half) if is_neox else (tokens, -1, half, 2)
    pair = 2 if is_neox else 3
    pairs = heads[..., : 2 * half].reshape(shape)
    cos, sin = cos_sin[:, 0], cos_sin[:, 1]
    if not is_neox:
        cos, sin = cos.transpose(2, 3), sin.transpose(2, 3)
    rotated = torch.mul(pairs, cos).addcmul_(pairs.flip(pair), sin)
    if whole:
        flat = rotated.view(tokens, width)
    else:
        flat = torch.cat((rotated.flatten(2), heads[..., 2 * half :]), -1).view(tokens, width)
    split = query.numel() // tokens if tokens else 0
    return flat[:, :split].reshape(query.shape), flat[:, split:].reshape(key.shape)


def _side_by_side(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return both along dimension 1, without a copy where they are neighbours in one tensor."""
    neighbours = (
        query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
        and query.stride() == key.stride()
        and query.storage_offset() + query.shape[1] == key.storage_offset()
        and query.stride(1) == 1
    )
    if neighbours:
        return query.as_strided(
            (query.shape[0], query.shape[1] + key.shape[1]), query.stride(), query.storage_offset()
        )
    return torch.cat((query, key), 1)


_signed_tables: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


def _signed_table(cos_sin_cache: torch.Tensor) -> torch.Tensor:
    """Return positions x 2 x 1 x 2 x half: the cosine twice; minus the sine, and the sine.

    A pair (a, b) becomes (a, b) * (cos, cos) + (b, a) * (-sin, sin).
    """
    known = _signed_tables.get(cos_sin_cache.data_ptr())
    # SGLang replaces the cache when it changes its dtype or grows; the old one's memory may then
    # be given to another. Holding the cache it was made from rules that out.
    if known is not None and known[0].shape == cos_sin_cache.shape:
        return known[1]
    cos, sin = cos_sin_cache.chunk(2, -1)
    table = torch.stack((torch.stack((cos, cos), 1), torch.stack((-sin, sin), 1)), 1).unsqueeze(2)
    _signed_tables[cos_sin_cache.data_ptr()] = (cos_sin_cache, table)
    return table
