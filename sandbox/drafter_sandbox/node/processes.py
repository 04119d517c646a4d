"""The process of a container, and everything it started.

Every process of a container carries a mark in its environment. What is left of a container is
found by it: when its first process ends, as the kernel ends a PID namespace, and when a sandbox
that was killed starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from drafter_sandbox.marked_processes import kill_marked

CONTAINER_MARK = "SANDBOX_CONTAINER"

_KILL_ATTEMPTS = 200
_KILL_PAUSE_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_the_sandbox() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ContainerProcess:
    """A running container.

    Parameters
    ----------
    mark
        Value of :data:`CONTAINER_MARK`, unlike any other container's.
    """

    def __init__(self, process: asyncio.subprocess.Process, mark: str) -> None:
        self._process = process
        self._mark = mark

    @property
    def pid(self) -> int:
        """Process id of the first process."""
        return self._process.pid

    async def wait(self) -> int:
        """Return the exit code once the container has ended; 128 + n for signal n."""
        code = await self._process.wait()
        # A process may have started another in between, and takes a moment to be gone.
        for _ in range(_KILL_ATTEMPTS):
            if not kill_marked(CONTAINER_MARK, self._mark):
                break
            await asyncio.sleep(_KILL_PAUSE_SECONDS)
        return 128 - code if code < 0 else code

    def terminate(self) -> None:
        """Ask the first process to end, as the kubelet does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End every process at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        kill_marked(CONTAINER_MARK, self._mark)


async def start_container(
    argv: Sequence[str], environment: Mapping[str, str], directory: Path, log: Path
) -> ContainerProcess:
    """Start a container's first process.

    Parameters
    ----------
    environment
        All variables, with a value of :data:`CONTAINER_MARK` unlike any other container's.

    Raises
    ------
    OSError
        There is no such program, or it cannot be run.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environment),
            cwd=directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_the_sandbox,
        )
    return ContainerProcess(process, environment[CONTAINER_MARK])
