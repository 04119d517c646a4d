"""A container's environment: literal values, references, and ``$(NAME)`` in other words."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from drafter_sandbox.quantities import parse_quantity

Lookup = Callable[[str, str], Mapping[str, Any] | None]
"""Returns an object of the Pod's namespace by plural and name, or None."""

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_KEYED = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


class MissingReferenceError(Exception):
    """A container refers to something that is not there."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; an unknown name stays as it is and ``$$`` is a dollar."""

    def value(found: re.Match[str]) -> str:
        if found.group(0) == "$$":
            return "$"
        return variables.get(found.group(1), found.group(0))

    return _REFERENCE.sub(value, text)


def container_environment(
    pod: Mapping[str, Any], container: Mapping[str, Any], lookup: Lookup
) -> dict[str, str]:
    """Return the variables a container declares.

    Raises
    ------
    MissingReferenceError
        A ConfigMap, a Secret or a key of them is missing and not optional.
    """
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        prefix = source.get("prefix", "")
        for kind, plural in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if kind in source:
                values = _data(lookup, plural, source[kind])
                variables |= {prefix + name: value for name, value in values.items()}
    for variable in container.get("env") or []:
        if "valueFrom" in variable:
            found = _referenced(pod, container, variable["valueFrom"], lookup)
            if found is not None:
                variables[variable["name"]] = found
        else:
            variables[variable["name"]] = expand(variable.get("value", ""), variables)
    return variables


def _data(lookup: Lookup, plural: str, reference: Mapping[str, Any]) -> dict[str, str]:
    found = lookup(plural, reference["name"])
    if found is None:
        if reference.get("optional"):
            return {}
        raise MissingReferenceError(f'{plural[:-1]} "{reference["name"]}" not found')
    return text_data(plural, found)


def text_data(plural: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a ConfigMap or, decoded, of a Secret."""
    data = body.get("data") or {}
    if plural == "secrets":
        return {
            name: base64.b64decode(value).decode(errors="replace") for name, value in data.items()
        }
    return dict(data)


def _referenced(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    source: Mapping[str, Any],
    lookup: Lookup,
) -> str | None:
    for kind, plural in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if kind in source:
            values = _data(lookup, plural, source[kind])
            key = source[kind]["key"]
            if key not in values and not source[kind].get("optional"):
                raise MissingReferenceError(
                    f"couldn't find key {key} in {plural[:-1]} {source[kind]['name']}"
                )
            return values.get(key)
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource(container, source["resourceFieldRef"])
    return None


def field_of(pod: Mapping[str, Any], path: str) -> str:
    """Return a field of a Pod as the downward API writes it."""
    if keyed := _KEYED.match(path):
        return str((pod["metadata"].get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    value: Any = pod
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return str(value)


def _resource(container: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    kind, _, name = reference["resource"].partition(".")
    amount = (container.get("resources", {}).get(kind) or {}).get(name)
    if amount is None:
        return "0"
    divisor = parse_quantity(reference.get("divisor") or "1")
    return str(int(-(-parse_quantity(amount) // (divisor or 1))))
