"""Which names objects may have."""

from __future__ import annotations

import re
import secrets
from typing import Any

from drafter_sandbox.errors import Cause
from drafter_sandbox.resources import ResourceType

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SERVICE = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
# The alphabet leaves out vowels and look-alikes.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_LIMIT = 58


def generated_name(prefix: str) -> str:
    """Return a name made from ``metadata.generateName``."""
    suffix = "".join(secrets.choice(_ALPHABET) for _ in range(5))
    return prefix[:_GENERATED_LIMIT] + suffix


def name_causes(resource: ResourceType, meta: dict[str, Any]) -> list[Cause]:
    """Return what is wrong with an object's name."""
    name = meta.get("name")
    if not name:
        return [
            Cause(
                "metadata.name",
                "Required value: name or generateName is required",
                "FieldValueRequired",
            )
        ]
    if resource.group == "rbac.authorization.k8s.io":
        return []
    if resource.plural == "services" and resource.group == "":
        if not _SERVICE.match(name) or len(name) > 63:
            return [
                _bad(
                    name,
                    "a DNS-1035 label: lower case letters, digits or '-', beginning"
                    " with a letter, at most 63 characters",
                )
            ]
        return []
    if resource.plural == "namespaces" and resource.group == "":
        if not _LABEL.match(name) or len(name) > 63:
            return [
                _bad(
                    name,
                    "a lowercase RFC 1123 label: lower case letters, digits or '-',"
                    " at most 63 characters",
                )
            ]
        return []
    if not _SUBDOMAIN.match(name) or len(name) > 253:
        return [
            _bad(
                name,
                "a lowercase RFC 1123 subdomain: lower case letters, digits, '-' or '.', at most"
                " 253 characters",
            )
        ]
    return []


def _bad(name: str, rule: str) -> Cause:
    return Cause("metadata.name", f'Invalid value: "{name}": must be {rule}')
