"""Tell what SGLang would make of a drafter's directory, whoever made it.

The engine's loaders ignore keys they do not know and leave parameters uninitialised, so the
names are followed here the way the loaders do it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drafter_jobs.contract import eagle3_llama, eagle3_mla
from drafter_jobs.contract.auxiliary_layers import captured_layers
from drafter_jobs.contract.config_fields import context_length
from drafter_jobs.contract.eagle3_llama import ExpectedTensor
from drafter_jobs.contract.target_facts import TargetFacts
from drafter_jobs.export_plan import non_finite_faults
from drafter_jobs.safetensors_header import Tensor
from drafter_jobs.speculators_checkpoint import Checkpoint
from drafter_jobs.tensor_stream import read_integers
from drafter_jobs.vocabulary_map import find_faults

TRAINER_ARCHITECTURES = frozenset({"Eagle3DraftModel", "Eagle3Speculator"})

_LEGACY_NAMES = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}
"""Substitutions of the Llama drafter's loader."""


class Severity(enum.StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """The server would not start, or would accept next to nothing."""
    WARNING = "warning"
    """Works under a condition the finding names."""
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One thing found in a directory."""

    severity: Severity
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}"


def check_drafter(checkpoint: Checkpoint, target: TargetFacts | None) -> list[Finding]:
    """List what SGLang would refuse, ignore or leave uninitialised.

    Parameters
    ----------
    checkpoint
        The opened directory.
    target
        The target it is meant for; ``None`` skips the comparison.

    Returns
    -------
    list of Finding
        Errors first.
    """
    config = checkpoint.config
    architecture = str((config.get("architectures") or ["none"])[0])
    if architecture in TRAINER_ARCHITECTURES or "transformer_layer_config" in config:
        return [
            Finding(
                Severity.ERROR,
                f"this is a checkpoint of speculators ({architecture}), which SGLang does not "
                "load; convert it with drafter-export CHECKPOINT OUT --target MODEL",
            )
        ]
    findings: list[Finding] = []
    try:
        if architecture == eagle3_llama.ARCHITECTURE:
            findings += _llama_config_findings(config)
            expected = _llama_expected(config)
            findings += _tensor_findings(checkpoint.tensors, expected, _llama_name, config)
        elif architecture == eagle3_mla.ARCHITECTURE:
            expected = eagle3_mla.expected_tensors(config)
            findings += _tensor_findings(checkpoint.tensors, expected, _mla_name, config)
        else:
            return [
                Finding(
                    Severity.ERROR,
                    f"architectures is [{architecture}]; SGLang's EAGLE-3 drafters are "
                    f"{eagle3_llama.ARCHITECTURE} and {eagle3_mla.ARCHITECTURE}",
                )
            ]
        findings += _common_config_findings(config)
        if target is not None:
            findings += _target_findings(config, target)
    except KeyError as error:
        findings.append(Finding(Severity.ERROR, f"config.json lacks {error.args[0]}"))
    except (TypeError, ValueError) as error:
        findings.append(
            Finding(Severity.ERROR, f"config.json has a value of a wrong type: {error}")
        )
    findings += [Finding(Severity.ERROR, text) for text in non_finite_faults(checkpoint.tensors)]
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _llama_expected(config: Mapping[str, Any]) -> dict[str, ExpectedTensor]:
    shape = eagle3_llama.shape_of(config)
    target_hidden = int(config.get("target_hidden_size") or shape.hidden_size)
    expected: dict[str, ExpectedTensor] = {}
    for name, tensor in eagle3_llama.expected_tensors(shape).items():
        canonical = _llama_name(name)
        if canonical == "fc.weight":
            tensor = ExpectedTensor((shape.hidden_size, target_hidden * shape.auxiliary_count))
        elif canonical == "input_norm.weight":
            tensor = ExpectedTensor((target_hidden * shape.auxiliary_count,))
        elif canonical.startswith("fc_norm."):
            tensor = ExpectedTensor((target_hidden,))
        expected[canonical] = tensor
    for layer in range(1, int(config["num_hidden_layers"])):
        for name in [name for name in expected if name.startswith("layers.0.")]:
            tensor = expected[name]
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                tensor = ExpectedTensor((tensor.shape[0], shape.hidden_size))
            if not name.endswith("input_layernorm.weight"):
                expected[name.replace("layers.0.", f"layers.{layer}.", 1)] = tensor
    if target_hidden != shape.hidden_size:
        expected["embed_tokens.weight"] = ExpectedTensor((shape.vocabulary_size, shape.hidden_size))
    if config.get("tie_word_embeddings") or not config.get("draft_vocab_size"):
        expected.pop("lm_head.weight")
    return expected


def _llama_name(name: str) -> str:
    for old, new in _LEGACY_NAMES.items():
        name = name.replace(old, new)
    if "d2t" in name:
        return "d2t"
    if "t2d" in name:
        return "t2d"
    inner = name.removeprefix("model.")
    return name if inner.startswith("lm_head.") else inner


def _mla_name(name: str) -> str:
    if name == "d2t" or name.endswith(".d2t"):
        return "d2t"
    if name == "t2d" or name.endswith(".t2d"):
        return "t2d"
    if name.startswith("midlayer."):
        return "layers.0." + name.removeprefix("midlayer.")
    return name


def _tensor_findings(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, ExpectedTensor],
    canonical_name: Callable[[str], str],
    config: Mapping[str, Any],
) -> list[Finding]:
    findings: list[Finding] = []
    found: dict[str, tuple[str, Tensor]] = {}
    for name, tensor in tensors.items():
        canonical = canonical_name(name)
        if canonical in found and canonical != "t2d":
            findings.append(
                Finding(
                    Severity.ERROR,
                    f"{found[canonical][0]} and {name} load into the same parameter; whichever "
                    "comes last wins",
                )
            )
        found[canonical] = (name, tensor)
    for canonical in sorted(expected.keys() - found.keys()):
        findings.append(Finding(Severity.ERROR, _missing_message(canonical)))
    for canonical in sorted(found.keys() - expected.keys()):
        findings.append(_surplus_finding(canonical, found[canonical][0], config))
    for canonical in sorted(found.keys() & expected.keys()):
        name, tensor = found[canonical]
        wanted = expected[canonical]
        if tensor.shape != wanted.shape:
            findings.append(
                Finding(
                    Severity.ERROR,
                    f"{name} has shape {list(tensor.shape)}, config.json makes it "
                    f"{list(wanted.shape)}; the server would not start",
                )
            )
        elif tensor.dtype not in wanted.dtypes:
            findings.append(
                Finding(
                    Severity.WARNING,
                    f"{name} is of dtype {tensor.dtype}; this check covers "
                    f"{', '.join(sorted(wanted.dtypes))} only",
                )
            )
    if "d2t" in found and "d2t" in expected:
        offsets = found["d2t"][1]
        if offsets.dtype in {"I64", "I32"} and offsets.shape == expected["d2t"].shape:
            faults = find_faults(read_integers(offsets), int(config["vocab_size"]))
            findings += [Finding(Severity.ERROR, fault) for fault in faults]
    return findings


def _missing_message(canonical: str) -> str:
    if canonical == "d2t":
        return (
            "d2t is missing though draft_vocab_size is smaller than vocab_size: draft ids would "
            "be taken for target ids"
        )
    return (
        f"{canonical} is missing: the engine leaves it uninitialised without a word, and nearly "
        "every draft token is rejected"
    )


def _surplus_finding(canonical: str, name: str, config: Mapping[str, Any]) -> Finding:
    if canonical == "t2d":
        return Finding(Severity.NOTE, f"{name} is ignored by the engine")
    if canonical == "embed_tokens.weight":
        return Finding(Severity.NOTE, f"{name} is replaced by the target's embeddings")
    if canonical == "lm_head.weight":
        why = (
            "tie_word_embeddings is true, so the embeddings are the head"
            if config.get("tie_word_embeddings")
            else "draft_vocab_size is null, so the target's head is used"
        )
        return Finding(Severity.WARNING, f"{name} is ignored: {why}")
    if canonical == "d2t":
        return Finding(
            Severity.WARNING, f"{name} is applied though draft_vocab_size equals vocab_size"
        )
    return Finding(
        Severity.ERROR,
        f"{name} is ignored by the engine: the model it serves is not the one that was trained",
    )


def _llama_config_findings(config: Mapping[str, Any]) -> list[Finding]:
    findings = []
    if "target_hidden_size" in config and config["target_hidden_size"] is None:
        findings.append(
            Finding(
                Severity.ERROR,
                "target_hidden_size is null: the engine multiplies by it and does not start; "
                "remove the field",
            )
        )
    if "draft_vocab_size" not in config and not config.get("tie_word_embeddings"):
        findings.append(
            Finding(Severity.ERROR, "draft_vocab_size is absent: the engine does not start")
        )
    if config.get("hidden_act", "silu") != "silu":
        findings.append(
            Finding(Severity.ERROR, f"hidden_act is {config['hidden_act']!r}, silu is needed")
        )
    window = config.get("sliding_window")
    types = config.get("layer_types") or []
    if window and ("sliding_attention" in types or config.get("use_sliding_window")):
        findings.append(
            Finding(
                Severity.WARNING,
                f"sliding_window is {window}: the engine applies it only with "
                f"--speculative-draft-window-size {window}",
            )
        )
    return findings


def _common_config_findings(config: Mapping[str, Any]) -> list[Finding]:
    findings = []
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype in (None, "float32"):
        findings.append(
            Finding(
                Severity.WARNING,
                f"dtype is {dtype or 'absent'}: the engine computes in float16 unless --dtype is "
                "given; write bfloat16",
            )
        )
    if "num_nextn_predict_layers" in config:
        findings.append(
            Finding(
                Severity.WARNING,
                f"num_nextn_predict_layers is {config['num_nextn_predict_layers']}: the engine "
                "sizes the drafter's KV cache by it; remove the field",
            )
        )
    if config.get("norm_before_residual"):
        findings.append(
            Finding(
                Severity.ERROR,
                "norm_before_residual is true: the engine does not read it and adds the "
                "un-normalised hidden state",
            )
        )
    eagle = config.get("eagle_config") or {}
    top = config.get("eagle_aux_hidden_state_layer_ids")
    if top and not eagle.get("eagle_aux_hidden_state_layer_ids"):
        findings.append(
            Finding(
                Severity.WARNING,
                f"eagle_aux_hidden_state_layer_ids {top} stands outside eagle_config, where the "
                "target does not read it: it captures its default layers",
            )
        )
    if eagle.get("use_aux_hidden_state") is False:
        findings.append(
            Finding(
                Severity.ERROR,
                "eagle_config.use_aux_hidden_state is false: the target captures nothing for fc",
            )
        )
    return findings


def _target_findings(config: Mapping[str, Any], target: TargetFacts) -> list[Finding]:
    findings = []
    hidden = int(config.get("target_hidden_size") or config["hidden_size"])
    for name, value, wanted in (
        ("hidden size", hidden, target.hidden_size),
        ("vocab_size", int(config["vocab_size"]), target.vocabulary_size),
    ):
        if value != wanted:
            findings.append(Finding(Severity.ERROR, f"{name} is {value}, the target's is {wanted}"))
    own = context_length(config)
    if own < target.context_length:
        findings.append(
            Finding(
                Severity.ERROR,
                f"the context length is {own} tokens, the target's {target.context_length}: the "
                "server does not start; raise max_position_embeddings, or serve with "
                f"--context-length {own}",
            )
        )
    eagle = config.get("eagle_config") or {}
    ids = eagle.get("eagle_aux_hidden_state_layer_ids")
    layers = captured_layers(target.convention, ids, target.layers)
    findings.append(
        Finding(
            Severity.NOTE,
            f"the engine feeds it the inputs of the target's layers {layers}; compare with the "
            "layers it was trained on",
        )
    )
    distinct = len(set(layers)) == len(layers)
    if not distinct or min(layers) < 0 or max(layers) > target.layers:
        findings.append(
            Finding(
                Severity.ERROR,
                f"auxiliary layers {layers} are not distinct layers of a target of {target.layers}",
            )
        )
    return findings
