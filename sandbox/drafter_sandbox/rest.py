"""The verbs of the API on resources: get, list, watch, create, update, patch, delete."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterable
from typing import Any, cast

from aiohttp import web

from drafter_sandbox import jsonpath, scale, tables
from drafter_sandbox.auth import Authenticator, User
from drafter_sandbox.authorization import Authorizer, attributes_of
from drafter_sandbox.errors import ApiError, bad_request, no_such_resource, not_found
from drafter_sandbox.patches import merge_patch
from drafter_sandbox.requests import (
    APPLY_PATCH,
    Target,
    WriteOptions,
    decode,
    flag,
    number,
    presentation,
    write_options,
)
from drafter_sandbox.resources import ResourceType
from drafter_sandbox.responses import json_response, metadata_only, success
from drafter_sandbox.reviews import review
from drafter_sandbox.schemas import definitions
from drafter_sandbox.selectors import Predicate, field_predicate, label_predicate
from drafter_sandbox.store import Body, Propagation, Store
from drafter_sandbox.streams import EventEncoder, LogSource, stream_logs, stream_watch
from drafter_sandbox.validation import validate
from drafter_sandbox.writes import Writer

_log = logging.getLogger(__name__)

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


class Resources:
    """Answers requests for resources.

    Attributes
    ----------
    logs
        Source of ``pods/log``; None while there is no node.
    """

    def __init__(self, store: Store, authenticator: Authenticator, authorizer: Authorizer) -> None:
        self.store = store
        self.authenticator = authenticator
        self.authorizer = authorizer
        self.logs: LogSource | None = None

    async def handle(self, request: web.Request, target: Target, user: User) -> web.StreamResponse:
        """Answer a request that its user may make.

        Raises
        ------
        ApiError
            When it is refused.
        """
        method = request.method
        if target.subresource in ("exec", "attach", "portforward"):
            raise ApiError(
                501,
                "NotImplemented",
                f"the sandbox has no {target.subresource}: its Pods are processes of this machine,"
                " which ordinary tools reach",
            )
        if target.subresource == "log":
            return await stream_logs(request, target, self._existing(target), self.logs)
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
            return self._create(request, target, body, options, user)
        if method not in ("PUT", "PATCH") or target.name is None:
            raise ApiError(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
        if target.subresource == "scale":
            return self._scale(target, body, options, patch=method == "PATCH")
        if kind == APPLY_PATCH and not self._exists(target):
            # To apply what is not there is to create it, for which another right is needed.
            asked = attributes_of(method, request.path, request.query)
            self.authorizer.check(user, dataclasses.replace(asked, verb="create"))
        writer = Writer(self.store, target, options)
        created = False
        if method == "PUT":
            result = writer.replace(body)
        else:
            result, created = writer.patch(body, kind)
        return self._one(request, target.resource, result, 201 if created else 200, writer.warnings)

    def _exists(self, target: Target) -> bool:
        return self.store.peek(target.resource, target.namespace, target.name or "") is not None

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
            return json_response(body)
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
            body = metadata_only(body)
        response = json_response(body, status)
        for warning in warnings:
            response.headers.add("Warning", f"299 - {json.dumps(warning)}")
        return response

    def _create(
        self, request: web.Request, target: Target, body: Any, options: WriteOptions, user: User
    ) -> web.Response:
        if not isinstance(body, dict):
            raise bad_request("the request has no body")
        if not target.resource.stored:
            done = review(target.resource, body, user, self.authenticator, self.authorizer)
            return json_response(done, 201)
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
            return json_response(success(target, existing), 201)
        if target.subresource == "token":
            account = f"system:serviceaccount:{target.namespace}:{target.name}"
            body["status"] = {
                "token": self.authenticator.token_for(account),
                "expirationTimestamp": "2099-01-01T00:00:00Z",
            }
            return json_response(body, 201)
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
        return json_response(scale.scale_of(target.resource, result))

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
            return json_response(self._list_body(resource, chosen_bodies))
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
        return json_response(success(target, existing))

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
            return json_response(tables.table(resource, bodies, meta, include))
        result = self._list_body(resource, bodies)
        result["metadata"] = meta
        if form == "PartialObjectMetadataList":
            result["kind"], result["apiVersion"] = form, "meta.k8s.io/v1"
            result["items"] = [metadata_only(body) for body in bodies]
        return json_response(result)

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
        encode = EventEncoder(request, resource)
        await response.prepare(request)
        watch = None
        try:
            watch = self.store.watch(resource.plural, resource.group, target.namespace, since)
            await stream_watch(
                self.store, response, watch, matches, encode, request, initial=initial
            )
        except ApiError as error:
            # Where the API server answers too: in the stream, not by the status.
            await response.write(encode.line("ERROR", error.status()))
        except ConnectionResetError:
            _log.debug("a client left its watch of %s", resource.plural)
        finally:
            if watch is not None:
                watch.close()
        return response


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
