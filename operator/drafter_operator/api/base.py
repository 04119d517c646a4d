"""What every API model shares: camelCase names, closed objects, CEL rules."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

GROUP = "drafters.dev"
VERSION = "v1alpha1"
KIND = "DrafterRun"
PLURAL = "drafterruns"
SINGULAR = "drafterrun"
SHORT_NAMES = ("drun",)
CATEGORIES = ("all", "drafters")

NAME_LIMIT = 40
"""Longest name of a run: child names add at most 22 characters (``-benchmark-depth-256-9``)
and a Service name may have 63."""


class ApiModel(BaseModel):
    """Base of spec and status: camelCase in YAML, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    def to_api(self) -> dict[str, Any]:
        """Return the object as it is written in YAML, without unset optional fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def validations(*rules: tuple[str, str]) -> dict[str, Any]:
    """Return the schema extension that carries CEL rules.

    Parameters
    ----------
    *rules
        Pairs of a CEL expression and the message a user sees when it is false.
    """
    return {
        "x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]
    }


PRESERVED: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
"""Marks an object whose fields belong to another API, such as a toleration."""

Decimal = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$", max_length=32)]
"""A non-negative decimal number as a string: the Kubernetes API forbids floats."""

Share = Annotated[str, Field(pattern=r"^(0(\.[0-9]+)?|1(\.0+)?)$", max_length=16)]
"""A decimal string from 0 to 1."""

Quantity = Annotated[
    str,
    Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$", max_length=32),
]
"""A Kubernetes resource quantity."""

IntOrQuantity = Annotated[
    int | str,
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$",
        }
    ),
]
"""A quantity of a container's resources, which may be written as a number: ``cpu: 4``."""

ObjectName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]
"""The name of another Kubernetes object: a DNS subdomain."""

RelativePath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        json_schema_extra=validations(
            (
                "!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
                "must be a relative path that stays inside the volume: no leading '/', no '..'",
            ),
        ),
    ),
]
"""A path inside a volume."""
