"""What a request asks for, read from its path, query and headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from drafter_sandbox import protobuf
from drafter_sandbox.errors import ApiError, bad_request, no_such_resource
from drafter_sandbox.resources import Registry, ResourceType

Validation = Literal["Strict", "Warn", "Ignore"]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Target:
    """The resource, object or subresource that a path names."""

    resource: ResourceType
    namespace: str | None
    name: str | None = None
    subresource: str | None = None


def split_path(path: str) -> tuple[str, str, list[str]] | None:
    """Return group, version and the parts that follow, or None for a path without a resource."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        return "", parts[1], parts[2:]
    if parts[:1] == ["apis"] and len(parts) >= 4:
        return parts[1], parts[2], parts[3:]
    return None


def parse_target(registry: Registry, path: str) -> Target:
    """Return what a path below ``/api/v1`` or ``/apis/<group>/<version>`` names.

    Raises
    ------
    ApiError
        404 when it names nothing that is served.
    """
    named = split_path(path)
    if named is None:
        raise no_such_resource()
    group, version, rest = named
    namespace = None
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        raise no_such_resource()
    resource = registry.find(group, rest[0], version)
    if namespace is not None and not resource.namespaced:
        raise no_such_resource()
    name = rest[1] if len(rest) > 1 else None
    subresource = rest[2] if len(rest) > 2 else None
    if name and resource.namespaced and namespace is None:
        raise no_such_resource()
    if subresource and subresource not in (*resource.subresources, "finalize"):
        raise no_such_resource()
    return Target(resource, namespace, name, subresource)


@dataclass(frozen=True)
class WriteOptions:
    """How a write is to be done."""

    manager: str
    dry_run: bool
    validation: Validation
    force: bool


def write_options(query: Mapping[str, str], user_agent: str) -> WriteOptions:
    """Read the options of a write from its query.

    Raises
    ------
    ApiError
        400 when an option has a value that does not exist.
    """
    dry_run = query.get("dryRun")
    if dry_run not in (None, "", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{dry_run}": supported values: "All"')
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        raise bad_request(
            f'fieldValidation: Unsupported value: "{validation}": supported values: "Ignore",'
            ' "Strict", "Warn"'
        )
    manager = query.get("fieldManager") or user_agent.split("/")[0].split(" ")[0] or "unknown"
    return WriteOptions(
        manager=manager,
        dry_run=dry_run == "All",
        validation=validation,  # type: ignore[arg-type]
        force=flag(query, "force"),
    )


def flag(query: Mapping[str, str], name: str) -> bool:
    """Return whether a parameter of a query is true."""
    return query.get(name, "").lower() in ("true", "1")


def number(query: Mapping[str, str], name: str) -> int | None:
    """Return a parameter of a query that is a whole number, or None without it.

    Raises
    ------
    ApiError
        400 when it is no whole number of 0 or more.
    """
    text = query.get(name)
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise bad_request(f'{name}: Invalid value: "{text}": must be a whole number')
    return int(text)


def decode(content: bytes, content_type: str) -> Any:
    """Return the value that a request's body holds, in JSON, YAML or protobuf.

    Raises
    ------
    ApiError
        400 when the body is malformed, 415 when it is in another format.
    """
    kind = content_type.split(";")[0].strip().lower()
    if kind == protobuf.CONTENT_TYPE:
        return protobuf.decode_object(content)
    if kind and "json" not in kind and "yaml" not in kind:
        raise ApiError(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include:"
            " application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )
    try:
        # JSON first: it is by far faster, and the usual content of apply patches too.
        return json.loads(content, parse_constant=_refuse_constant)
    except ValueError as error:
        if "yaml" not in kind:
            raise bad_request(f"the object provided is not valid JSON: {error}") from error
    try:
        return yaml.load(content, Loader=_YamlLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise bad_request(f"error decoding YAML: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


class _YamlLoader(yaml.SafeLoader):
    """Reads YAML as JSON would have it: timestamps stay text."""


_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def accepted(header: str) -> list[dict[str, str]]:
    """Return the alternatives of an ``Accept`` header, each with its parameters."""
    found = []
    for part in header.split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        entry = {"type": kind}
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            entry[key] = value
        found.append(entry)
    return found


def presentation(header: str) -> str | None:
    """Return the first form that a client accepts and the server has.

    Returns
    -------
    str or None
        ``Table``, ``PartialObjectMetadata``, ``PartialObjectMetadataList``,
        ``APIGroupDiscoveryList`` or None for the objects themselves.

    Raises
    ------
    ApiError
        406 when the client accepts no form of JSON.
    """
    if not header:
        return None
    alternatives = accepted(header)
    for entry in alternatives:
        if entry["type"] not in ("application/json", "*/*", "application/*", "application/yaml"):
            continue
        form = entry.get("as")
        if form is None:
            return None
        if form == "APIGroupDiscoveryList" and entry.get("v") != "v2":
            continue
        if form == "Table" and entry.get("v") not in (None, "v1"):
            continue
        return form
    if all(entry["type"].startswith("application/") for entry in alternatives):
        raise ApiError(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        )
    return None
