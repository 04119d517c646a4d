"""Slots of the KV cache: which token of which request lives where.

``req_to_token`` is requests x positions, int32: the slot of each token. The loops run over the
requests of a batch, of which a CPU server has few.
"""

from __future__ import annotations

import ctypes

import torch


def store_cache_cpu(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    row_dim: int,
) -> None:
    """Write each token's key and value, ``row_dim`` numbers each, into its slot."""
    k_cache.view(-1, row_dim).index_copy_(0, indices, k.reshape(-1, row_dim))
    v_cache.view(-1, row_dim).index_copy_(0, indices, v.reshape(-1, row_dim))


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write the slots of ``out_cache_loc``, request after request, into their rows."""
    taken = 0
    for row, start, end in _ranges(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start]
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read each request's slots from start to end into ``out_cache_loc``, one after another."""
    filled = 0
    for row, start, end in _ranges(req_pool_indices, start_offset, end_offset):
        out_cache_loc[filled : filled + end - start] = req_to_token[row, start:end]
        filled += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read each request's next ``topk * num_steps`` slots into ``out_cache_loc``."""
    ends = seq_lens + topk * num_steps
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, ends, out_cache_loc, pool_len
    )


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """Give every branch of a draft tree a row of slots of its own.

    Returns
    -------
    torch.Tensor
        (requests * topk) x positions: the slots of the request's committed tokens, then the
        ``num_steps`` slots of that branch. Entries beyond those are not meaningful.
    """
    rows = req_to_token[req_pool_indices]
    if topk == 1:
        return rows
    rows = rows.repeat_interleave(topk, 0)
    for request, length in enumerate(seq_lens.tolist()):
        own = rows[request * topk, length : length + topk * num_steps].view(topk, num_steps)
        rows[request * topk : (request + 1) * topk, length : length + num_steps] = own.clone()
    return rows


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,
    strides: torch.Tensor,
    tgt_loc: torch.Tensor,
    src_loc: torch.Tensor,
) -> None:
    """Copy slots ``src_loc`` onto slots ``tgt_loc`` in every layer's key and value buffer.

    Parameters
    ----------
    data_ptrs : torch.Tensor
        Address of each buffer.
    strides : torch.Tensor
        Bytes of one slot in each buffer.
    tgt_loc, src_loc : torch.Tensor
        Slots; all are read before any is written.
    """
    if tgt_loc.numel() == 0:
        return
    slots = int(torch.maximum(tgt_loc.max(), src_loc.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[tgt_loc] = buffer[src_loc]


def _ranges(
    req_pool_indices: torch.Tensor, start_offset: torch.Tensor, end_offset: torch.Tensor
) -> zip[tuple[int, int, int]]:
    return zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
