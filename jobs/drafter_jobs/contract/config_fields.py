"""Config fields of a Llama-shaped drafter: defaults, and what the engine derives from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LLAMA_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
"""Defaults of transformers' ``LlamaConfig``.

Speculators saves only the fields that differ from them; a test compares this table with the
installed transformers.
"""

DEFAULT_ROPE_THETA = 10000.0

CONTEXT_LENGTH_FIELDS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
"""Fields SGLang reads a context length from, in its order of preference."""

TEXT_CONFIG_FIELDS = ("thinker_config", "llm_config", "language_config", "text_config")
"""Fields that may nest the language model's config in a multimodal one, in SGLang's order."""

MAX_POSITION_FREE_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""RoPE types whose angles do not depend on ``max_position_embeddings``.

``yarn`` and ``llama3`` belong here only with ``original_max_position_embeddings``, without
which the engine takes ``max_position_embeddings`` in its place.
"""

ENGINE_DTYPES = ("bfloat16", "float16", "float32")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a target's config."""
    for field in TEXT_CONFIG_FIELDS:
        nested = config.get(field)
        if isinstance(nested, Mapping):
            return nested
    return config


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE settings in one form, from either layout of a config.

    Transformers 5 writes ``rope_parameters`` (with ``rope_theta`` inside), transformers 4
    ``rope_theta`` and ``rope_scaling``.

    Returns
    -------
    dict
        With at least ``rope_type`` and ``rope_theta``.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = {key: value for key, value in found.items() if value is not None}
    rope_type = rope.pop("type", None)
    rope.setdefault("rope_type", rope_type or "default")
    rope.setdefault("rope_theta", config.get("rope_theta") or DEFAULT_ROPE_THETA)
    return rope


def context_factor(rope: Mapping[str, Any]) -> float:
    """Return the factor by which SGLang multiplies the context length for RoPE scaling."""
    if "original_max_position_embeddings" in rope or rope["rope_type"] == "llama3":
        return 1.0
    return float(rope.get("factor") or 1.0)


def context_length(config: Mapping[str, Any]) -> int:
    """Context length in tokens that SGLang derives from a config.

    Source: ``get_context_length`` of sglang 0.5.23.
    """
    factor = context_factor(rope_parameters(config))
    for field in CONTEXT_LENGTH_FIELDS:
        value = config.get(field)
        if value is not None:
            return int(factor * value)
    return 2048
