"""Tensors of SGLang's ``LlamaForCausalLMEagle3``: names and shapes, as data.

Source: ``models/llama_eagle3.py`` of sglang 0.5.23. Its loader drops keys it does not know and
leaves parameters without a key uninitialised, both without a word; so the set of keys has to be
exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ARCHITECTURE = "LlamaForCausalLMEagle3"

FLOAT_DTYPES = frozenset({"F32", "BF16", "F16"})
"""safetensors dtypes accepted for weights; the engine casts them while loading."""

ID_DTYPES = frozenset({"I64"})

DEFAULT_AUXILIARY_COUNT = 3


@dataclass(frozen=True)
class DraftShape:
    """Sizes that fix every tensor's shape; all in elements."""

    hidden_size: int
    intermediate_size: int
    attention_heads: int
    key_value_heads: int
    head_size: int
    vocabulary_size: int
    draft_vocabulary_size: int
    auxiliary_count: int
    norm_before_fc: bool
    norm_each_auxiliary: bool


@dataclass(frozen=True)
class ExpectedTensor:
    """Shape and accepted safetensors dtypes of one tensor."""

    shape: tuple[int, ...]
    dtypes: frozenset[str] = FLOAT_DTYPES


def expected_tensors(shape: DraftShape) -> dict[str, ExpectedTensor]:
    """Return the exact set of tensors an exported drafter has.

    ``embed_tokens.weight`` is absent: the engine replaces it by the target's.

    Parameters
    ----------
    shape
        Sizes of the drafter.

    Returns
    -------
    dict
        By name in the engine's layout; matrices are ``(out, in)``.
    """
    hidden = shape.hidden_size
    queries = shape.attention_heads * shape.head_size
    keys = shape.key_value_heads * shape.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, hidden * shape.auxiliary_count),
        "norm.weight": (hidden,),
        "lm_head.weight": (shape.draft_vocabulary_size, hidden),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        # The layer reads the token's embedding and the fused hidden state side by side.
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.mlp.gate_proj.weight": (shape.intermediate_size, hidden),
        "midlayer.mlp.up_proj.weight": (shape.intermediate_size, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, shape.intermediate_size),
    }
    if shape.norm_before_fc:
        shapes["input_norm.weight"] = (hidden * shape.auxiliary_count,)
    if shape.norm_each_auxiliary:
        for index in range(shape.auxiliary_count):
            shapes[f"fc_norm.{index}.weight"] = (hidden,)
    expected = {name: ExpectedTensor(dimensions) for name, dimensions in shapes.items()}
    if shape.draft_vocabulary_size != shape.vocabulary_size:
        expected["d2t"] = ExpectedTensor((shape.draft_vocabulary_size,), ID_DTYPES)
    return expected


def shape_of(config: Mapping[str, Any]) -> DraftShape:
    """Sizes from a flat config in the engine's layout.

    Raises
    ------
    KeyError
        If a required field is absent; its argument is the field's name.
    """
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    eagle = config.get("eagle_config") or {}
    ids = eagle.get("eagle_aux_hidden_state_layer_ids")
    count = config.get("num_aux_hidden_states") or (len(ids) if ids else DEFAULT_AUXILIARY_COUNT)
    return DraftShape(
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        attention_heads=heads,
        key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_size=int(config.get("head_dim") or hidden // heads),
        vocabulary_size=int(config["vocab_size"]),
        draft_vocabulary_size=int(config.get("draft_vocab_size") or config["vocab_size"]),
        auxiliary_count=int(count),
        norm_before_fc=bool(eagle.get("norm_before_fc", config.get("norm_before_fc", False))),
        norm_each_auxiliary=bool(config.get("fc_norm") or config.get("use_aux_norm")),
    )
