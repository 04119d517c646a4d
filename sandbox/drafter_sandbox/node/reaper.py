"""Starts the program that ends the Pods' processes should the sandbox be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path


class Reaper:
    """The sandbox's end of the pipe."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, state: Path) -> None:
        """Watch over the containers of a state folder from now on."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "drafter_sandbox.marked_processes", str(state)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    async def stop(self) -> None:
        """Break the pipe and wait until nothing is left."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()
