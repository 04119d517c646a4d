"""Services: addresses, endpoints, a forwarder for each port, and names that resolve."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drafter_sandbox.errors import ApiError
from drafter_sandbox.node.container_status import is_ready
from drafter_sandbox.node.jobs import owner_reference
from drafter_sandbox.node.scheduler import FINISHED
from drafter_sandbox.selectors import label_predicate
from drafter_sandbox.store import Store

logger = logging.getLogger(__name__)
_CHUNK = 1 << 16
DOMAIN = "cluster.local"

Endpoint = tuple[str, int]
"""Address and port of a Pod."""

PortKey = tuple[str, int]
"""Address and port of a Service."""


def endpoints(
    service: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]
) -> dict[int, list[Endpoint]]:
    """Return the Pods' addresses behind each port of a Service."""
    selector = service["spec"].get("selector")
    if not selector:
        return {}
    matches = label_predicate(dict(selector))
    unready_too = service["spec"].get("publishNotReadyAddresses", False)
    found: dict[int, list[Endpoint]] = {}
    for port in service["spec"].get("ports") or []:
        found[port["port"]] = [
            (pod["status"]["podIP"], number)
            for pod in pods
            if matches(dict(pod))
            and pod["status"].get("podIP")
            and pod["status"].get("phase") not in FINISHED
            and not pod["metadata"].get("deletionTimestamp")
            and (unready_too or is_ready(pod))
            and (number := _target_port(pod, port.get("targetPort", port["port"]))) is not None
        ]
    return found


def _target_port(pod: Mapping[str, Any], target: int | str) -> int | None:
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == target:
                return int(port["containerPort"])
    return int(target) if target.isdigit() else None


def host_lines(
    namespace: str, services: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the lines of the file that names are resolved by in a namespace."""
    lines = []
    for service in services:
        name, home = service["metadata"]["name"], service["metadata"]["namespace"]
        names = _names(name, home, namespace)
        address = service["spec"].get("clusterIP")
        if address and address != "None":
            lines.append(f"{address} {' '.join(names)}")
            continue
        own = [pod for pod in pods if pod["metadata"]["namespace"] == home]
        ready = [found for group in endpoints(service, own).values() for found in group]
        lines += [f"{address} {' '.join(names)}" for address, _ in ready[:1]]
        for pod in own:
            spec = pod["spec"]
            known = (
                spec.get("subdomain") == name
                and spec.get("hostname")
                and pod["status"].get("podIP")
                and pod["status"].get("phase") not in FINISHED
            )
            if known:
                full = [f"{spec['hostname']}.{end}" for end in names]
                lines.append(f"{pod['status']['podIP']} {' '.join(full)}")
    return lines


def _names(name: str, home: str, namespace: str) -> list[str]:
    names = [f"{name}.{home}", f"{name}.{home}.svc", f"{name}.{home}.svc.{DOMAIN}"]
    return [name, *names] if home == namespace else names


class _Forwarder:
    """Passes connections to a Service's port on to its Pods, one after the other."""

    def __init__(self) -> None:
        self.targets: Sequence[Endpoint] = ()
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, address: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, address, port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        targets = list(self.targets)
        if not targets:
            return
        address, port = targets[next(self._turn) % len(targets)]
        target_reader, target_writer = await asyncio.open_connection(address, port)
        try:
            await asyncio.gather(
                _pump(reader, target_writer), _pump(target_reader, writer), return_exceptions=True
            )
        finally:
            target_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class ServiceController:
    """Keeps the endpoints, forwarders and names of Services up to date.

    Parameters
    ----------
    directory
        Where the files with names are kept, one for each namespace.
    """

    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._forwarders: dict[PortKey, _Forwarder] = {}
        self._starting: set[asyncio.Task[None]] = set()

    def hosts_for(self, namespace: str) -> Path:
        """Return the file with the names a Pod of a namespace can resolve."""
        path = self._directory / namespace
        if not path.exists():
            path.touch()
        return path

    def reconcile(self) -> float | None:
        """Look at every Service."""
        services = self._store.list("services")
        pods = self._store.list("pods")
        wanted: dict[PortKey, list[Endpoint]] = {}
        for service in services:
            own = [
                pod
                for pod in pods
                if pod["metadata"]["namespace"] == service["metadata"]["namespace"]
            ]
            behind = endpoints(service, own)
            self._publish(service, behind)
            address = service["spec"].get("clusterIP")
            if address not in (None, "None"):
                wanted |= {(address, port): targets for port, targets in behind.items()}
        self._forward(wanted)
        self._write_names(services, pods)
        return None

    def _publish(
        self, service: Mapping[str, Any], behind: Mapping[int, Sequence[Endpoint]]
    ) -> None:
        """Keep the EndpointSlice of a Service."""
        metadata = service["metadata"]
        ports = {port["port"]: port for port in service["spec"].get("ports") or []}
        addresses = sorted({address for group in behind.values() for address, _ in group})
        numbers = {port: group[0][1] if group else None for port, group in behind.items()}
        body: dict[str, Any] = {
            "metadata": {
                "name": f"{metadata['name']}-sandbox",
                "labels": {"kubernetes.io/service-name": metadata["name"]},
                "ownerReferences": [owner_reference(service)],
            },
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": [address], "conditions": {"ready": True}} for address in addresses
            ],
            "ports": [
                {
                    "name": ports[port].get("name", ""),
                    "port": number,
                    "protocol": ports[port].get("protocol", "TCP"),
                }
                for port, number in numbers.items()
                if number is not None
            ],
        }
        kind = ("endpointslices", metadata["namespace"])
        known = self._store.get(*kind, body["metadata"]["name"], "discovery.k8s.io")
        if known is None:
            self._store.create(*kind, body, "discovery.k8s.io")
        elif any(known.get(field) != body[field] for field in ("endpoints", "ports")):
            known.update(endpoints=body["endpoints"], ports=body["ports"])
            self._store.update(*kind, body["metadata"]["name"], known, "discovery.k8s.io")

    def _forward(self, wanted: Mapping[PortKey, list[Endpoint]]) -> None:
        for key in self._forwarders.keys() - wanted.keys():
            self._run(self._forwarders.pop(key).stop())
        for key, targets in wanted.items():
            if key not in self._forwarders:
                self._forwarders[key] = _Forwarder()
                self._run(self._start(key))
            self._forwarders[key].targets = targets

    async def _start(self, key: PortKey) -> None:
        try:
            await self._forwarders[key].start(*key)
        except OSError as error:
            logger.warning("%s:%s of a Service cannot be bound: %s", *key, error)

    def _run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _write_names(
        self, services: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]
    ) -> None:
        for namespace in self._store.list("namespaces"):
            name = namespace["metadata"]["name"]
            text = "".join(f"{line}\n" for line in host_lines(name, services, pods))
            path = self.hosts_for(name)
            if path.read_text(encoding="utf-8") != text:
                beside = path.with_name(f".{name}.new")
                beside.write_text(text, encoding="utf-8")
                beside.replace(path)

    async def stop(self) -> None:
        """Close every forwarder."""
        with contextlib.suppress(ApiError):
            for forwarder in self._forwarders.values():
                await forwarder.stop()
