"""CEL rules over the whole object, where ``metadata.name``, spec and status are all in sight."""

from __future__ import annotations

from typing import Any

from drafter_operator.api.base import NAME_LIMIT, validations

IMMUTABLE_FIELDS = ("target", "storage", "data", "hiddenStates", "training", "export", "benchmark")
IMMUTABLE_SERVING_FIELDS = (
    "engine",
    "image",
    "depths",
    "baseline",
    "tensorParallelSize",
    "maximumRunningRequests",
    "dtype",
    "extraArguments",
    "strategy",
)

_NOT_STARTED = (
    "!has(oldSelf.status) || !has(oldSelf.status.steps)"
    " || oldSelf.status.steps.all(s, s.state == 'Pending')"
)
"""A typing error may still be mended while nothing has begun."""


def run_rules() -> list[dict[str, Any]]:
    """Return the rules on name and immutability."""
    rules = [
        (
            f"size(self.metadata.name) <= {NAME_LIMIT}",
            f"metadata.name must have at most {NAME_LIMIT} characters: names of child objects are"
            " made from it",
        ),
        (
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must be a DNS label that starts with a letter, as Service names must",
        ),
    ]
    rules += [
        (
            f"{_NOT_STARTED} || self.spec.{field} == oldSelf.spec.{field}",
            f"spec.{field} is immutable once the run has started: make a new DrafterRun",
        )
        for field in IMMUTABLE_FIELDS
    ]
    rules += [
        (
            f"{_NOT_STARTED} || self.spec.serving.{field} == oldSelf.spec.serving.{field}",
            f"spec.serving.{field} is immutable once the run has started: make a new DrafterRun",
        )
        for field in IMMUTABLE_SERVING_FIELDS
    ]
    found: list[dict[str, Any]] = validations(*rules)["x-kubernetes-validations"]
    return found
