"""Write greedy responses for many prompts at once.

A batch is laid out as ``shared prefix | padding | rest of the prompt | response``, so that all
rows grow at the same column and the prefix, mostly the chat template's system prompt, is
computed once. Rows that have ended leave the batch, so that the rest goes faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from drafter_jobs.shared_prefix import attends_in_full, shared_prefix

ATTENTION = "drafter-grouped-sdpa"
"""Name under which transformers knows :func:`_grouped_attention`."""

COMPACT_BELOW = 0.8
"""A batch is compacted when the share of its rows that still grow falls below this."""


@dataclass(frozen=True)
class Prompt:
    """A prompt to answer.

    ``limit`` is the greatest number of new tokens, at least 1.
    """

    row: int
    token_ids: Sequence[int]
    limit: int


def end_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Token ids that end a response, from generation config and tokenizer."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None)


def use_grouped_attention(model: Any) -> None:
    """Switch a model that attends through torch's SDPA to :func:`_grouped_attention`."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(ATTENTION, _grouped_attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)


def decode_greedily(
    model: Any,
    prompts: Sequence[Prompt],
    end_ids: frozenset[int],
    on_growth: Callable[[float], None] = lambda _: None,
) -> Iterator[tuple[int, list[int]]]:
    """Answer one batch of prompts.

    Parameters
    ----------
    model
        A causal language model of transformers.
    prompts
        The batch; prompts of like length waste the least.
    end_ids
        Token ids that end a response.
    on_growth
        Told, after each token, how many responses those that still grow amount to, each by its
        share of its limit.

    Yields
    ------
    tuple
        ``row`` and its response, in the order in which they end. The response includes the
        token that ended it, and none if its limit was reached.
    """
    growing = list(prompts)
    answers: list[list[int]] = [[] for _ in growing]
    cache, shared = _begin(model, growing)
    width = max(len(prompt.token_ids) for prompt in growing)
    column = width
    ids = torch.zeros(len(growing), width, dtype=torch.long)
    mask = torch.zeros(len(growing), width + max(p.limit for p in growing), dtype=torch.long)
    mask[:, :shared] = 1
    mask[:, width:] = 1
    for index, prompt in enumerate(growing):
        start = width - len(prompt.token_ids) + shared
        ids[index, start:] = torch.tensor(prompt.token_ids[shared:])
        mask[index, start:width] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, shared:width].to(model.device)
    ids, mask = ids[:, shared:].to(model.device), mask.to(model.device)
    while growing:
        with torch.inference_mode():
            logits = model(
                input_ids=ids,
                attention_mask=mask[:, :column],
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
            chosen = logits[:, -1].argmax(-1)
        kept, ended = [], []
        for index, token in enumerate(chosen.tolist()):
            prompt, answer = growing[index], answers[index]
            # A row that has ended stays in the batch until the batch is compacted.
            if prompt.limit <= len(answer) or (answer and answer[-1] in end_ids):
                continue
            answer.append(token)
            if token in end_ids or len(answer) == prompt.limit:
                ended.append((prompt.row, answer))
            else:
                kept.append(index)
        on_growth(sum(len(answers[index]) / growing[index].limit for index in kept))
        yield from ended
        if not kept:
            return
        ids = chosen[:, None]
        positions = positions[:, -1:] + 1
        column += 1
        if len(kept) < COMPACT_BELOW * len(growing):
            rows = torch.tensor(kept, device=model.device)
            ids, positions, mask = ids[rows], positions[rows], mask[rows]
            cache.reorder_cache(rows)
            growing = [growing[index] for index in kept]
            answers = [answers[index] for index in kept]


class _ReservedLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, written in place instead of copied at each token."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self._keys, self._values = (
            states.new_empty((*states.shape[:2], self._capacity, states.shape[3]))
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self._length = self._length, self._length + key_states.shape[-2]
        self._keys[:, :, start : self._length] = key_states
        self._values[:, :, start : self._length] = value_states
        self.keys = self._keys[:, :, : self._length]
        self.values = self._values[:, :, : self._length]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._keys, self._values = self._keys[beam_idx], self._values[beam_idx]


def _begin(model: Any, prompts: Sequence[Prompt]) -> tuple[Cache, int]:
    """Return a cache for the batch and the length of the shared prefix it holds already."""
    if not attends_in_full(model.config):
        # A window counts columns, so that padding inside the row would shorten it.
        return DynamicCache(config=model.config), 0
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    capacity = max(len(p.token_ids) for p in prompts) + max(p.limit for p in prompts)
    cache = Cache(layers=[_ReservedLayer(capacity) for _ in range(layers)])
    shared = shared_prefix([prompt.token_ids for prompt in prompts])
    if shared:
        with torch.inference_mode():
            prefix = torch.tensor([prompts[0].token_ids[:shared]], device=model.device)
            model(input_ids=prefix, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.reorder_cache(torch.zeros(len(prompts), dtype=torch.long, device=model.device))
    return cache, shared


def _grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA that, for one query a row, reads each key head once for all its query heads.

    The heads that share a key become the queries of one head. Transformers' own SDPA copies
    keys and values for each of them where there is a mask, at every token.
    """
    batch, heads, length, size = query.shape
    key_heads = key.shape[1]
    plain: Mapping[str, Any] = {k: v for k, v in kwargs.items() if v is not None}
    if length != 1 or heads == key_heads or plain.get("position_bias") is not None:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return output
    grouped = query.view(batch, key_heads, heads // key_heads, size)
    attended = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling")
    )
    return attended.reshape(batch, 1, heads, value.shape[-1]), None
