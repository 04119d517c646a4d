"""Plain-torch CPU operators under the name SGLang imports its kernels from.

This is a stand-in, not SGLang's ``sgl_kernel``: the CPU build of that package is not published.
It has the operators SGLang 0.5.23 calls for dense Llama-like models with EAGLE-3 on a CPU,
written from their call sites and documented meaning. Anything else raises an error that names
the operator.
"""

from __future__ import annotations

import types

import torch

from . import attention, cache, elementwise, linear, runtime
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
)
from .missing import MissingOperator, missing
from .speculative import (
    build_tree_kernel_efficient_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__version__ = "0.0.0+plain.torch"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

OPERATORS = {
    function.__name__: function
    for function in (
        attention.decode_attention_cpu,
        attention.extend_attention_cpu,
        cache.store_cache_cpu,
        elementwise.fused_add_rmsnorm_cpu,
        elementwise.gelu_and_mul_cpu,
        elementwise.gelu_tanh_and_mul_cpu,
        elementwise.rmsnorm_cpu,
        elementwise.rotary_embedding_cpu,
        elementwise.silu_and_mul_cpu,
        linear.convert_weight_packed,
        linear.weight_packed_linear,
        runtime.init_cpu_threads_env,
        runtime.initialize,
    )
}

# SGLang binds these while it is imported, whatever the model.
BOUND_AT_IMPORT = (
    "apply_rotary_pos_emb_cpu",
    "conv3d_embed_cpu",
    "flash_attn_varlen_func",
    "fused_gdn_gating_cpu",
)


class _Operators(types.ModuleType):
    """``torch.ops.sgl_kernel``: plain functions, called without torch's dispatcher."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        # SGLang asks with hasattr whether an optional operator is there.
        raise AttributeError(str(missing(name)))


def _operators() -> _Operators:
    operators = _Operators("torch.ops.sgl_kernel")
    for name in BOUND_AT_IMPORT:
        setattr(operators, name, MissingOperator(name))
    for name, function in OPERATORS.items():
        setattr(operators, name, function)
    return operators


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(str(missing(name)))


setattr(torch.ops, "sgl_kernel", _operators())  # noqa: B010  (typed torch does not know the name)
