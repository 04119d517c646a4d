"""The API server's HTTP side: listening, authentication, authorization, discovery."""

from __future__ import annotations

import logging
import ssl

from aiohttp import web

from drafter_sandbox import discovery, openapi
from drafter_sandbox.audit import AuditLog
from drafter_sandbox.auth import Authenticator, User, user_named
from drafter_sandbox.authorization import Attributes, Authorizer, attributes_of, denied
from drafter_sandbox.errors import ApiError, no_such_resource
from drafter_sandbox.requests import flag, parse_target, presentation
from drafter_sandbox.responses import found, json_response
from drafter_sandbox.rest import Resources
from drafter_sandbox.schemas import KUBERNETES_VERSION
from drafter_sandbox.store import Store
from drafter_sandbox.streams import LogSource

_log = logging.getLogger(__name__)

_BODY_LIMIT = 16 * 2**20


class ApiServer:
    """Serves a store as Kubernetes serves its objects.

    Parameters
    ----------
    tls
        TLS settings; None serves plain HTTP, over which kubectl sends no token.
    audit
        Keeps who asked for what; None keeps nothing.
    """

    def __init__(
        self,
        store: Store,
        authenticator: Authenticator,
        tls: ssl.SSLContext | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self.store = store
        self._tls = tls
        self._audit = audit or AuditLog(None)
        self._authorizer = Authorizer(store)
        self._resources = Resources(store, authenticator, self._authorizer)
        self.authenticator = authenticator
        self._runner: web.AppRunner | None = None

    def serve_logs(self, source: LogSource) -> None:
        """Read the logs of Pods from a source."""
        self._resources.logs = source

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
        self._audit.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._route(request)
        except ApiError as error:
            return json_response(error.status(), error.code)
        except web.HTTPRequestEntityTooLarge:
            failure = ApiError(413, "RequestEntityTooLarge", "the request is larger than 16 MiB")
            return json_response(failure.status(), failure.code)
        except ConnectionResetError:
            # The client went away in the middle of an answer.
            raise
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.path)
            failure = ApiError(500, "InternalError", f"Internal error occurred: {error!r}")
            return json_response(failure.status(), failure.code)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        user = self._user(request)
        asked = attributes_of(request.method, path, request.query)
        verdict = self._authorizer.decide(user, asked)
        record = self._audit.begin(request, user, asked, verdict)
        if _goes_on(request, asked) and verdict.allowed:
            record.begun()
        try:
            if not verdict.allowed:
                raise denied(user, asked, verdict.reason)
            response = await self._answer(request, user)
        except ApiError as error:
            record.refused(error)
            raise
        record.answered(response.status)
        return response

    def _user(self, request: web.Request) -> User:
        """Return whom a request comes from, or as whom it wants to be treated."""
        user = self.authenticator.user(request.headers.get("Authorization"))
        if user is None or not self._is_there(user):
            raise ApiError(401, "Unauthorized", "Unauthorized")
        wanted = request.headers.get("Impersonate-User")
        if wanted is None:
            return user
        groups = tuple(request.headers.getall("Impersonate-Group", []))
        found = user_named(wanted, groups)
        for resource, name in [("users", wanted), *(("groups", group) for group in groups)]:
            asked = Attributes("impersonate", resource=resource, name=name)
            if resource == "users" and (account := found.service_account):
                asked = Attributes(
                    "impersonate",
                    resource="serviceaccounts",
                    namespace=account[0],
                    name=account[1],
                )
            self._authorizer.check(user, asked)
        return found

    def _is_there(self, user: User) -> bool:
        account = user.service_account
        # The token of a ServiceAccount is worth nothing once the account is gone.
        return account is None or self.store.get("serviceaccounts", *account) is not None

    async def _answer(self, request: web.Request, user: User) -> web.StreamResponse:
        path = request.path
        if path.rstrip("/") in ("", "/api", "/apis", "/version") or path.startswith("/openapi"):
            return self._describe(request)
        parts = [part for part in path.split("/") if part]
        if parts[0] == "api" and len(parts) == 2:
            return found(discovery.resource_list(self.store.registry, "", parts[1]))
        if parts[0] == "apis" and len(parts) == 2:
            return found(discovery.group(self.store.registry, parts[1]))
        if parts[0] == "apis" and len(parts) == 3:
            return found(discovery.resource_list(self.store.registry, parts[1], parts[2]))
        target = parse_target(self.store.registry, path)
        return await self._resources.handle(request, target, user)

    def _describe(self, request: web.Request) -> web.Response:
        registry = self.store.registry
        path = request.path.rstrip("/")
        if path == "/version":
            major, minor = KUBERNETES_VERSION.split(".")
            return json_response(
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
                return json_response(body, content_type=discovery.AGGREGATED)
            core = path == "/api"
            return json_response(
                discovery.api_versions() if core else discovery.group_list(registry)
            )
        if path == "/openapi/v3":
            return json_response(openapi.document_paths(registry))
        if path.startswith("/openapi/v3/"):
            parts = path.removeprefix("/openapi/v3/").split("/")
            group, version = ("", parts[-1]) if parts[0] == "api" else (parts[1], parts[-1])
            return found(openapi.document(registry, group, version))
        raise no_such_resource()


def _goes_on(request: web.Request, asked: Attributes) -> bool:
    """Return whether the answer is a stream that its reader may follow for long."""
    return asked.verb == "watch" or (asked.subresource == "log" and flag(request.query, "follow"))
