"""A line for each request: who asked for what, by which right, and how it was answered.

The lines are events of Kubernetes' audit log (``audit.k8s.io/v1``) at its level ``Metadata``.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from drafter_sandbox.auth import User
from drafter_sandbox.authorization import Attributes, Verdict
from drafter_sandbox.errors import ApiError

FILE_NAME = "audit.log"
_LIMIT_BYTES = 32 * 2**20


class AuditLog:
    """Writes the events of one API server.

    Parameters
    ----------
    path
        File of JSON lines; at 32 MiB it is renamed to ``<path>.1`` and begun anew. None keeps no
        events.
    """

    def __init__(self, path: Path | None) -> None:
        self._handler = (
            logging.handlers.RotatingFileHandler(
                path, maxBytes=_LIMIT_BYTES, backupCount=1, encoding="utf-8"
            )
            if path is not None
            else None
        )

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()

    def begin(
        self, request: web.Request, user: User, asked: Attributes, verdict: Verdict
    ) -> AuditedRequest:
        """Return the record of a request that has just come in."""
        return AuditedRequest(self, request, user, asked, verdict)

    def write(self, line: str) -> None:
        """Add a line."""
        if self._handler is not None:
            self._handler.emit(logging.makeLogRecord({"msg": line}))


class AuditedRequest:
    """One request, from its coming to its last answer."""

    def __init__(
        self,
        log: AuditLog,
        request: web.Request,
        user: User,
        asked: Attributes,
        verdict: Verdict,
    ) -> None:
        self._log = log
        event = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": str(uuid.uuid4()),
            "requestURI": request.path_qs,
            "verb": asked.verb,
            "user": {"username": user.name, "groups": list(user.groups)},
            "sourceIPs": [request.remote or ""],
            "userAgent": request.headers.get("User-Agent", ""),
            "requestReceivedTimestamp": _stamp(),
            "annotations": {
                "authorization.k8s.io/decision": "allow" if verdict.allowed else "forbid",
                "authorization.k8s.io/reason": verdict.reason,
            },
        }
        if asked.resource:
            reference = {
                "resource": asked.resource,
                "subresource": asked.subresource,
                "namespace": asked.namespace,
                "name": asked.name,
                "apiGroup": asked.group,
                "apiVersion": asked.version,
            }
            event["objectRef"] = {key: value for key, value in reference.items() if value}
        self._event = event

    def begun(self) -> None:
        """Write that an answer has begun which may go on for long, as that of a watch does."""
        self._write("ResponseStarted", {"code": 200})

    def answered(self, code: int) -> None:
        """Write the HTTP status of the answer."""
        self._write("ResponseComplete", {"code": code})

    def refused(self, error: ApiError) -> None:
        """Write why there is no answer."""
        status = {"status": "Failure", "message": error.message, "reason": error.reason}
        self._write("ResponseComplete", {**status, "code": error.code})

    def _write(self, stage: str, status: dict[str, Any]) -> None:
        end = {"responseStatus": {"metadata": {}, **status}, "stageTimestamp": _stamp()}
        self._log.write(json.dumps({**self._event, "stage": stage, **end}))


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
