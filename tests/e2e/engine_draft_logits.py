"""Run in a process of its own: first-step logits of a drafter in SGLang's own model class.

``python engine_draft_logits.py DRAFTER INPUT OUTPUT``. Configuration, construction and loading
are SGLang's. Only the paged attention is replaced, by causal attention over the whole sequence.
"""

from __future__ import annotations

import sys
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


def main(drafter: str, inputs: str, output: str) -> None:
    # SGLang can be imported only once the process is prepared for it.
    from drafter_sglang_cpu import server_process

    server_process.prepare()
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
    from sglang.srt.model_loader.weight_utils import safetensors_weights_iterator
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs
    from transformers import AutoConfig

    arguments = ServerArgs(
        model_path=drafter, device="cpu", dtype="float32", skip_tokenizer_init=True
    )
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0))
    init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=rendezvous()
    )
    initialize_model_parallel(backend="gloo")
    config = AutoConfig.from_pretrained(drafter)
    torch.set_default_dtype(torch.float32)
    model = LlamaForCausalLMEagle3(config)
    # What the loader leaves alone must show in the logits.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    model.load_weights(safetensors_weights_iterator([f"{drafter}/model.safetensors"]))
    given = load_file(inputs)
    model.set_embed(torch.nn.Parameter(given["embeddings"], requires_grad=False))
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.attn = CausalAttention(
            attention.num_heads, attention.num_kv_heads, attention.head_dim
        )
    with torch.no_grad():
        hidden, (fed_back,) = model.model(
            given["input_ids"],
            given["positions"],
            SimpleNamespace(
                mm_input_embeds=None,
                forward_mode=SimpleNamespace(is_extend=lambda: False),
                spec_info=SimpleNamespace(hidden_states=given["hidden_states"]),
            ),
        )
        logits = hidden @ model.lm_head.weight[: config.draft_vocab_size].T
    results = {"logits": logits, "fed_back": fed_back}
    if model.hot_token_id is not None:
        results["target_ids"] = model.hot_token_id
    save_file({name: tensor.contiguous() for name, tensor in results.items()}, output)


def rendezvous() -> str:
    return f"file://{Path(sys.argv[3]).resolve()}.rendezvous"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sandbox"))
    main(*sys.argv[1:])
