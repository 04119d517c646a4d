"""Run in a process of its own: first-step logits of a drafter in SGLang's own model class.

``python engine_draft_logits.py CASE...`` reads ``CASE/drafter`` and ``CASE/inputs.safetensors`` and
writes ``CASE/outputs.safetensors``. Configuration, construction and loading
are SGLang's. Only the paged attention is replaced, by causal attention over the whole sequence.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file


class CausalAttention(torch.nn.Module):
    """Attention of one sequence over itself, in place of the paged one."""

    def __init__(self, heads: int, key_heads: int, head_size: int) -> None:
        super().__init__()
        self.sizes = heads, key_heads, head_size

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: object
    ) -> torch.Tensor:
        heads, key_heads, head_size = self.sizes

        def split(tensor: torch.Tensor, count: int) -> torch.Tensor:
            return tensor.view(1, -1, count, head_size).transpose(1, 2)

        mixed = torch.nn.functional.scaled_dot_product_attention(
            split(q, heads),
            split(k, key_heads),
            split(v, key_heads),
            is_causal=True,
            enable_gqa=True,
        )
        return mixed.transpose(1, 2).reshape(-1, heads * head_size)


def main(cases: list[Path]) -> None:
    # SGLang can be imported only once the process is prepared for it.
    from drafter_sglang_cpu import server_process

    server_process.prepare()
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path=str(cases[0] / "drafter"),
        device="cpu",
        dtype="float32",
        skip_tokenizer_init=True,
    )
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0))
    with tempfile.TemporaryDirectory() as directory:
        init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            backend="gloo",
            distributed_init_method=f"file://{directory}/rendezvous",
        )
        initialize_model_parallel(backend="gloo")
        for case in cases:
            results = first_step(case / "drafter", load_file(case / "inputs.safetensors"))
            save_file(results, case / "outputs.safetensors")


def first_step(drafter: Path, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Logits of shape (tokens, draft vocabulary), and the engine's map of draft ids."""
    from sglang.srt.model_loader.weight_utils import safetensors_weights_iterator
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(drafter)
    torch.set_default_dtype(torch.float32)
    model = LlamaForCausalLMEagle3(config)
    # What the loader leaves alone must show in the logits.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    model.load_weights(safetensors_weights_iterator([str(drafter / "model.safetensors")]))
    model.set_embed(torch.nn.Parameter(given["embeddings"], requires_grad=False))
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.attn = CausalAttention(
            attention.num_heads, attention.num_kv_heads, attention.head_dim
        )
    with torch.no_grad():
        hidden, _ = model.model(
            given["input_ids"],
            given["positions"],
            SimpleNamespace(
                mm_input_embeds=None,
                forward_mode=SimpleNamespace(is_extend=lambda: False),
                spec_info=SimpleNamespace(hidden_states=given["hidden_states"]),
            ),
        )
        logits = hidden @ model.lm_head.weight[: config.draft_vocab_size].T
    return {"logits": logits.contiguous(), "target_ids": model.hot_token_id}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sandbox"))
    main([Path(argument) for argument in sys.argv[1:]])
