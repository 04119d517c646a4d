"""Forms of answers."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from drafter_sandbox.errors import no_such_resource
from drafter_sandbox.requests import Target

Body = dict[str, Any]


def metadata_only(body: Body) -> Body:
    """Return an object without all but its metadata."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": body["metadata"],
    }


def success(target: Target, body: Body) -> Body:
    """Return the ``Status`` of something done to an object."""
    details: Body = {
        "name": body["metadata"]["name"],
        "kind": target.resource.plural,
        "uid": body["metadata"]["uid"],
    }
    if target.resource.group:
        details["group"] = target.resource.group
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }


def dump(body: Any) -> bytes:
    """Return a value as compact JSON."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def json_response(
    body: Any, status: int = 200, content_type: str = "application/json"
) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(body=dump(body), status=status, headers={"Content-Type": content_type})


def found(body: Body | None) -> web.Response:
    """Return an answer in JSON; 404 when there is nothing to answer."""
    if body is None:
        raise no_such_resource()
    return json_response(body)
