"""Stands in for the operator's connection to an API server: keeps objects in memory."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from drafter_operator.cluster.api import ApiError, KubernetesApi

Object = dict[str, Any]


def merge(target: Any, patch: Mapping[str, Any]) -> Object:
    """Apply a JSON merge patch (RFC 7386)."""
    result = dict(target) if isinstance(target, Mapping) else {}
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        elif isinstance(value, Mapping):
            result[field] = merge(result.get(field), value)
        else:
            result[field] = value
    return result


class FakeKubernetes(KubernetesApi):
    """Answers from a dictionary; ``before`` is called ahead of every request."""

    def __init__(self, *bodies: Object) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.before: Callable[[str, str, str], None] = lambda verb, kind, name: None
        for body in bodies:
            self.objects[body["kind"], body["metadata"]["name"]] = copy.deepcopy(body)

    def _called(self, verb: str, kind: str, name: str) -> None:
        self.calls.append((verb, kind, name))
        self.before(verb, kind, name)

    def writes(self) -> list[tuple[str, str, str]]:
        return [call for call in self.calls if call[0] not in ("get", "list")]

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        self._called(method, path, "")
        runs = [body for (kind, _), body in self.objects.items() if kind == "DrafterRun"]
        return json.dumps({"items": runs}).encode()

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self._called("get", kind, name)
        found = copy.deepcopy(self.objects.get((kind, name)))
        await asyncio.sleep(0)
        return found

    async def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        self._called("list", kind, selector)
        label, _, value = selector.partition("=")
        return [
            copy.deepcopy(body)
            for (found, _), body in self.objects.items()
            if found == kind and body["metadata"].get("labels", {}).get(label) == value
        ]

    async def apply(self, body: Mapping[str, Any]) -> None:
        self._called("apply", body["kind"], body["metadata"]["name"])
        self.objects[body["kind"], body["metadata"]["name"]] = copy.deepcopy(dict(body))

    async def patch(
        self, kind: str, namespace: str, name: str, body: Mapping[str, Any], subresource: str = ""
    ) -> None:
        self._called("patch", kind, name)
        if (kind, name) not in self.objects:
            raise ApiError("patch", name, 404, "not found")
        self.objects[kind, name] = merge(self.objects[kind, name], body)

    async def create(self, body: Mapping[str, Any]) -> None:
        self._called("create", body["kind"], body["metadata"]["name"])
        self.objects[body["kind"], body["metadata"]["name"]] = copy.deepcopy(dict(body))
