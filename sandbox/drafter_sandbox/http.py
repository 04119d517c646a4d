"""The API server's HTTP side: paths, verbs, watches, logs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Iterable
from time import monotonic
from typing import Any, Protocol, cast

from aiohttp import web

from drafter_sandbox import discovery, jsonpath, openapi, scale, tables
from drafter_sandbox.auth import Authenticator
from drafter_sandbox.errors import ApiError, bad_request, no_such_resource, not_found
from drafter_sandbox.patches import merge_patch
from drafter_sandbox.requests import (
    Target,
    WriteOptions,
    decode,
    flag,
    number,
    parse_target,
    presentation,
    write_options,
)
from drafter_sandbox.resources import ResourceType
from drafter_sandbox.reviews import review
from drafter_sandbox.schemas import KUBERNETES_VERSION, definitions
from drafter_sandbox.selectors import Predicate, field_predicate, label_predicate
from drafter_sandbox.store import Body, Propagation, Store, Watch, WatchEvent
from drafter_sandbox.validation import validate
from drafter_sandbox.writes import Writer

_log = logging.getLogger(__name__)

_USER = web.RequestKey("user", str)
# Clients of these types expect the object that a deletion removed, not a Status.
_DELETION_RETURNS_OBJECT = frozenset(
    [
        ("", "persistentvolumeclaims"),
        ("", "persistentvolumes"),
        ("", "pods"),
        ("", "resourcequotas"),
        ("", "serviceaccounts"),
        ("", "services"),
        ("storage.k8s.io", "storageclasses"),
    ]
)
_DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
_BODY_LIMIT = 16 * 2**20
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
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        """Yield a container's output; raise ``ApiError`` first if it has none."""


