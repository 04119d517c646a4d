"""Give fp32 linear layers the packed path SGLang's CPU engine has for 16-bit weights only.

Without it SGLang multiplies fp32 weights with ``F.linear``. For the few rows of a speculative
verification that costs about twice a single row, because the matrix product repacks the weights
at each call; with weights packed once, up to four rows cost what one row costs. Registered
through SGLang's plugin hooks, which SGLang applies in each of its processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

DTYPE_IS_SUPPORTED = "sglang.srt.layers.amx_utils.dtype_is_supported"
COMPUTE_LM_HEAD = "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head"


def register_hooks() -> None:
    """Register both hooks with SGLang; it applies them when it loads its plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if DTYPE_IS_SUPPORTED in HookRegistry._hooks:
        return
    HookRegistry.register(DTYPE_IS_SUPPORTED, _also_float32, HookType.AROUND)
    HookRegistry.register(COMPUTE_LM_HEAD, _packed_lm_head, HookType.AROUND)


def _also_float32(original: Callable[[torch.Tensor], bool], weight: torch.Tensor) -> bool:
    return weight.dtype == torch.float32 or original(weight)


def _packed_lm_head(
    original: Callable[..., torch.Tensor],
    processor: Any,
    hidden_states: torch.Tensor,
    lm_head: Any,
    embedding_bias: torch.Tensor | None = None,
    **arguments: Any,
) -> torch.Tensor:
    """Compute the logits with a packed copy of an unquantised fp32 head.

    The head keeps its own weight as well: a tied one is also the embedding table.
    """
    weight = getattr(lm_head, "weight", None)
    if (
        not isinstance(weight, torch.Tensor)
        or weight.dtype != torch.float32
        or weight.layout != torch.strided
        or embedding_bias is not None
        or hasattr(lm_head, "apply_lora")
    ):
        return original(processor, hidden_states, lm_head, embedding_bias, **arguments)
    from sgl_kernel.linear import convert_weight_packed, weight_packed_linear

    # A drafter can share its target's head: keyed by the storage, the copy is shared too.
    packed = _packed_heads.get(weight.data_ptr())
    if packed is None:
        packed = _packed_heads[weight.data_ptr()] = convert_weight_packed(weight.data)
    logits: torch.Tensor = weight_packed_linear(hidden_states.to(torch.float32), packed, None, True)
    return logits


_packed_heads: dict[int, torch.Tensor] = {}
