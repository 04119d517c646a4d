"""What a drafter has to agree with in its target's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drafter_jobs.contract.auxiliary_layers import CONVENTIONS, Convention
from drafter_jobs.contract.config_fields import context_length, text_config


class TargetUnsupportedError(ValueError):
    """The target's config lacks a field, or the engine has no EAGLE-3 hook for its class."""


@dataclass(frozen=True)
class TargetFacts:
    """Facts about a target; sizes in elements, ``context_length`` in tokens."""

    architecture: str
    convention: Convention
    layers: int
    hidden_size: int
    vocabulary_size: int
    context_length: int


def target_facts(config: Mapping[str, Any]) -> TargetFacts:
    """Read the facts out of a target's ``config.json``.

    Parameters
    ----------
    config
        The parsed file; a multimodal config's language model is found inside it.

    Raises
    ------
    TargetUnsupportedError
        If a field is missing or the architecture has no EAGLE-3 hook.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise TargetUnsupportedError("the target's config.json has no architectures")
    architecture = str(architectures[0])
    convention = CONVENTIONS.get(architecture)
    if convention is None:
        raise TargetUnsupportedError(
            f"SGLang cannot serve an EAGLE-3 drafter for a target of class {architecture}; "
            f"it can for {', '.join(sorted(CONVENTIONS))}"
        )
    language = text_config(config)
    sizes: dict[str, int] = {}
    for field in ("num_hidden_layers", "hidden_size", "vocab_size"):
        value = language.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise TargetUnsupportedError(
                f"the target's config.json has {field}: {value!r}; a positive integer is needed"
            )
        sizes[field] = value
    return TargetFacts(
        architecture=architecture,
        convention=convention,
        layers=sizes["num_hidden_layers"],
        hidden_size=sizes["hidden_size"],
        vocabulary_size=sizes["vocab_size"],
        context_length=context_length(language),
    )
