"""Decide how a speculators checkpoint becomes a drafter SGLang can serve, or why it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drafter_jobs.contract.eagle3_llama import (
    DraftShape,
    ExpectedTensor,
    expected_tensors,
    shape_of,
)
from drafter_jobs.contract.target_facts import TargetFacts
from drafter_jobs.safetensors_header import Tensor
from drafter_jobs.serving_config import Translation, translate_config
from drafter_jobs.speculators_checkpoint import Checkpoint
from drafter_jobs.tensor_stream import count_non_finite, read_integers
from drafter_jobs.vocabulary_map import find_faults

TRAINER_LAYER_PREFIX = "layers.0."
ENGINE_LAYER_PREFIX = "midlayer."

DROPPED_TENSORS: dict[str, str] = {
    "t2d": "the engine needs the map from draft to target only",
    "embed_tokens.weight": "the engine shares the target's embeddings",
    "verifier_lm_head.weight": "a frozen copy of the target's head, used in training only",
    "verifier_norm.weight": "a frozen copy of the target's norm, used in training only",
}
"""Tensors of the trainer that the engine ignores or replaces, with the reason."""


@dataclass(frozen=True)
class KeyDifferences:
    """How a set of tensors differs from the expected one; all empty if it does not."""

    missing: list[str]
    unexpected: list[str]
    misshapen: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """One sentence for each kind of difference."""
        return [
            f"{len(names)} {kind}: {', '.join(names)}"
            for kind, names in (
                ("missing", self.missing),
                ("unexpected", self.unexpected),
                ("misshapen", self.misshapen),
            )
            if names
        ]


@dataclass(frozen=True)
class ExportPlan:
    """What to write.

    Attributes
    ----------
    translation
        The config, and what was noticed.
    tensors
        Source of each tensor by its name in the output.
    renamed
        New name by old name, for the names that change.
    dropped
        Reason by name, for the tensors left out.
    faults
        Reasons against writing anything; empty if the drafter can be served.
    """

    translation: Translation
    tensors: dict[str, Tensor]
    renamed: dict[str, str]
    dropped: dict[str, str]
    faults: list[str]


def plan_export(
    checkpoint: Checkpoint,
    target: TargetFacts,
    dtype: str,
    extracted_layers: Sequence[int] | None = None,
) -> ExportPlan:
    """Compare a checkpoint with the engine's contract and the target.

    Reads headers and the vocabulary map only.

    Parameters
    ----------
    checkpoint
        The trainer's checkpoint.
    target
        Facts about the target.
    dtype
        The type in which the engine shall compute.
    extracted_layers
        Auxiliary layers recorded at extraction; ``None`` if unknown.
    """
    translation = translate_config(checkpoint.config, target, dtype, extracted_layers)
    faults = list(translation.faults)
    if not translation.config:
        return ExportPlan(translation, {}, {}, {}, faults)
    tensors: dict[str, Tensor] = {}
    renamed: dict[str, str] = {}
    dropped: dict[str, str] = {}
    for name, tensor in checkpoint.tensors.items():
        if name in DROPPED_TENSORS:
            dropped[name] = DROPPED_TENSORS[name]
            continue
        new = _engine_name(name)
        if new in tensors:
            faults.append(
                f"both {name} and {new} are present: the checkpoint mixes the trainer's and the "
                "engine's names, and which is newer is unknown"
            )
        if new != name:
            renamed[name] = new
        tensors[new] = tensor
    shape = shape_of(translation.config)
    faults += compare_tensors(tensors, expected_tensors(shape)).sentences()
    faults += vocabulary_faults(tensors.get("d2t"), checkpoint.tensors.get("t2d"), shape)
    return ExportPlan(translation, tensors, renamed, dropped, faults)


def _engine_name(name: str) -> str:
    if name.startswith(TRAINER_LAYER_PREFIX):
        return ENGINE_LAYER_PREFIX + name.removeprefix(TRAINER_LAYER_PREFIX)
    return name


def compare_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, ExpectedTensor]
) -> KeyDifferences:
    """Compare names, shapes and dtypes with the contract."""
    misshapen = []
    for name in sorted(tensors.keys() & expected.keys()):
        found, wanted = tensors[name], expected[name]
        if found.shape != wanted.shape:
            misshapen.append(f"{name} {list(found.shape)} instead of {list(wanted.shape)}")
        elif found.dtype not in wanted.dtypes:
            misshapen.append(
                f"{name} {found.dtype} instead of {' or '.join(sorted(wanted.dtypes))}"
            )
    return KeyDifferences(
        missing=sorted(expected.keys() - tensors.keys()),
        unexpected=sorted(tensors.keys() - expected.keys()),
        misshapen=misshapen,
    )


def vocabulary_faults(
    offsets: Tensor | None, members: Tensor | None, shape: DraftShape
) -> list[str]:
    """Check ``d2t``, and ``t2d`` against it, where they have the right form."""
    if offsets is None:
        return []
    if offsets.dtype not in {"I64", "I32"} or offsets.shape != (shape.draft_vocabulary_size,):
        return []
    marked = None
    if members is not None and members.dtype in {"BOOL", "U8"}:
        marked = read_integers(members)
    return find_faults(read_integers(offsets), shape.vocabulary_size, marked)


def non_finite_faults(tensors: Mapping[str, Tensor]) -> list[str]:
    """Read all data and name the tensors with elements that are infinite or not a number."""
    counts = {name: count_non_finite(tensor) for name, tensor in tensors.items()}
    return [
        f"{name} has {count} elements that are infinite or not a number; training diverged, "
        "take an earlier checkpoint"
        for name, count in counts.items()
        if count
    ]
