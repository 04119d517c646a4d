"""Which hidden states the engine captures for given auxiliary layer ids.

Everywhere in this project an auxiliary layer id ``k`` means *the input of decoder layer k*
(equal to the output of layer ``k - 1``), as speculators counts. SGLang reads ids from the
drafter's ``eagle_config.eagle_aux_hidden_state_layer_ids`` and shifts them in a way that
depends on the target's model class. :func:`captured_layers` states what each class does with
the ids it reads, :func:`engine_ids` inverts it.

Source: ``set_eagle3_layers_to_capture`` of each model class of sglang 0.5.23; a test compares
this table with the installed engine.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence


class Convention(enum.StrEnum):
    """What a target class does with the auxiliary layer ids of the drafter."""

    PLUS_ONE = "plus-one"
    """Captures ``id + 1`` (ids name layers by their output)."""
    VERBATIM_UNLESS_FIRST_IS_ONE = "verbatim-unless-first-is-one"
    """Captures ``id``, but ``id + 1`` if the first id is 1 (since 0.5.13)."""
    PLUS_ONE_UNLESS_FINAL = "plus-one-unless-final"
    """Captures ``id + 1``, but ``id`` if the greatest id equals the number of layers."""


_P = Convention.PLUS_ONE
_V = Convention.VERBATIM_UNLESS_FIRST_IS_ONE

CONVENTIONS: dict[str, Convention] = {
    "ApertusForCausalLM": _P,
    "BailingMoEForCausalLM": _P,
    "BailingMoeForCausalLM": _P,
    "BailingMoeV2ForCausalLM": _P,
    "DeepseekV2ForCausalLM": _V,
    "DeepseekV32ForCausalLM": _V,
    "DeepseekV3ForCausalLM": _V,
    "ExaoneMoEForCausalLM": _P,
    "ExaoneMoeForCausalLM": _P,
    "Gemma3ForCausalLM": _P,
    "Gemma3ForConditionalGeneration": _P,
    "Gemma4ForCausalLM": _P,
    "Gemma4ForConditionalGeneration": _P,
    "Glm4MoeForCausalLM": _P,
    "Glm4MoeLiteForCausalLM": _V,
    "GlmMoeDsaForCausalLM": _V,
    "GptOssForCausalLM": Convention.PLUS_ONE_UNLESS_FINAL,
    "InternLM3ForCausalLM": _P,
    "KimiK25ForConditionalGeneration": _V,
    "Llama4ForCausalLM": _P,
    "Llama4ForConditionalGeneration": _P,
    "LlamaForCausalLM": _P,
    "LongcatFlashForCausalLM": _P,
    "MiniMaxM2ForCausalLM": _P,
    "MiniMaxM3SparseForCausalLM": _P,
    "Ministral3ForCausalLM": _P,
    "MistralForCausalLM": _P,
    "MistralLarge3ForCausalLM": _V,
    "Phi3ForCausalLM": _P,
    "Qwen2ForCausalLM": _P,
    "Qwen2MoeForCausalLM": _P,
    "Qwen2_5_VLForConditionalGeneration": _P,
    "Qwen3ForCausalLM": _P,
    "Qwen3MoeForCausalLM": _P,
    "Qwen3NextForCausalLM": _P,
    "Qwen3VLForConditionalGeneration": _P,
    "Qwen3VLMoeForConditionalGeneration": _P,
    "Qwen3_5ForCausalLM": _P,
    "Qwen3_5ForConditionalGeneration": _P,
    "Qwen3_5MoeForCausalLM": _P,
    "Qwen3_5MoeForConditionalGeneration": _P,
    "SarvamMoEForCausalLM": _P,
}
"""Target architectures (``architectures[0]`` of the target) that have an EAGLE-3 hook."""


def default_layers(layers: int) -> list[int]:
    """Auxiliary layers that speculators and SGLang take when none are given.

    Parameters
    ----------
    layers
        Number of decoder layers of the target.
    """
    return [2, layers // 2, layers - 3]


def captured_layers(convention: Convention, ids: Sequence[int] | None, layers: int) -> list[int]:
    """Layers whose input the engine captures for the ids in ``eagle_config``.

    Parameters
    ----------
    convention
        Convention of the target's class.
    ids
        Ids as written in the drafter's config; ``None`` if absent.
    layers
        Number of decoder layers of the target.
    """
    if not ids:
        return default_layers(layers)
    if convention is Convention.VERBATIM_UNLESS_FIRST_IS_ONE and ids[0] != 1:
        return list(ids)
    if convention is Convention.PLUS_ONE_UNLESS_FINAL and max(ids) == layers:
        return list(ids)
    return [layer + 1 for layer in ids]


def engine_ids(convention: Convention, wanted: Sequence[int], layers: int) -> list[int]:
    """Ids to write so that the engine captures ``wanted``.

    Parameters
    ----------
    convention
        Convention of the target's class.
    wanted
        Input-of-layer ids the drafter was trained on, in the order of ``fc``'s columns.
    layers
        Number of decoder layers of the target.

    Raises
    ------
    ValueError
        If the engine cannot capture these layers in this order.
    """
    listed = list(wanted)
    # The engine packs the captured states in the order in which the layers run, whatever
    # order the config lists them in.
    if any(a >= b for a, b in itertools.pairwise(listed)):
        raise ValueError(
            f"auxiliary layers {listed} are not strictly ascending; the engine concatenates "
            "captured states in the order of the layers, so fc would read them permuted. "
            "Extract and train with ascending, distinct layers"
        )
    final_allowed = convention is Convention.PLUS_ONE_UNLESS_FINAL
    last = layers if final_allowed else layers - 1
    if not listed or listed[0] < 0 or listed[-1] > last:
        raise ValueError(
            f"auxiliary layers {listed} must lie within [0, {last}] for a target of {layers} "
            "layers: the engine captures inputs of decoder layers only"
        )
    # The shifted form comes first: where both work it also holds on engines before 0.5.13,
    # which shifted for every target.
    for candidate in ([layer - 1 for layer in listed], listed):
        if captured_layers(convention, candidate, layers) == listed:
            return candidate
    raise ValueError(
        f"auxiliary layers {listed} cannot be written for this target: the engine reads a list "
        "that starts with 1 as shifted by one. Choose a first layer other than 1"
    )