class ApiServer:
    """Serves a store as Kubernetes serves its objects.

    Parameters
    ----------
    logs
        Source of ``pods/log``; None while there is no node.
    """

    def __init__(
        self,
        store: Store,
        authenticator: Authenticator,
        tls: ssl.SSLContext | None = None,
        logs: LogSource | None = None,
    ) -> None:
        self.store = store
        self._tls = tls
        self.authenticator = authenticator
        self.logs = logs
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Begin to listen and return the port.

        Raises
        ------
        OSError
            When the port is taken.
        """
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # Cancelled with its connection, a watch ends when its client goes.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=self._tls)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening and end open watches."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._route(request)
        except ApiError as error:
            return _json(error.status(), error.code)
        except web.HTTPRequestEntityTooLarge:
            failure = ApiError(413, "RequestEntityTooLarge", "the request is larger than 16 MiB")
            return _json(failure.status(), failure.code)
        except ConnectionResetError:
            # The client went away in the middle of an answer.
            raise
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.path)
            failure = ApiError(500, "InternalError", f"Internal error occurred: {error!r}")
            return _json(failure.status(), failure.code)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        user = self.authenticator.username(request.headers.get("Authorization"))
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        request[_USER] = user
        if path.rstrip("/") in ("", "/api", "/apis", "/version") or path.startswith("/openapi"):
            return self._describe(request)
        parts = [part for part in path.split("/") if part]
        if parts[0] == "api" and len(parts) == 2:
            return _found(discovery.resource_list(self.store.registry, "", parts[1]))
        if parts[0] == "apis" and len(parts) == 2:
            return _found(discovery.group(self.store.registry, parts[1]))
        if parts[0] == "apis" and len(parts) == 3:
            return _found(discovery.resource_list(self.store.registry, parts[1], parts[2]))
        target = parse_target(self.store.registry, path)
        return await self._resource(request, target)

    def _describe(self, request: web.Request) -> web.Response:
        registry = self.store.registry
        path = request.path.rstrip("/")
        if path == "/version":
            major, minor = KUBERNETES_VERSION.split(".")
            return _json(
                {
                    "major": major,
                    "minor": minor,
                    "gitVersion": f"v{KUBERNETES_VERSION}.0+drafter-sandbox",
                    "gitCommit": "",
                    "gitTreeState": "clean",
                    "buildDate": "1970-01-01T00:00:00Z",
                    "goVersion": "",
                    "compiler": "",
                    "platform": "linux/amd64",
                }
            )
        if path in ("/api", "/apis"):
            if presentation(request.headers.get("Accept", "")) == "APIGroupDiscoveryList":
                body = discovery.aggregated(registry, core=path == "/api")
                return _json(body, content_type=discovery.AGGREGATED)
            core = path == "/api"
            return _json(discovery.api_versions() if core else discovery.group_list(registry))
        if path == "/openapi/v3":
            return _json(openapi.document_paths(registry))
        if path.startswith("/openapi/v3/"):
            parts = path.removeprefix("/openapi/v3/").split("/")
            group, version = ("", parts[-1]) if parts[0] == "api" else (parts[1], parts[-1])
            return _found(openapi.document(registry, group, version))
        raise no_such_resource()

    # Verbs

    async def _resource(self, request: web.Request, target: Target) -> web.StreamResponse:
        method = request.method
        if target.subresource in ("exec", "attach", "portforward"):
            raise ApiError(
                501,
                "NotImplemented",
                f"the sandbox has no {target.subresource}: its Pods are processes of this machine,"
                " which ordinary tools reach",
            )
        if target.subresource == "log":
            return await self._log_stream(request, target)
        if method == "GET":
            if target.name is None or flag(request.query, "watch"):
                return await self._list_or_watch(request, target)
            return self._get(request, target)
        content = await request.read()
        kind = request.headers.get("Content-Type", "application/json")
        body = decode(content, kind) if content else None
        if method == "DELETE":
            return self._delete(request, target, _options(body))
        options = write_options(request.query, request.headers.get("User-Agent", ""))
        if method == "POST":
            return self._create(request, target, body, options)
        if method not in ("PUT", "PATCH") or target.name is None:
            raise ApiError(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
        if target.subresource == "scale":
            return self._scale(target, body, options, patch=method == "PATCH")
        writer = Writer(self.store, target, options)
        created = False
        if method == "PUT":
            result = writer.replace(body)
        else:
            result, created = writer.patch(body, kind)
        return self._one(request, target.resource, result, 201 if created else 200, writer.warnings)

    def _existing(self, target: Target) -> Body:
        name = target.name or ""
        body = self.store.peek(target.resource, target.namespace, name)
        if body is None:
            raise not_found(target.resource.plural, target.resource.group, name)
        return {**body, "apiVersion": target.resource.api_version}

    def _get(self, request: web.Request, target: Target) -> web.Response:
        body = self._existing(target)
        if target.subresource == "scale":
            body = scale.scale_of(target.resource, body)
            return _json(body)
        return self._one(request, target.resource, body)

    def _one(
        self,
        request: web.Request,
        resource: ResourceType,
        body: Body,
        status: int = 200,
        warnings: Iterable[str] = (),
    ) -> web.Response:
        form = presentation(request.headers.get("Accept", ""))
        if form == "Table":
            include = request.query.get("includeObject", "Metadata")
            meta = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
            body = tables.table(resource, [body], meta, include)
        elif form == "PartialObjectMetadata":
            body = _metadata_only(body)
        response = _json(body, status)
        for warning in warnings:
            response.headers.add("Warning", f"299 - {json.dumps(warning)}")
        return response

    def _create(
        self, request: web.Request, target: Target, body: Any, options: WriteOptions
    ) -> web.Response:
        if not isinstance(body, dict):
            raise bad_request("the request has no body")
        if not target.resource.stored:
            done = review(target.resource, body, request[_USER], self.authenticator)
            return _json(done, 201)
        if target.name is None:
            writer = Writer(self.store, target, options)
            result = writer.create(body)
            return self._one(request, target.resource, result, 201, writer.warnings)
        existing = self._existing(target)
        if target.subresource == "eviction":
            return self._delete(request, target, _options(body.get("deleteOptions")))
        if target.subresource == "binding":
            node = jsonpath.find(".target.name", body)
            if not node:
                raise bad_request("a binding must name its target")
            existing["spec"] = {**existing["spec"], "nodeName": node[0]}
            self.store.update("pods", target.namespace, target.name, existing)
            return _json(_success(target, existing), 201)
        if target.subresource == "token":
            user = f"system:serviceaccount:{target.namespace}:{target.name}"
            body["status"] = {
                "token": self.authenticator.token_for(user),
                "expirationTimestamp": "2099-01-01T00:00:00Z",
            }
            return _json(body, 201)
        raise no_such_resource()

    def _scale(
        self, target: Target, body: Any, options: WriteOptions, *, patch: bool
    ) -> web.Response:
        existing = self._existing(target)
        if patch:
            body = merge_patch(scale.scale_of(target.resource, existing), body)
        if not isinstance(body, dict):
            raise bad_request("the body of the request must be a Scale")
        changed = scale.scaled(target.resource, existing, body)
        whole = Target(target.resource, target.namespace, target.name)
        result = Writer(self.store, whole, options).replace(changed)
        return _json(scale.scale_of(target.resource, result))

    def _delete(self, request: web.Request, target: Target, options: Body) -> web.Response:
        query = request.query
        propagation = options.get("propagationPolicy") or query.get("propagationPolicy")
        if propagation is None and options.get("orphanDependents"):
            propagation = "Orphan"
        if propagation not in (None, "Background", "Foreground", "Orphan"):
            raise bad_request(f'propagationPolicy: Unsupported value: "{propagation}"')
        chosen = cast(Propagation, propagation or "Background")
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = number(query, "gracePeriodSeconds")
        dry_run = bool(options.get("dryRun") or query.get("dryRun"))
        preconditions = options.get("preconditions") or {}
        resource = target.resource
        if target.name is None:
            matches = self._selection(request, target)
            chosen_bodies = [b for b in self.store.scan(resource, target.namespace) if matches(b)]
            for body in chosen_bodies:
                meta = body["metadata"]
                with contextlib.suppress(ApiError):
                    self.store.delete(
                        resource.plural,
                        meta.get("namespace"),
                        meta["name"],
                        resource.group,
                        chosen,
                        grace_period_seconds=grace,
                        dry_run=dry_run,
                    )
            return _json(self._list_body(resource, chosen_bodies))
        existing = self._existing(target)
        left = self.store.delete(
            resource.plural,
            target.namespace,
            target.name,
            resource.group,
            chosen,
            preconditions.get("uid"),
            grace_period_seconds=grace,
            resource_version=preconditions.get("resourceVersion"),
            dry_run=dry_run,
        )
        if (resource.group, resource.plural) in _DELETION_RETURNS_OBJECT:
            left = left or existing
        if left is not None and not dry_run:
            return self._one(request, resource, left)
        return _json(_success(target, existing))

    # Lists and watches

    def _selection(self, request: web.Request, target: Target) -> Predicate:
        labels = label_predicate(request.query.get("labelSelector"))
        fields = field_predicate(request.query.get("fieldSelector"))
        name = target.name

        def matches(body: Body) -> bool:
            if name is not None and body["metadata"]["name"] != name:
                return False
            return labels(body) and fields(body)

        return matches

    def _list_body(self, resource: ResourceType, bodies: list[Body]) -> Body:
        return {
            "kind": resource.list_kind,
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": self.store.resource_version},
            "items": [{**body, "apiVersion": resource.api_version} for body in bodies],
        }

    async def _list_or_watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        matches = self._selection(request, target)
        if flag(request.query, "watch"):
            return await self._watch(request, target, matches)
        resource = target.resource
        bodies = [body for body in self.store.scan(resource, target.namespace) if matches(body)]
        bodies, meta = self._page(request, bodies)
        form = presentation(request.headers.get("Accept", ""))
        if form == "Table":
            include = request.query.get("includeObject", "Metadata")
            return _json(tables.table(resource, bodies, meta, include))
        result = self._list_body(resource, bodies)
        result["metadata"] = meta
        if form == "PartialObjectMetadataList":
            result["kind"], result["apiVersion"] = form, "meta.k8s.io/v1"
            result["items"] = [_metadata_only(body) for body in bodies]
        return _json(result)

    def _page(self, request: web.Request, bodies: list[Body]) -> tuple[list[Body], Body]:
        """Return the part of a list that was asked for, and the list's metadata."""
        meta: Body = {"resourceVersion": self.store.resource_version}
        token = request.query.get("continue")
        if token:
            try:
                after = tuple(json.loads(base64.urlsafe_b64decode(token)))
                bodies = [body for body in bodies if _position(body) > after]
            except (ValueError, TypeError) as error:
                raise bad_request("continue key is not valid") from error
        limit = number(request.query, "limit")
        if limit and len(bodies) > limit:
            meta["remainingItemCount"] = len(bodies) - limit
            bodies = bodies[:limit]
            key = json.dumps(_position(bodies[-1])).encode()
            meta["continue"] = base64.urlsafe_b64encode(key).decode()
        return bodies, meta

    async def _watch(
        self, request: web.Request, target: Target, matches: Predicate
    ) -> web.StreamResponse:
        resource, query = target.resource, request.query
        initial = flag(query, "sendInitialEvents")
        since = None if initial else query.get("resourceVersion")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        encode = _EventEncoder(request, resource)
        await response.prepare(request)
        try:
            watch = self.store.watch(resource.plural, resource.group, target.namespace, since)
        except ApiError as error:
            # Where the API server answers too: in the stream, not by the status.
            await response.write(encode.line("ERROR", error.status()))
            return response
        try:
            await self._stream(response, watch, matches, encode, request, initial=initial)
        finally:
            watch.close()
        return response

    async def _stream(
        self,
        response: web.StreamResponse,
        watch: Watch,
        matches: Predicate,
        encode: _EventEncoder,
        request: web.Request,
        *,
        initial: bool,
    ) -> None:
        seconds = number(request.query, "timeoutSeconds") or _WATCH_SECONDS
        bookmarks = flag(request.query, "allowWatchBookmarks")
        end = monotonic() + seconds
        pending: asyncio.Future[WatchEvent] | None = None
        if initial:
            version = int(self.store.resource_version)
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
                        version = int(self.store.resource_version)
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

    async def _log_stream(self, request: web.Request, target: Target) -> web.StreamResponse:
        pod = self._existing(target)
        if self.logs is None:
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
        output = self.logs.read(
            target.namespace or "",
            target.name or "",
            container,
            follow=flag(query, "follow"),
            tail_lines=number(query, "tailLines"),
            previous=flag(query, "previous"),
            since_seconds=number(query, "sinceSeconds"),
            timestamps=flag(query, "timestamps"),
        )
        # The first piece tells whether there is a log, before the status is sent.
        first = await anext(output, b"")
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if first:
            await response.write(first)
        async for piece in output:
            await response.write(piece)
        return response


