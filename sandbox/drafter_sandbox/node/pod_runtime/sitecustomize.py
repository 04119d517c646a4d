"""Lets the Python programs of the sandbox's Pods resolve the names of Services and Pods.

The node puts this directory on ``PYTHONPATH`` and names a file of the form of ``/etc/hosts`` in
``SANDBOX_HOSTS``. Names that the file lacks are resolved as ever. Programs that do not resolve
names through Python's ``socket`` module are out of reach.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

_getaddrinfo = socket.getaddrinfo
_gethostbyname = socket.gethostbyname


def _known(host: object) -> str | None:
    path = os.environ.get("SANDBOX_HOSTS")
    if not path or not isinstance(host, str):
        return None
    wanted = host.rstrip(".").lower()
    try:
        with Path(path).open(encoding="utf-8") as hosts:
            for line in hosts:
                address, *names = line.split()
                if wanted in names:
                    return address
    except OSError:
        return None
    return None


def _resolve(host: Any, *arguments: Any, **keywords: Any) -> Any:
    return _getaddrinfo(_known(host) or host, *arguments, **keywords)


def _resolve_by_name(host: str) -> str:
    return _known(host) or _gethostbyname(host)


socket.getaddrinfo = _resolve
socket.gethostbyname = _resolve_by_name
