"""The kopf handlers: every one only says which run to look at."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import kopf

from drafter_operator import metrics
from drafter_operator.api.base import GROUP, PLURAL, VERSION
from drafter_operator.cluster.api import ApiError, KubernetesApi
from drafter_operator.handlers.reconciler import Key, Reconciler, logger
from drafter_operator.resources.names import RUN_LABEL

CHILDREN = (("batch", "v1", "jobs"), ("apps", "v1", "deployments"), ("", "v1", "pods"))
WATCH_TIMEOUT_SECONDS = 300
DEFINITION_SECONDS = 2.0
"""Time between two looks whether runs are served, before the first one."""

RunVersion = tuple[str, int, dict[str, str], str | None]
"""What a user can change of a run: uid, generation, annotations, deletion."""


def version_of(body: Mapping[str, Any]) -> RunVersion:
    """Return what tells two versions of a run apart, but for its status."""
    metadata = body["metadata"]
    return (
        metadata["uid"],
        metadata.get("generation", 0),
        dict(metadata.get("annotations") or {}),
        metadata.get("deletionTimestamp"),
    )


def build_registry(
    reconciler: Reconciler,
    api: KubernetesApi,
    namespaces: Sequence[str],
    resync_seconds: float,
) -> kopf.OperatorRegistry:
    """Return the handlers.

    Event handlers need no finalizer and no annotations on the objects, so that deleting a run
    or its namespace never waits for the operator.
    """
    registry = kopf.OperatorRegistry()
    resync: list[asyncio.Task[None]] = []
    seen: dict[Key, RunVersion] = {}

    @kopf.on.login(registry=registry)
    def log_in(**keywords: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**keywords)

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        # A silent connection is a dead one: the server ends each watch, and so does the client.
        settings.watching.server_timeout = WATCH_TIMEOUT_SECONDS
        settings.watching.client_timeout = WATCH_TIMEOUT_SECONDS + 30
        settings.watching.connect_timeout = 10
        settings.posting.enabled = False
        # To look out for new definitions and namespaces would take rights on the whole cluster;
        # what is served may be asked by everyone.
        settings.scanning.disabled = True
        await wait_for_definition(api)
        await reconciler.start()
        resync.append(
            asyncio.create_task(resync_for_ever(reconciler, api, namespaces, resync_seconds))
        )

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        for task in resync:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await reconciler.stop()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def run_changed(namespace: str | None, name: str, event: Any, **_: Any) -> None:
        metrics.LAST_WATCH_EVENT.labels(PLURAL).set_to_current_time()
        key = (str(namespace), name)
        if event["type"] == "DELETED":
            seen.pop(key, None)
        else:
            version = version_of(event["object"])
            # The operator's own writes of the status change nothing that it has to answer.
            if seen.get(key) == version:
                return
            seen[key] = version
        reconciler.wake(key)

    async def child_changed(
        namespace: str | None, labels: Any, resource: kopf.Resource, **_: Any
    ) -> None:
        metrics.LAST_WATCH_EVENT.labels(resource.plural).set_to_current_time()
        reconciler.wake((str(namespace), labels[RUN_LABEL]))

    for group, version, plural in CHILDREN:
        kopf.on.event(group, version, plural, labels={RUN_LABEL: kopf.PRESENT}, registry=registry)(
            child_changed
        )
    return registry


async def wait_for_definition(api: KubernetesApi) -> None:
    """Return once the API server serves runs: what is watched is looked up only once."""
    told = False
    while True:
        try:
            await api.request("GET", f"/apis/{GROUP}/{VERSION}")
            return
        except ApiError as error:
            if not told:
                logger.warning(
                    "the CustomResourceDefinition %s.%s is not there yet (%s): install the chart"
                    " with crds.enabled=true, or apply crds/",
                    PLURAL,
                    GROUP,
                    error,
                )
                told = True
        await asyncio.sleep(DEFINITION_SECONDS)


async def resync_for_ever(
    reconciler: Reconciler, api: KubernetesApi, namespaces: Sequence[str], seconds: float
) -> None:
    """List all runs now and then and look at each, in case a watch has died silently."""
    while True:
        try:
            for key in await list_runs(api, namespaces):
                reconciler.wake(key)
            reconciler.last_alive = time.monotonic()
            reconciler.has_listed = True
            metrics.LAST_RESYNC.set_to_current_time()
        except ApiError as error:
            metrics.RECONCILE_ERRORS.labels(kind="Resync").inc()
            logger.error("the resync failed: %s", error)
        await asyncio.sleep(seconds)


async def list_runs(api: KubernetesApi, namespaces: Sequence[str]) -> list[tuple[str, str]]:
    """Return namespace and name of every run the operator looks after."""
    base = f"/apis/{GROUP}/{VERSION}"
    paths = [f"{base}/namespaces/{name}/{PLURAL}" for name in namespaces] or [f"{base}/{PLURAL}"]
    found = []
    for path in paths:
        answer = json.loads(await api.request("GET", path))
        found += [
            (item["metadata"]["namespace"], item["metadata"]["name"]) for item in answer["items"]
        ]
    return found
