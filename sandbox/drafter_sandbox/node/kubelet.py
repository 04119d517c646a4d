"""Starts a worker for each Pod placed on the node, and ends those of deleted ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Any

from drafter_sandbox.node.addresses import AddressPool
from drafter_sandbox.node.pod_worker import (
    NodeServices,
    PodWorker,
    remove_files,
    remove_files_of_others,
)
from drafter_sandbox.node.scheduler import FINISHED
from drafter_sandbox.store import Store

logger = logging.getLogger(__name__)


class _Running:
    """A Pod's worker, the task it runs in, and the task that ends it."""

    def __init__(self, worker: PodWorker, task: asyncio.Task[None], address: str) -> None:
        self.worker = worker
        self.task = task
        self.address = address
        self.ending: asyncio.Task[None] | None = None


class Kubelet:
    """Runs the Pods of one node."""

    def __init__(
        self, store: Store, node_name: str, network: IPv4Network, services: NodeServices
    ) -> None:
        self._store = store
        self._node_name = node_name
        self._services = services
        self._pods: dict[str, _Running] = {}
        # Pods that had finished before this start: nobody works for them, but their files stay.
        self._finished: set[str] = set()
        pods = store.list("pods")
        used = [
            pod["status"]["podIP"]
            for pod in pods
            if pod["status"].get("podIP") and pod["status"].get("phase") not in FINISHED
        ]
        self._addresses = AddressPool(network, used)
        remove_files_of_others(services.state, {pod["metadata"]["uid"] for pod in pods})

    def reconcile(self) -> float | None:
        """Bring the workers to what the Pods say."""
        present = set()
        for pod in self._store.list("pods"):
            if pod["spec"].get("nodeName") != self._node_name:
                continue
            uid = pod["metadata"]["uid"]
            present.add(uid)
            running = self._pods.get(uid)
            if pod["metadata"].get("deletionTimestamp"):
                self._delete(pod, running)
            elif running is None and pod["status"].get("phase") not in FINISHED:
                self._start(pod)
            elif running is None:
                self._finished.add(uid)
        for uid in self._finished - present:
            self._finished.discard(uid)
            remove_files(self._services.state, uid)
        for uid in self._pods.keys() - present:
            # Removed by force: nobody waits for its end.
            running = self._pods[uid]
            if running.ending is None:
                running.ending = asyncio.create_task(self._end(None, uid, running, 0))
        return None

    def _start(self, pod: Mapping[str, Any]) -> None:
        address = pod["status"].get("podIP") or self._addresses.take()
        self._addresses.keep(address)
        worker = PodWorker(self._services, pod, address)
        task = asyncio.create_task(self._run(pod, worker))
        self._pods[pod["metadata"]["uid"]] = _Running(worker, task, address)

    async def _run(self, pod: Mapping[str, Any], worker: PodWorker) -> None:
        try:
            await worker.run()
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("the Pod %s failed on the node", pod["metadata"]["name"])

    def _delete(self, pod: Mapping[str, Any], running: _Running | None) -> None:
        metadata = pod["metadata"]
        if running is None:
            remove_files(self._services.state, metadata["uid"])
            self._store.remove("pods", metadata["namespace"], metadata["name"], uid=metadata["uid"])
        elif running.ending is None:
            grace = metadata.get("deletionGracePeriodSeconds")
            seconds = 30.0 if grace is None else float(grace)
            running.ending = asyncio.create_task(self._end(pod, metadata["uid"], running, seconds))

    async def _end(
        self, pod: Mapping[str, Any] | None, uid: str, running: _Running, grace_seconds: float
    ) -> None:
        # Ended first, so that the worker can still say how its containers ended.
        ending = asyncio.create_task(running.worker.end(grace_seconds))
        await ending
        running.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running.task
        await running.worker.end(0)
        self._addresses.free(running.address)
        self._pods.pop(uid, None)
        remove_files(self._services.state, uid)
        if pod is not None:
            metadata = pod["metadata"]
            self._store.remove("pods", metadata["namespace"], metadata["name"], uid=uid)

    async def stop(self, grace_seconds: float) -> None:
        """End every Pod's processes; the Pods themselves stay, to be resumed at the next start."""
        for running in self._pods.values():
            running.task.cancel()
        await asyncio.gather(
            *(running.worker.end(grace_seconds) for running in self._pods.values())
        )
        for running in self._pods.values():
            with contextlib.suppress(asyncio.CancelledError):
                await running.task
