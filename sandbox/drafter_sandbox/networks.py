"""Which loopback addresses belong to a sandbox, so that two on one machine do not meet."""

from __future__ import annotations

import socket
import zlib
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

_COUNT = 32
_FIRST_POD_NETWORK = 64
_FIRST_SERVICE_NETWORK = 96
# Whoever listens here has the networks.
_MARK_PORT = 6443


class NetworkTakenError(Exception):
    """The networks of a state folder are used by another sandbox."""


@dataclass(frozen=True)
class Networks:
    """The networks of one sandbox, held until :meth:`release`."""

    pods: IPv4Network
    services: IPv4Network
    mark: socket.socket

    def release(self) -> None:
        """Let other sandboxes have the networks."""
        self.mark.close()


def claim(state: Path) -> Networks:
    """Return the networks of a state folder: free ones at the first call, then the same.

    Raises
    ------
    NetworkTakenError
        When another running sandbox has them.
    """
    file = state / "network"
    remembered = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    if remembered.isdigit():
        found = _take(int(remembered) % _COUNT)
        if found is None:
            raise NetworkTakenError(f"127.{_FIRST_SERVICE_NETWORK + int(remembered)}.0.0/16")
        return found
    # Folders begin at different places, so that they seldom want the same later.
    start = zlib.crc32(str(state).encode())
    for step in range(_COUNT):
        index = (start + step) % _COUNT
        found = _take(index)
        if found is not None:
            file.write_text(f"{index}\n", encoding="utf-8")
            return found
    raise NetworkTakenError("127.96.0.0/11")


def _take(index: int) -> Networks | None:
    pods = IPv4Network(f"127.{_FIRST_POD_NETWORK + index}.0.0/16")
    services = IPv4Network(f"127.{_FIRST_SERVICE_NETWORK + index}.0.0/16")
    mark = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        mark.bind((str(services.broadcast_address - 1), _MARK_PORT))
        mark.listen(1)
    except OSError:
        mark.close()
        return None
    return Networks(pods, services, mark)
