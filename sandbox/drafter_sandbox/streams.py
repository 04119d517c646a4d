"""Answers that take a while: watches and logs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, Protocol

from aiohttp import web

from drafter_sandbox import tables
from drafter_sandbox.errors import ApiError, bad_request
from drafter_sandbox.requests import Target, flag, number, presentation
from drafter_sandbox.resources import ResourceType
from drafter_sandbox.responses import dump, metadata_only
from drafter_sandbox.selectors import Predicate
from drafter_sandbox.store import Store
from drafter_sandbox.watching import Watch, WatchEvent

Body = dict[str, Any]

_WATCH_SECONDS = 3600
_BOOKMARK_SECONDS = 30.0


class LogSource(Protocol):
    """Where the output of containers comes from."""

    def read(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        tail_lines: int | None,
        previous: bool,
        since_seconds: int | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield a container's output; raise ``ApiError`` first if it has none."""


async def stream_watch(
    store: Store,
    response: web.StreamResponse,
    watch: Watch,
    matches: Predicate,
    encode: EventEncoder,
    request: web.Request,
    *,
    initial: bool,
) -> None:
    """Send the events of a watch until it ends, its time is over or its client goes."""
    seconds = number(request.query, "timeoutSeconds") or _WATCH_SECONDS
    bookmarks = flag(request.query, "allowWatchBookmarks")
    end = monotonic() + seconds
    pending: asyncio.Future[WatchEvent] | None = None
    if initial:
        version = int(store.resource_version)
        for event in watch.queued():
            if line := encode.event(event, matches):
                await response.write(line)
        await response.write(encode.bookmark(version, initial_end=True))
    try:
        while (left := end - monotonic()) > 0:
            if pending is None:
                pending = asyncio.ensure_future(_next(watch))
            wait = min(left, _BOOKMARK_SECONDS)
            done, _ = await asyncio.wait({pending}, timeout=wait)
            if not done:
                if bookmarks:
                    version = int(store.resource_version)
                    await response.write(encode.bookmark(version))
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            if line := encode.event(event, matches):
                await response.write(line)
    finally:
        if pending is not None:
            pending.cancel()


async def _next(watch: Watch) -> WatchEvent:
    return await anext(watch)


class EventEncoder:
    """Writes the events of one watch in the form its client asked for."""

    def __init__(self, request: web.Request, resource: ResourceType) -> None:
        self._resource = resource
        self._form = presentation(request.headers.get("Accept", ""))
        self._include = request.query.get("includeObject", "Metadata")
        self._columns_sent = False

    @staticmethod
    def line(kind: str, body: Body) -> bytes:
        """Return one event."""
        return dump({"type": kind, "object": body}) + b"\n"

    def event(self, event: WatchEvent, matches: Predicate) -> bytes | None:
        """Return an event as the client's selection sees it, or None if it does not."""
        now = event.type != "DELETED" and matches(event.object)
        before = event.previous is not None and matches(event.previous)
        if now:
            kind = "MODIFIED" if before else "ADDED"
        elif before:
            kind = "DELETED"
        else:
            return None
        body = {**event.object, "apiVersion": self._resource.api_version}
        if self._form == "Table":
            meta = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
            body = tables.table(self._resource, [body], meta, self._include)
            if self._columns_sent:
                body["columnDefinitions"] = None
            self._columns_sent = True
        elif self._form == "PartialObjectMetadata":
            body = metadata_only(body)
        return self.line(kind, body)

    def bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        """Return an event that tells how far the watch has come."""
        meta: Body = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        body: Body = {
            "kind": self._resource.kind,
            "apiVersion": self._resource.api_version,
            "metadata": meta,
        }
        if self._form == "Table":
            body = {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": str(version)},
                "columnDefinitions": None,
                "rows": [{"cells": [], "object": metadata_only(body)}],
            }
        return self.line("BOOKMARK", body)


async def stream_logs(
    request: web.Request, target: Target, pod: Body, source: LogSource | None
) -> web.StreamResponse:
    """Send a container's output.

    Raises
    ------
    ApiError
        503 without a node, 400 when it is not clear which container is meant
        or it has no output.
    """
    if source is None:
        raise ApiError(503, "ServiceUnavailable", "no node runs in this sandbox")
    query = request.query
    names = [
        container["name"]
        for group in ("containers", "initContainers")
        for container in pod["spec"].get(group) or []
    ]
    container = query.get("container") or ""
    if not container:
        if len(pod["spec"]["containers"]) > 1:
            raise bad_request(
                f"a container name must be specified for pod {target.name}, choose one of:"
                f" [{' '.join(names)}]"
            )
        container = names[0]
    elif container not in names:
        raise bad_request(f"container {container} is not valid for pod {target.name}")
    output = source.read(
        target.namespace or "",
        target.name or "",
        container,
        follow=flag(query, "follow"),
        tail_lines=number(query, "tailLines"),
        previous=flag(query, "previous"),
        since_seconds=number(query, "sinceSeconds"),
    )
    # The first piece tells whether there is a log, before the status is sent.
    first = await anext(output, b"")
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    # A reader that leaves ends the output, and that is no fault.
    with contextlib.suppress(ConnectionResetError):
        if first:
            await response.write(first)
        async for piece in output:
            await response.write(piece)
    return response
