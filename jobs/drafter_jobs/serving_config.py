"""Translate a speculators EAGLE-3 config into the one SGLang reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drafter_jobs.contract.auxiliary_layers import default_layers, engine_ids
from drafter_jobs.contract.config_fields import (
    LLAMA_DEFAULTS,
    MAX_POSITION_FREE_ROPE_TYPES,
    context_factor,
    context_length,
    rope_parameters,
)
from drafter_jobs.contract.eagle3_llama import ARCHITECTURE
from drafter_jobs.contract.target_facts import TargetFacts

COPIED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "initializer_range",
    "attention_bias",
    "mlp_bias",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


@dataclass
class Translation:
    """Result of a translation.

    Attributes
    ----------
    config
        For SGLang; without nulls.
    trained_layers
        Auxiliary layers the drafter was trained on (input-of-layer ids).
    written_layers
        The same in the engine's convention.
    faults
        Reasons why no edit makes the drafter servable; empty if it is.
    notes
        What a user may want to know.
    """

    config: dict[str, Any] = field(default_factory=dict)
    trained_layers: list[int] = field(default_factory=list)
    written_layers: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def translate_config(
    source: Mapping[str, Any],
    target: TargetFacts,
    dtype: str,
    extracted_layers: Sequence[int] | None = None,
) -> Translation:
    """Translate the config of a speculators checkpoint.

    Parameters
    ----------
    source
        ``config.json`` of the checkpoint.
    target
        Facts about the target the drafter will serve.
    dtype
        The type in which the engine shall compute.
    extracted_layers
        Auxiliary layers recorded when hidden states were extracted; ``None`` if unknown.

    Returns
    -------
    Translation
        With ``faults`` if the drafter cannot be served.
    """
    result = Translation()
    layer = source.get("transformer_layer_config")
    if source.get("speculators_model_type") != "eagle3" or not isinstance(layer, Mapping):
        result.faults.append(
            "config.json is not of a speculators EAGLE-3 drafter (speculators_model_type is "
            f"{source.get('speculators_model_type')!r}, 'eagle3' is needed)"
        )
        return result
    decoder = {**LLAMA_DEFAULTS, **{k: v for k, v in layer.items() if v is not None}}
    result.faults += _unservable_settings(source, decoder, target)
    result.faults += _disagreements(decoder, target)
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "dtype": dtype,
        # Both names: transformers 4 reads torch_dtype only, and without it the engine computes
        # in float16.
        "torch_dtype": dtype,
        # True would make the engine use the embeddings as the head.
        "tie_word_embeddings": False,
    }
    config |= {name: decoder[name] for name in COPIED_FIELDS if name in decoder}
    config.setdefault("num_key_value_heads", decoder["num_attention_heads"])
    config.setdefault("head_dim", decoder["hidden_size"] // decoder["num_attention_heads"])
    config["draft_vocab_size"] = source.get("draft_vocab_size") or decoder["vocab_size"]
    for name in ("norm_before_fc", "norm_output", "fc_norm"):
        if source.get(name):
            config[name] = True
    if config.get("norm_before_fc"):
        result.notes.append("norm_before_fc needs SGLang 0.5.17 or newer")
    _set_rope(config, decoder, target, result)
    _set_auxiliary_layers(config, source, target, extracted_layers, result)
    result.config = config
    return result


def _unservable_settings(
    source: Mapping[str, Any], decoder: Mapping[str, Any], target: TargetFacts
) -> list[str]:
    faults = []
    if source.get("norm_before_residual"):
        faults.append(
            "norm_before_residual is true: SGLang always adds the un-normalised hidden state, "
            "and no edit of the weights makes up for it; train with --no-norm-before-residual"
        )
    if source.get("embed_requires_grad"):
        faults.append(
            "embed_requires_grad is true: SGLang replaces the drafter's embeddings by the "
            "target's, so trained ones are lost; train with frozen embeddings"
        )
    if decoder.get("model_type", "llama") != "llama":
        faults.append(
            f"transformer_layer_config.model_type is {decoder['model_type']!r}: SGLang's "
            f"{ARCHITECTURE} has Llama layers only; train with --draft-arch llama"
        )
    if decoder["num_hidden_layers"] != 1:
        faults.append(
            f"transformer_layer_config.num_hidden_layers is {decoder['num_hidden_layers']}: "
            "this export supports one layer; train with --num-layers 1"
        )
    if decoder["hidden_act"] != "silu":
        faults.append(
            f"transformer_layer_config.hidden_act is {decoder['hidden_act']!r}: SGLang's Llama "
            "drafter supports silu only; train with --hidden-act silu"
        )
    for name in ("attention_bias", "mlp_bias"):
        if decoder[name]:
            faults.append(
                f"transformer_layer_config.{name} is true: SGLang's {ARCHITECTURE} has no such "
                "bias and would drop it"
            )
    window = _sliding_window(decoder)
    if window is not None and window < target.context_length:
        faults.append(
            f"the drafter attends within a sliding window of {window} tokens, the server over "
            f"the whole context of {target.context_length}; train with "
            "--full-attention-indices 0"
        )
    return faults


def _sliding_window(decoder: Mapping[str, Any]) -> int | None:
    types = decoder.get("layer_types")
    if types is None:
        slides = bool(decoder.get("use_sliding_window"))
    else:
        slides = "sliding_attention" in types
    window = decoder.get("sliding_window")
    return int(window) if slides and window is not None else None


def _disagreements(decoder: Mapping[str, Any], target: TargetFacts) -> list[str]:
    faults = []
    for name, wanted in (
        ("hidden_size", target.hidden_size),
        ("vocab_size", target.vocabulary_size),
    ):
        if decoder[name] != wanted:
            faults.append(
                f"transformer_layer_config.{name} is {decoder[name]}, the target's is {wanted}; "
                "the drafter was trained for another target"
            )
    return faults


def _set_rope(
    config: dict[str, Any], decoder: Mapping[str, Any], target: TargetFacts, result: Translation
) -> None:
    rope = rope_parameters(decoder)
    # The layout of transformers 4, which transformers 5 reads as well; the other way round the
    # base would silently become 10000.
    config["rope_theta"] = rope["rope_theta"]
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    if scaling != {"rope_type": "default"}:
        config["rope_scaling"] = scaling
    for name in ("partial_rotary_factor", "attention_factor"):
        if rope.get(name) not in (None, 1, 1.0):
            result.faults.append(
                f"rope_parameters.{name} is {rope[name]}: SGLang's Llama drafter does not read it"
            )
    own = context_length({**decoder, "rope_parameters": rope})
    positions = int(decoder["max_position_embeddings"])
    config["max_position_embeddings"] = positions
    if own >= target.context_length:
        return
    rope_type = rope["rope_type"]
    anchored = "original_max_position_embeddings" in rope or rope_type not in {"yarn", "llama3"}
    if rope_type not in MAX_POSITION_FREE_ROPE_TYPES or not anchored:
        result.faults.append(
            f"the drafter's context length of {own} tokens is below the target's "
            f"{target.context_length}, which SGLang refuses, and max_position_embeddings cannot "
            f"be raised because it sets the angles of rope_type {rope_type!r}; train with "
            f"max_position_embeddings {target.context_length}"
        )
        return
    config["max_position_embeddings"] = math.ceil(target.context_length / context_factor(rope))
    result.notes.append(
        f"max_position_embeddings raised from {positions} to "
        f"{config['max_position_embeddings']}: SGLang refuses a drafter whose context is shorter "
        f"than the target's. The angles of rope_type {rope_type!r} do not depend on it; beyond "
        "the length seen in training the drafter may guess worse, the output stays right"
    )


def _set_auxiliary_layers(
    config: dict[str, Any],
    source: Mapping[str, Any],
    target: TargetFacts,
    extracted_layers: Sequence[int] | None,
    result: Translation,
) -> None:
    stated = source.get("eagle_aux_hidden_state_layer_ids")
    trained = [int(layer) for layer in stated or default_layers(target.layers)]
    result.trained_layers = trained
    if extracted_layers is not None and list(extracted_layers) != trained:
        result.faults.append(
            f"the checkpoint says auxiliary layers {trained}, the hidden states were extracted "
            f"from {list(extracted_layers)}; train again with the layers of the extraction"
        )
    try:
        result.written_layers = engine_ids(target.convention, trained, target.layers)
    except ValueError as error:
        result.faults.append(str(error))
        return
    config["eagle_config"] = {
        "use_aux_hidden_state": True,
        "eagle_aux_hidden_state_layer_ids": result.written_layers,
    }
    config["num_aux_hidden_states"] = len(trained)
