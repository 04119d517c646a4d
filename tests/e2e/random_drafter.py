"""A drafter of random weights in SGLang's layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def make_random_drafter(
    target: Path, directory: Path, draft_vocabulary: int = 320, seed: int = 0
) -> Path:
    """Write a one-layer EAGLE-3 drafter for a Llama; the target accepts next to nothing of it."""
    config = json.loads((target / "config.json").read_bytes())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or hidden // heads
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.05

    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    weights = {
        "fc.weight": random(hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": random(draft_vocabulary, hidden),
        "d2t": torch.zeros(draft_vocabulary, dtype=torch.int64),
        "midlayer.self_attn.q_proj.weight": random(heads * width, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": random(key_heads * width, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": random(key_heads * width, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": random(hidden, heads * width),
        "midlayer.mlp.gate_proj.weight": random(inner, hidden),
        "midlayer.mlp.up_proj.weight": random(inner, hidden),
        "midlayer.mlp.down_proj.weight": random(hidden, inner),
        **{f"midlayer.{norm}.weight": torch.ones(hidden) for norm in norms},
    }
    copied = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "rms_norm_eps", "vocab_size", "max_position_embeddings", "rope_parameters",
    )  # fmt: skip
    directory.mkdir(parents=True)
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(
        json.dumps(
            {name: config[name] for name in copied if name in config}
            | {
                "architectures": ["LlamaForCausalLMEagle3"],
                "model_type": "llama",
                "head_dim": width,
                "num_hidden_layers": 1,
                "draft_vocab_size": draft_vocabulary,
                "tie_word_embeddings": False,
                "dtype": "float32",
            }
        )
    )
    return directory
