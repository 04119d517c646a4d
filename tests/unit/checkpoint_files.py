"""Small checkpoints in speculators' layout, and their target's config, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, INNER, HEADS, KEY_HEADS, VOCABULARY, DRAFT_VOCABULARY = 16, 32, 4, 2, 100, 40

TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 10,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rope_theta": 5000.0,
}

TRAINER_CONFIG: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"],
    "auto_map": {"": "config.Eagle3SpeculatorConfig"},
    "draft_vocab_size": DRAFT_VOCABULARY,
    "dtype": "float32",
    "eagle_aux_hidden_state_layer_ids": [2, 5, 7],
    "embed_requires_grad": False,
    "fc_norm": False,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "norm_output": False,
    "speculators_model_type": "eagle3",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HIDDEN // HEADS,
        "layer_types": ["full_attention"],
        "max_position_embeddings": 512,
        "pad_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_window": 2048,
        "use_sliding_window": False,
        "vocab_size": VOCABULARY,
    },
}


def vocabulary_ids() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Target ids of the draft vocabulary: some neighbours, some gaps."""
    ids = np.random.default_rng(7).permutation(VOCABULARY)[:DRAFT_VOCABULARY]
    return np.sort(ids).astype(np.int64)


def trainer_tensors() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return random.standard_normal(shape).astype(np.float32)

    ids = vocabulary_ids()
    head = HIDDEN // HEADS
    return {
        "d2t": ids - np.arange(DRAFT_VOCABULARY, dtype=np.int64),
        "t2d": np.isin(np.arange(VOCABULARY), ids),
        "embed_tokens.weight": weight(VOCABULARY, HIDDEN),
        "fc.weight": weight(HIDDEN, 3 * HIDDEN),
        "norm.weight": weight(HIDDEN),
        "lm_head.weight": weight(DRAFT_VOCABULARY, HIDDEN),
        "layers.0.hidden_norm.weight": weight(HIDDEN),
        "layers.0.input_layernorm.weight": weight(HIDDEN),
        "layers.0.post_attention_layernorm.weight": weight(HIDDEN),
        "layers.0.self_attn.q_proj.weight": weight(HEADS * head, 2 * HIDDEN),
        "layers.0.self_attn.k_proj.weight": weight(KEY_HEADS * head, 2 * HIDDEN),
        "layers.0.self_attn.v_proj.weight": weight(KEY_HEADS * head, 2 * HIDDEN),
        "layers.0.self_attn.o_proj.weight": weight(HIDDEN, HEADS * head),
        "layers.0.mlp.gate_proj.weight": weight(INNER, HIDDEN),
        "layers.0.mlp.up_proj.weight": weight(INNER, HIDDEN),
        "layers.0.mlp.down_proj.weight": weight(HIDDEN, INNER),
    }


def write_target(directory: Path, **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**TARGET_CONFIG, **changes}))
    return directory


def write_checkpoint(
    directory: Path,
    *,
    config: dict[str, Any] | None = None,
    layer: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Write a sound checkpoint with some fields or all tensors replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    decoder = {**TRAINER_CONFIG["transformer_layer_config"], **(layer or {})}
    written = {**TRAINER_CONFIG, "transformer_layer_config": decoder, **(config or {})}
    (directory / "config.json").write_text(json.dumps(written))
    save_file(tensors or trainer_tensors(), directory / "model.safetensors")
    return directory
