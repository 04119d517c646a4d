"""Startup, readiness and liveness of a running container."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp

Execute = Callable[[Sequence[str]], Awaitable[bool]]
"""Runs a command as the container would and returns whether it succeeded."""


def port_number(container: Mapping[str, Any], port: int | str) -> int:
    """Return the number of a port given by number or by name.

    Raises
    ------
    OSError
        No port has that name.
    """
    if isinstance(port, int):
        return port
    for declared in container.get("ports") or []:
        if declared.get("name") == port:
            return int(declared["containerPort"])
    if port.isdigit():
        return int(port)
    raise OSError(f"the container has no port named {port}")


async def probe_succeeds(
    probe: Mapping[str, Any],
    container: Mapping[str, Any],
    address: str,
    http: aiohttp.ClientSession,
    execute: Execute,
) -> bool:
    """Return whether one probe succeeds within its timeout."""
    try:
        async with asyncio.timeout(probe["timeoutSeconds"]):
            return await _attempt(probe, container, address, http, execute)
    except (TimeoutError, OSError, aiohttp.ClientError):
        return False


async def _attempt(
    probe: Mapping[str, Any],
    container: Mapping[str, Any],
    address: str,
    http: aiohttp.ClientSession,
    execute: Execute,
) -> bool:
    if "httpGet" in probe:
        get = probe["httpGet"]
        port = port_number(container, get["port"])
        headers = {item["name"]: item["value"] for item in get.get("httpHeaders") or []}
        url = f"{get['scheme'].lower()}://{get.get('host') or address}:{port}{get['path']}"
        async with http.get(url, headers=headers, allow_redirects=False, ssl=False) as response:
            return 200 <= response.status < 400
    if "tcpSocket" in probe:
        port = port_number(container, probe["tcpSocket"]["port"])
        _, writer = await asyncio.open_connection(address, port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True
    if "exec" in probe:
        return await execute(probe["exec"]["command"])
    # A kind of probe that is not offered must not count as success.
    return False


class ContainerProbes:
    """Watches one running container until cancelled.

    Parameters
    ----------
    check
        Runs one probe.
    changed
        Called with ``started`` and ``ready`` whenever one of them changes.
    unhealthy
        Called with the kind of probe that failed too often: the container is to be restarted.
    """

    def __init__(
        self,
        container: Mapping[str, Any],
        check: Callable[[Mapping[str, Any]], Awaitable[bool]],
        changed: Callable[[bool, bool], None],
        unhealthy: Callable[[str], None],
    ) -> None:
        self._container = container
        self._check = check
        self._changed = changed
        self._unhealthy = unhealthy

    async def watch(self) -> None:
        """Run the startup probe to its success, then the other two side by side."""
        startup = self._container.get("startupProbe")
        if startup and not await self._startup(startup):
            self._unhealthy("Startup")
            return
        readiness = self._container.get("readinessProbe")
        self._changed(True, readiness is None)
        async with asyncio.TaskGroup() as group:
            if readiness:
                group.create_task(self._readiness(readiness))
            if liveness := self._container.get("livenessProbe"):
                group.create_task(self._liveness(liveness))

    async def _startup(self, probe: Mapping[str, Any]) -> bool:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        for attempt in range(probe["failureThreshold"]):
            if attempt:
                await asyncio.sleep(probe["periodSeconds"])
            if await self._check(probe):
                return True
        return False

    async def _readiness(self, probe: Mapping[str, Any]) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        ready, streak = False, 0
        while True:
            good = await self._check(probe)
            streak = streak + 1 if good is not ready else 0
            needed = probe["successThreshold"] if good else probe["failureThreshold"]
            if streak >= needed:
                ready, streak = good, 0
                self._changed(True, ready)
            await asyncio.sleep(probe["periodSeconds"])

    async def _liveness(self, probe: Mapping[str, Any]) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        failures = 0
        while True:
            failures = 0 if await self._check(probe) else failures + 1
            if failures >= probe["failureThreshold"]:
                self._unhealthy("Liveness")
                return
            await asyncio.sleep(probe["periodSeconds"])