async def _next(watch: Watch) -> WatchEvent:
    return await anext(watch)


class _EventEncoder:
    """Writes the events of one watch in the form its client asked for."""

    def __init__(self, request: web.Request, resource: ResourceType) -> None:
        self._resource = resource
        self._form = presentation(request.headers.get("Accept", ""))
        self._include = request.query.get("includeObject", "Metadata")
        self._columns_sent = False

    @staticmethod
    def line(kind: str, body: Body) -> bytes:
        """Return one event."""
        return _dump({"type": kind, "object": body}) + b"\n"

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
            body = _metadata_only(body)
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
                "rows": [{"cells": [], "object": _metadata_only(body)}],
            }
        return self.line("BOOKMARK", body)


def _options(body: Any) -> Body:
    """Return the ``DeleteOptions`` of a request.

    Raises
    ------
    ApiError
        400 when they have fields of wrong types.
    """
    options: Body = {} if body is None else body
    causes = validate(definitions()[_DELETE_OPTIONS], options, "options")
    if causes:
        raise bad_request(f"{causes[0].field}: {causes[0].message}")
    return options


def _position(body: Body) -> tuple[str, str]:
    return (body["metadata"].get("namespace") or "", body["metadata"]["name"])


def _metadata_only(body: Body) -> Body:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": body["metadata"],
    }


def _success(target: Target, body: Body) -> Body:
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


def _dump(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def _json(body: Any, status: int = 200, content_type: str = "application/json") -> web.Response:
    return web.Response(body=_dump(body), status=status, headers={"Content-Type": content_type})


def _found(body: Body | None) -> web.Response:
    if body is None:
        raise no_such_resource()
    return _json(body)
