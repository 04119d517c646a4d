"""Requests to the Kubernetes API, through the official client's connection."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

import kubernetes
import urllib3

from drafter_operator.api.base import GROUP, PLURAL, VERSION
from drafter_operator.cluster.refusals import missing_right
from drafter_operator.metrics import API_REQUESTS

FIELD_MANAGER = "drafter-operator"
REQUEST_TIMEOUT_SECONDS = 15

APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"

RUNS = f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{PLURAL}"
COLLECTIONS = {
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "PersistentVolumeClaim": "/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Event": "/api/v1/namespaces/{namespace}/events",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
    "DrafterRun": RUNS,
}
"""Path of each kind's collection."""


FORBIDDEN = 403


class ApiError(Exception):
    """The API server refused a request, or did not answer.

    Attributes
    ----------
    status
        HTTP status; 0 without an answer.
    message
        The server's own words.
    missing_right
        Which right is missing and the way out, if that is the reason.
    """

    def __init__(self, verb: str, path: str, status: int, message: str) -> None:
        self.status = status
        self.message = message
        self.missing_right = missing_right(message) if status == FORBIDDEN else None
        super().__init__(f"{verb} {path}: {self.missing_right or message}")


class KubernetesApi:
    """Reads and writes objects as plain dictionaries.

    Parameters
    ----------
    client
        The official client, with its credentials.

    Attributes
    ----------
    may_write
        Asked right before each write, but for the Lease's own.
    """

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self._client = client
        self.may_write: Callable[[], bool] = lambda: True

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request and return the body of the answer.

        Raises
        ------
        ApiError
            The server refused it or did not answer.
        """
        return await asyncio.to_thread(self._request, method, path, query, body, content_type)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
    ) -> bytes:
        if method != "GET" and "/leases" not in path and not self.may_write():
            raise ApiError(method, path, 0, "another operator is the active one")
        headers = {"Accept": "application/json", "User-Agent": self._client.user_agent}
        text = None
        if body is not None:
            headers["Content-Type"] = content_type
            text = json.dumps(body)
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, text)
        url = self._client.configuration.host + path
        if query:
            url += "?" + urllib.parse.urlencode(query)
        try:
            response = self._client.rest_client.pool_manager.request(
                method,
                url,
                headers=headers,
                body=text,
                timeout=urllib3.Timeout(total=REQUEST_TIMEOUT_SECONDS),
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            API_REQUESTS.labels(verb=method, code="none").inc()
            raise ApiError(method, path, 0, f"no answer ({error})") from error
        API_REQUESTS.labels(verb=method, code=str(response.status)).inc()
        data: bytes = response.data
        if response.status >= 300:
            raise ApiError(method, path, response.status, _message(data))
        return data

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if there is none of that name."""
        try:
            found = json.loads(await self.request("GET", _path(kind, namespace, name)))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return dict(found)

    async def list(self, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the objects with the labels of a selector."""
        answer = await self.request(
            "GET", _path(kind, namespace), query={"labelSelector": selector}
        )
        return list(json.loads(answer)["items"])

    async def apply(self, body: Mapping[str, Any]) -> None:
        """Apply an object on the server's side; the operator owns what it names."""
        metadata = body["metadata"]
        await self.request(
            "PATCH",
            _path(body["kind"], metadata["namespace"], metadata["name"]),
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=body,
            content_type=APPLY,
        )

    async def patch(
        self, kind: str, namespace: str, name: str, body: Mapping[str, Any], subresource: str = ""
    ) -> None:
        """Merge a patch into an object, or into its subresource."""
        path = _path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        await self.request(
            "PATCH",
            path,
            query={"fieldManager": FIELD_MANAGER},
            body=body,
            content_type=MERGE_PATCH,
        )

    async def create(self, body: Mapping[str, Any]) -> None:
        """Create an object."""
        await self.request("POST", _path(body["kind"], body["metadata"]["namespace"]), body=body)

    async def replace(self, body: Mapping[str, Any]) -> None:
        """Replace an object; its resource version, if it has one, must be the present one."""
        metadata = body["metadata"]
        path = _path(body["kind"], metadata["namespace"], metadata["name"])
        await self.request("PUT", path, body=body)


def now_rfc3339() -> str:
    """Return the present time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _path(kind: str, namespace: str, name: str | None = None) -> str:
    collection = COLLECTIONS[kind].format(namespace=namespace)
    return f"{collection}/{name}" if name else collection


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data).get("message", data[:300]))
    except ValueError:
        return data[:300].decode(errors="replace")
