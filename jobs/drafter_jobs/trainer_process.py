"""torchrun and the processes below it: where they meet, what they say, how they end."""

from __future__ import annotations

import collections
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from drafter_jobs.contract.outcome import ExitCode, Reason
from drafter_jobs.job import JobError
from drafter_jobs.training_events import parse_event
from drafter_jobs.training_metrics import log_milestone

RENDEZVOUS_PORT = 29500
RESOLVE_TIMEOUT_SECONDS = 300
SAVE_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = SAVE_TIMEOUT_SECONDS + 15
"""Longer, so that torchrun has ended the processes that do not save in time."""
KEPT_LOG_LINES = 400


def rendezvous(nodes: int, node_rank: int, processes_per_node: int, at: str | None) -> list[str]:
    """Return torchrun's arguments for where the processes meet.

    Parameters
    ----------
    at
        ``HOST:PORT`` of node 0; may be None on a single node.

    Raises
    ------
    JobError
        The arguments do not fit each other, or the host has no address in time.
    """
    shape = ["--nproc-per-node", str(processes_per_node), "--nnodes", str(nodes)]
    if nodes == 1:
        # A free port of its own: several trainings may share this machine's addresses.
        return [*shape, "--standalone"]
    if node_rank >= nodes:
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"--node-rank {node_rank} is outside of --nodes {nodes}, from 0",
        )
    if not at:
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"--nodes {nodes} needs --rendezvous HOST:PORT",
        )
    host, colon, port = at.rpartition(":")
    if not colon:
        host, port = port, ""
    address = _resolve(host.strip("[]"))
    return [
        *shape,
        *("--node-rank", str(node_rank)),
        *("--master-addr", address, "--master-port", port or str(RENDEZVOUS_PORT)),
    ]


def _resolve(host: str) -> str:
    """Return the address of a host, waiting until its Pod is known to the DNS."""
    deadline = time.monotonic() + RESOLVE_TIMEOUT_SECONDS
    while True:
        try:
            return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except socket.gaierror as error:
            if time.monotonic() > deadline:
                raise JobError(
                    ExitCode.INTERRUPTED,
                    Reason.INTERRUPTED,
                    f"the host {host} of node 0 has no address after"
                    f" {RESOLVE_TIMEOUT_SECONDS} s ({error}): is its Pod running?",
                ) from None
            time.sleep(1)


class TrainerProcess:
    """torchrun and everything below it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.last_lines: collections.deque[str] = collections.deque(maxlen=KEPT_LOG_LINES)
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the trainer until it ends; print its log."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = parse_event(line)
            if event is not None:
                yield event
            elif line.strip():
                self.last_lines.append(line.rstrip())
                print(line, end="", file=sys.stderr, flush=True)

    def wait(self) -> int:
        """Return the exit code of torchrun."""
        return self._process.wait()

    def save_and_stop(self) -> None:
        """Let the trainer save where it is, then end it."""
        self._process.terminate()
        timer = threading.Timer(STOP_TIMEOUT_SECONDS, self.kill)
        timer.start()
        for event in self.events():
            log_milestone(event)
        self._process.wait()
        timer.cancel()
        self.kill()

    def kill(self) -> None:
        """End every process of the trainer at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
