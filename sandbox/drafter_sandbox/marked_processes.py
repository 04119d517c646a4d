"""Finds and ends processes by a mark in their environment.

As a program it ends the Pods' processes when the sandbox was killed and cannot do it itself: the
kernel can end only the first process of a container with its parent. It runs beside the sandbox
and waits until the pipe between them breaks.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time

import psutil

STATE_MARK = "SANDBOX_STATE"
"""Environment variable with the state folder of the sandbox that a process belongs to."""

_ATTEMPTS = 100
_PAUSE_SECONDS = 0.05


def kill_marked(name: str, value: str, begun_before: float = math.inf) -> int:
    """Kill every process of this user with a mark; return how many there were.

    Parameters
    ----------
    begun_before
        Spares processes that started later, in seconds since the epoch.
    """
    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.environ().get(name) != value:
                continue
            if process.create_time() > begun_before:
                continue
            process.kill()
            found += 1
    return found


def main() -> None:
    """Wait for the end of the standard input, then end every process of a state folder."""
    sys.stdin.buffer.read()
    # The next sandbox on the folder may start meanwhile; its processes are younger.
    broken = time.time()
    for _ in range(_ATTEMPTS):
        if not kill_marked(STATE_MARK, sys.argv[1], begun_before=broken):
            return
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
