"""Failures of the API server in the form Kubernetes gives them: a ``Status`` object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cause:
    """One reason of a failure.

    Attributes
    ----------
    field
        Path of the field, such as ``spec.serving.depths[0]``.
    message
        What is wrong with its value.
    reason
        One of the API's cause types, such as ``FieldValueInvalid``.
    """

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def as_dict(self) -> dict[str, Any]:
        """Return the cause as an entry of ``status.details.causes``."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(Exception):
    """A refused request.

    Parameters
    ----------
    code
        HTTP status.
    reason
        Machine-readable reason, such as ``NotFound``.
    message
        Sentence for a person.
    details
        ``details`` of the ``Status`` object.
    """

    def __init__(
        self, code: int, reason: str, message: str, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        """Return the ``Status`` object a client receives."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


def _details(group: str, kind: str, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name, "kind": kind}
    if group:
        details["group"] = group
    return details


def not_found(resource: str, group: str, name: str) -> ApiError:
    """Return the error for an object that does not exist."""
    full = f"{resource}.{group}" if group else resource
    return ApiError(404, "NotFound", f'{full} "{name}" not found', _details(group, resource, name))


def no_such_resource() -> ApiError:
    """Return the error for a path that names no resource."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, group: str, name: str) -> ApiError:
    """Return the error for a name that is taken."""
    full = f"{resource}.{group}" if group else resource
    return ApiError(
        409, "AlreadyExists", f'{full} "{name}" already exists', _details(group, resource, name)
    )


def conflict(resource: str, group: str, name: str, why: str) -> ApiError:
    """Return the error for a write based on an outdated object."""
    full = f"{resource}.{group}" if group else resource
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {full} "{name}": {why}',
        _details(group, resource, name),
    )


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> ApiError:
    """Return the error for an object whose fields break a rule."""
    found = list(causes)
    lines = [f"{cause.field}: {cause.message}" for cause in found]
    text = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    full = f"{kind}.{group}" if group else kind
    details = _details(group, kind, name)
    details["causes"] = [cause.as_dict() for cause in found]
    return ApiError(422, "Invalid", f'{full} "{name}" is invalid: {text}', details)


def bad_request(message: str) -> ApiError:
    """Return the error for a request that cannot be understood."""
    return ApiError(400, "BadRequest", message)


def forbidden(resource: str, group: str, name: str, why: str) -> ApiError:
    """Return the error for a request that the server's state forbids."""
    full = f"{resource}.{group}" if group else resource
    return ApiError(
        403, "Forbidden", f'{full} "{name}" is forbidden: {why}', _details(group, resource, name)
    )


def expired(message: str) -> ApiError:
    """Return the error for a resource version that is no longer remembered."""
    return ApiError(410, "Expired", message)
