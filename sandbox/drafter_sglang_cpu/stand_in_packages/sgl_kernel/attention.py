"""Attention over the slots of the KV cache, by torch's scaled dot product attention.

Shapes: T tokens, H query heads, K key heads (H = K * G), D head width, L positions. The G query
heads that share a key head are folded into rows of queries, so that keys are never repeated.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from .missing import unsupported


class _Part:
    """Queries that are computed by one call: one request, or several of equal length."""

    def __init__(
        self,
        tokens: slice,
        requests: int,
        slots: slice | torch.Tensor,
        mask: torch.Tensor | None,
    ) -> None:
        self.tokens = tokens
        self.requests = requests
        self.slots = slots
        self.mask = mask

    def attend(
        self,
        q: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        o: torch.Tensor,
        scaling: float,
    ) -> None:
        queries = q[self.tokens]
        key_heads, width = k_buffer.shape[1], k_buffer.shape[2]
        group = queries.shape[1] // key_heads
        requests = self.requests
        rows = queries.shape[0] // requests
        folded = (
            queries.reshape(requests, rows, key_heads, group, width)
            .transpose(1, 2)
            .reshape(requests, key_heads, rows * group, width)
        )
        output = functional.scaled_dot_product_attention(
            folded,
            self._positions(k_buffer),
            self._positions(v_buffer),
            attn_mask=self.mask,
            scale=scaling,
        )
        value_width = v_buffer.shape[2]
        o[self.tokens] = (
            output.view(requests, key_heads, rows, group, value_width)
            .transpose(1, 2)
            .reshape(requests * rows, key_heads * group, value_width)
        )

    def _positions(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return requests x K x L x D."""
        if isinstance(self.slots, slice):
            return buffer[self.slots].transpose(0, 1).unsqueeze(0)
        chosen = buffer.index_select(0, self.slots)
        return chosen.view(self.requests, -1, *buffer.shape[1:]).transpose(1, 2)


class _Pass:
    """The slots and masks of one pass of a batch through a model's layers.

    They are the same in every layer, and a layer is visited once in a pass: its buffer seen again
    marks the next pass. The tensors it was made from are held, so that their identity is safe.
    """

    def __init__(self, made_from: tuple[object, ...], parts: list[_Part]) -> None:
        self.made_from = made_from
        self.parts = parts
        self.visited: set[int] = set()

    def serves(self, made_from: tuple[object, ...], layer: int) -> bool:
        return (
            layer not in self.visited
            and len(made_from) == len(self.made_from)
            and all(a is b for a, b in zip(made_from, self.made_from, strict=True))
        )


_current = _Pass((), [])


