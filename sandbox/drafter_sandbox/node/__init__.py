"""The sandbox's node: a scheduler, controllers and a kubelet that runs Pods as local processes.

What differs from a cluster: limits of CPU and memory are counted, not enforced, and so are
read-only mounts and the sizes of claims. Mounted ConfigMaps and Secrets keep the content they had
at the Pod's start. A Pod deleted by hand is replaced by its Job and not counted as an attempt.
Names of Services resolve in programs that ask Python's ``socket`` module. There are no controllers
for StatefulSets, DaemonSets and CronJobs, no sidecars among the init containers, no lifecycle
hooks, no ``subPathExpr`` and no gRPC probes.
"""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import version
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from drafter_sandbox.auth import Authenticator, kubeconfig, write_private
from drafter_sandbox.certificates import server_certificate
from drafter_sandbox.marked_processes import STATE_MARK, kill_marked
from drafter_sandbox.node.claims import ClaimController, ensure_storage_class
from drafter_sandbox.node.deployments import DeploymentController, ReplicaSetController
from drafter_sandbox.node.images import load_images
from drafter_sandbox.node.jobs import JobController
from drafter_sandbox.node.kubelet import Kubelet
from drafter_sandbox.node.logs import PodLogs
from drafter_sandbox.node.loops import ControllerLoop
from drafter_sandbox.node.placement import PlacementController
from drafter_sandbox.node.pod_worker import NodeServices
from drafter_sandbox.node.reaper import Reaper
from drafter_sandbox.node.recorder import EventRecorder
from drafter_sandbox.node.services import ServiceController
from drafter_sandbox.store import Store

NODE_NAME = "sandbox"
BACKOFF_VARIABLE = "DRAFTER_SANDBOX_BACKOFF_SECONDS"
"""Environment variable that shortens the pauses after failures; Kubernetes has 10 s."""

STOP_GRACE_SECONDS = 5.0
MAXIMUM_PODS = 110


class Node:
    """The only node.

    Parameters
    ----------
    state
        Folder of the sandbox.
    images
        File with the table of images.
    url
        The API server, for kubeconfigs of ServiceAccounts.
    cpus, memory
        What the node offers; None takes the machine's.
    tokens
        Makes the tokens of ServiceAccounts.
    pod_network
        Where the addresses of Pods come from.

    Raises
    ------
    ImageTableError
        The table of images cannot be used.
    """

    def __init__(
        self,
        store: Store,
        state: Path,
        images: Path,
        url: str,
        *,
        cpus: float | None,
        memory: str | None,
        tokens: Authenticator,
        pod_network: IPv4Network,
    ) -> None:
        self._store = store
        self._state = state
        self._images = load_images(images)
        self._url = url
        self._cpus = cpus
        self._memory = memory
        self._tokens = tokens
        self._pod_network = pod_network
        self.logs = PodLogs(store, state / "pods")
        self._services = ServiceController(store, state / "hosts")
        self._reaper = Reaper()
        self._http: aiohttp.ClientSession | None = None
        self._kubelet: Kubelet | None = None
        self._loops: list[ControllerLoop] = []

    async def start(self) -> None:
        """Register the node and begin to run Pods, resuming those of the last start."""
        kill_marked(STATE_MARK, str(self._state))
        await self._reaper.start(self._state)
        self._register()
        ensure_storage_class(self._store)
        self._http = aiohttp.ClientSession()
        backoff = float(os.environ.get(BACKOFF_VARIABLE, "10"))
        self._kubelet = Kubelet(
            self._store,
            NODE_NAME,
            self._pod_network,
            NodeServices(
                store=self._store,
                state=self._state,
                images=self._images,
                logs=self.logs,
                events=EventRecorder(self._store, "kubelet"),
                http=self._http,
                kubeconfig_for=self._kubeconfig_for,
                hosts_for=self._services.hosts_for,
                backoff_seconds=backoff,
            ),
        )
        pods, jobs = ("", "pods"), ("batch", "jobs")
        claims, volumes = ("", "persistentvolumeclaims"), ("", "persistentvolumes")
        deployments, sets = ("apps", "deployments"), ("apps", "replicasets")
        placement = PlacementController(
            self._store, NODE_NAME, EventRecorder(self._store, "default-scheduler")
        )
        claim_controller = ClaimController(self._store, self._state / "volumes")
        for name, kinds, reconcile in (
            ("claims", [claims, volumes, pods], claim_controller.reconcile),
            ("jobs", [jobs, pods], JobController(self._store, backoff).reconcile),
            ("deployments", [deployments, sets], DeploymentController(self._store).reconcile),
            ("replicasets", [sets, pods], ReplicaSetController(self._store).reconcile),
            ("scheduler", [pods, claims, ("", "nodes")], placement.reconcile),
            ("kubelet", [pods], self._kubelet.reconcile),
            ("services", [("", "services"), ("", "namespaces"), pods], self._services.reconcile),
        ):
            loop = ControllerLoop(name, self._store, kinds, reconcile)
            self._loops.append(loop)
            loop.start()

    async def stop(self) -> None:
        """End the Pods' processes; the objects stay for the next start."""
        for loop in self._loops:
            await loop.stop()
        if self._kubelet is not None:
            await self._kubelet.stop(STOP_GRACE_SECONDS)
        await self._reaper.stop()
        await self._services.stop()
        if self._http is not None:
            await self._http.close()

    def _register(self) -> None:
        memory = self._memory or f"{psutil.virtual_memory().total // 1024}Ki"
        cpus = self._cpus or len(os.sched_getaffinity(0))
        amounts = {
            "cpu": f"{cpus:g}",
            "memory": memory,
            "pods": str(MAXIMUM_PODS),
            "ephemeral-storage": f"{shutil.disk_usage(self._state).total // 1024}Ki",
        }
        if self._store.get("nodes", None, NODE_NAME) is None:
            self._store.create(
                "nodes",
                None,
                {
                    "metadata": {
                        "name": NODE_NAME,
                        "labels": {
                            "kubernetes.io/hostname": NODE_NAME,
                            "kubernetes.io/os": "linux",
                        },
                    },
                    "spec": {},
                },
            )

        def change(status: dict[str, Any]) -> None:
            status.update(
                capacity=amounts,
                allocatable=amounts,
                conditions=[
                    {
                        "type": "Ready",
                        "status": "True",
                        "reason": "KubeletReady",
                        "message": "the sandbox runs Pods as local processes",
                    }
                ],
                addresses=[{"type": "InternalIP", "address": "127.0.0.1"}],
                nodeInfo={
                    "architecture": platform.machine(),
                    "containerRuntimeVersion": "processes://0",
                    "bootID": "",
                    "kernelVersion": platform.release(),
                    "kubeProxyVersion": "",
                    "machineID": "",
                    "systemUUID": "",
                    "kubeletVersion": f"sandbox-{version('drafter-operator')}",
                    "operatingSystem": "linux",
                    "osImage": "local processes, not isolated",
                },
            )

        self._store.patch_status("nodes", None, NODE_NAME, change)

    def _kubeconfig_for(self, namespace: str, account: str) -> Path:
        path = self._state / "service-accounts" / f"{namespace}.{account}"
        token = self._tokens.token_for(f"system:serviceaccount:{namespace}:{account}")
        path.parent.mkdir(parents=True, exist_ok=True)
        certificate, _ = server_certificate(self._state)
        write_private(path, kubeconfig(self._url, token, certificate))
        return path
