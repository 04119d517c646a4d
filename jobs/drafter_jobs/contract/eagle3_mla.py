"""Tensors of SGLang's ``Eagle3DeepseekV2ForCausalLM``, the drafter with latent attention.

Source: ``models/kimi_k25_eagle3.py`` of sglang 0.5.23. Drafters of this class come from other
trainers; speculators trains Llama layers for every target, so this table serves the check of a
directory only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafter_jobs.contract.eagle3_llama import (
    DEFAULT_AUXILIARY_COUNT,
    ID_DTYPES,
    ExpectedTensor,
)

ARCHITECTURE = "Eagle3DeepseekV2ForCausalLM"


def expected_tensors(config: Mapping[str, Any]) -> dict[str, ExpectedTensor]:
    """Return the exact set of tensors, by name without ``model.`` and with ``layers.0.``.

    Parameters
    ----------
    config
        Flat config of the drafter.

    Raises
    ------
    KeyError
        If a required field is absent; its argument is the field's name.
    """
    hidden = int(config["hidden_size"])
    heads = int(config["num_attention_heads"])
    query_rank, key_rank = int(config["q_lora_rank"]), int(config["kv_lora_rank"])
    rope_size, plain_size = int(config["qk_rope_head_dim"]), int(config["qk_nope_head_dim"])
    value_size, inner = int(config["v_head_dim"]), int(config["intermediate_size"])
    eagle = config.get("eagle_config") or {}
    ids = eagle.get("eagle_aux_hidden_state_layer_ids")
    count = config.get("num_aux_hidden_states") or (len(ids) if ids else DEFAULT_AUXILIARY_COUNT)
    target_hidden = int(config.get("target_hidden_size") or hidden)
    draft_vocabulary = int(config.get("draft_vocab_size") or config["vocab_size"])
    attention, layer = "layers.0.self_attn", "layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, target_hidden * int(count)),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft_vocabulary, hidden),
        f"{layer}.hidden_norm.weight": (hidden,),
        f"{layer}.input_layernorm.weight": (hidden,),
        f"{layer}.post_attention_layernorm.weight": (hidden,),
        f"{attention}.q_a_proj.weight": (query_rank, 2 * hidden),
        f"{attention}.q_a_layernorm.weight": (query_rank,),
        f"{attention}.q_b_proj.weight": (heads * (plain_size + rope_size), query_rank),
        f"{attention}.kv_a_proj_with_mqa.weight": (key_rank + rope_size, 2 * hidden),
        f"{attention}.kv_a_layernorm.weight": (key_rank,),
        f"{attention}.kv_b_proj.weight": (heads * (plain_size + value_size), key_rank),
        f"{attention}.o_proj.weight": (hidden, heads * value_size),
        f"{layer}.mlp.gate_proj.weight": (inner, hidden),
        f"{layer}.mlp.up_proj.weight": (inner, hidden),
        f"{layer}.mlp.down_proj.weight": (hidden, inner),
    }
    if config.get("fc_norm") or config.get("use_aux_norm"):
        shapes |= {f"fc_norm.{index}.weight": (target_hidden,) for index in range(int(count))}
    expected = {name: ExpectedTensor(dimensions) for name, dimensions in shapes.items()}
    if draft_vocabulary != int(config["vocab_size"]):
        expected["d2t"] = ExpectedTensor((draft_vocabulary,), ID_DTYPES)
    return expected