def decode_attention_cpu(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    o: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Attend with one new token a request, after storing its key and value in slot ``loc``.

    Parameters
    ----------
    q, o : torch.Tensor
        T x H x D: queries, and the output to write.
    k_buffer, v_buffer : torch.Tensor
        slots x K x D.
    k_scale, v_scale : float
        Scales of a quantised cache; only 1 is supported.
    k, v : torch.Tensor or None
        The new keys and values; None if they are stored already.
    loc : torch.Tensor
        Slot of each new token.
    attn_logits : torch.Tensor
        Scratch space of the operator this one stands for; not needed.
    req_to_token : torch.Tensor
        rows x positions: slots.
    req_pool_indices, seq_lens : torch.Tensor
        Each request's row, and its length with the new token.
    scaling : float
        Factor of the scores.
    logit_cap, is_cross_attention, sliding_window, encoder_lens, sinks
        Not supported: must be off.
    """
    _refuse_unsupported(
        "decode_attention_cpu",
        k_scale,
        v_scale,
        logit_cap,
        is_cross_attention,
        sliding_window,
        sinks,
    )
    if k is not None and v is not None:
        k_buffer.index_copy_(0, loc, k.view(-1, *k_buffer.shape[1:]))
        v_buffer.index_copy_(0, loc, v.view(-1, *v_buffer.shape[1:]))
    layer = k_buffer.data_ptr()
    made_from = (req_to_token, req_pool_indices, seq_lens, attn_logits)
    current = _current
    if not current.serves(made_from, layer):
        group = q.shape[1] // k_buffer.shape[1]
        lengths = seq_lens.tolist()
        rows = req_pool_indices.tolist()
        current = _begin(
            made_from, _uniform_parts(req_to_token, rows, lengths, 1, group, None, True)
        )
    current.visited.add(layer)
    for part in current.parts:
        part.attend(q, k_buffer, v_buffer, o, scaling)


def extend_attention_cpu(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    o: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_extend_len: int,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Attend with several new tokens a request; their keys and values are in the cache already.

    Parameters
    ----------
    q, o : torch.Tensor
        T x H x D: queries of all requests one after another, and the output to write.
    k, v : torch.Tensor or None
        The new keys and values, here read from the cache instead.
    k_buffer, v_buffer, k_scale, v_scale, req_to_token, req_pool_indices, scaling
        As for `decode_attention_cpu`.
    seq_lens, extend_seq_lens : torch.Tensor
        Each request's length with the new tokens, and the number of new ones.
    extend_start_loc : torch.Tensor
        Row in ``q`` of each request's first new token.
    max_extend_len : int
        The greatest of ``extend_seq_lens``.
    tree_mask : torch.Tensor or None
        Flat, for each request new tokens x new tokens: which new ones each of them sees besides
        all committed ones. None for a chain: itself and the new ones before it.
    is_causal : bool
        False if every new token sees all of them.
    logit_cap, is_cross_attention, sliding_window, encoder_lens, sinks
        Not supported: must be off.
    """
    _refuse_unsupported(
        "extend_attention_cpu",
        k_scale,
        v_scale,
        logit_cap,
        is_cross_attention,
        sliding_window,
        sinks,
    )
    layer = k_buffer.data_ptr()
    made_from = (
        req_to_token,
        req_pool_indices,
        seq_lens,
        extend_seq_lens,
        extend_start_loc,
        tree_mask,
    )
    current = _current
    if not current.serves(made_from, layer):
        group = q.shape[1] // k_buffer.shape[1]
        current = _begin(
            made_from,
            _extend_parts(
                req_to_token,
                req_pool_indices.tolist(),
                seq_lens.tolist(),
                extend_seq_lens.tolist(),
                extend_start_loc.tolist(),
                group,
                tree_mask,
                is_causal,
            ),
        )
    current.visited.add(layer)
    for part in current.parts:
        part.attend(q, k_buffer, v_buffer, o, scaling)


def _begin(made_from: tuple[object, ...], parts: list[_Part]) -> _Pass:
    global _current
    _current = _Pass(made_from, parts)
    return _current


def _extend_parts(
    req_to_token: torch.Tensor,
    rows: list[int],
    lengths: list[int],
    new: list[int],
    starts: list[int],
    group: int,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> list[_Part]:
    count = new[0] if new else 0
    uniform = all(n == count for n in new)
    in_order = starts == list(range(0, len(new) * count, count)) if count else False
    # Padding to the longest request pays for a few rows a request, not for whole prompts.
    if uniform and in_order and count <= 16:
        return _uniform_parts(req_to_token, rows, lengths, count, group, tree_mask, is_causal)
    parts = []
    mask_start = 0
    for row, length, count, start in zip(rows, lengths, new, starts, strict=True):
        if count == 0:
            continue
        sees = _visible(length, count, tree_mask, mask_start, is_causal)
        mask_start += count**2
        parts.append(
            _Part(
                slice(start, start + count),
                1,
                _slots(req_to_token[row, :length]),
                None if sees is None else sees.repeat_interleave(group, 0),
            )
        )
    return parts


def _uniform_parts(
    req_to_token: torch.Tensor,
    rows: list[int],
    lengths: list[int],
    count: int,
    group: int,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> list[_Part]:
    if not rows:
        return []
    longest = max(lengths)
    if len(rows) == 1:
        sees = _visible(longest, count, tree_mask, 0, is_causal)
        mask = None if sees is None else sees.repeat_interleave(group, 0)
        return [_Part(slice(0, count), 1, _slots(req_to_token[rows[0], :longest]), mask)]
    mask = torch.zeros(len(rows), count, longest, dtype=torch.bool)
    # Slot 0 is SGLang's padding slot: readable, and hidden by the mask.
    slots = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask_start = 0
    for request, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        slots[request, :length] = req_to_token[row, :length]
        sees = _visible(length, count, tree_mask, mask_start, is_causal)
        mask[request, :, :length] = True if sees is None else sees
        mask_start += count**2
    folded = mask.repeat_interleave(group, 1).unsqueeze(1)
    return [_Part(slice(0, len(rows) * count), len(rows), slots.flatten(), folded)]


def _visible(
    length: int, count: int, tree_mask: torch.Tensor | None, mask_start: int, is_causal: bool
) -> torch.Tensor | None:
    """Return new tokens x length, bool; None if everything is visible."""
    if tree_mask is not None:
        sees = torch.ones(count, length, dtype=torch.bool)
        sees[:, length - count :] = tree_mask[mask_start : mask_start + count**2].view(count, count)
        return sees
    if not is_causal or count == 1:
        return None
    return torch.ones(count, length, dtype=torch.bool).tril(length - count)


def _slots(slots: torch.Tensor) -> slice | torch.Tensor:
    """Return a slice if the slots follow one another, which saves a copy in every layer."""
    length = slots.shape[0]
    first = int(slots[0])
    if torch.equal(slots, torch.arange(first, first + length, dtype=slots.dtype)):
        return slice(first, first + length)
    return slots.to(torch.int64)


def _refuse_unsupported(
    operator: str,
    k_scale: float,
    v_scale: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    sinks: torch.Tensor | None,
) -> None:
    if is_cross_attention:
        raise unsupported(operator, "is_cross_attention", is_cross_attention)
    if logit_cap:
        raise unsupported(operator, "logit_cap", logit_cap)
    if sliding_window > 0:
        raise unsupported(operator, "sliding_window", sliding_window)
    if sinks is not None:
        raise unsupported(operator, "sinks", "a tensor")
    if k_scale != 1 or v_scale != 1:
        raise unsupported(operator, "k_scale, v_scale", (k_scale, v_scale))
