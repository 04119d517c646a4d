"""What ``kubectl logs`` reads: the output of each start of each container."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from drafter_sandbox.errors import ApiError
from drafter_sandbox.store import Store

_CHUNK = 1 << 16
_FOLLOW_SECONDS = 0.2


class PodLogs:
    """Log files of the node's Pods.

    Parameters
    ----------
    root
        Directory with one directory for each Pod's uid.
    """

    def __init__(self, store: Store, root: Path) -> None:
        self._store = store
        self._root = root

    def file(self, uid: str, container: str, restart: int) -> Path:
        """Return the log of one start of a container."""
        return self._root / uid / container / f"{restart}.log"

    async def read(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        tail_lines: int | None,
        previous: bool,
        since_seconds: int | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the log of a container.

        Raises
        ------
        ApiError
            400 when the container has not started yet, or has no previous start.
        """
        body = self._store.get("pods", namespace, pod)
        if body is None:
            return
        restart = _restarts(body, container) - (1 if previous else 0)
        file = self.file(body["metadata"]["uid"], container, restart)
        if not file.exists():
            what = "previous terminated container" if previous else "container"
            raise ApiError(
                400,
                "BadRequest",
                f'{what} "{container}" in pod "{pod}" is waiting to start or not found',
            )
        too_old = since_seconds is not None and (time.time() - file.stat().st_mtime > since_seconds)
        content = b"" if too_old else file.read_bytes()
        offset = len(content) if content else file.stat().st_size
        if tail_lines is not None:
            lines = content.splitlines(keepends=True)
            content = b"".join(lines[-tail_lines:]) if tail_lines else b""
        for start in range(0, len(content), _CHUNK):
            yield content[start : start + _CHUNK]
        while follow:
            # Looked at before reading, so that what was written last is not lost.
            ended = self._ended(namespace, pod, container, restart)
            try:
                with file.open("rb") as opened:
                    opened.seek(offset)
                    fresh = opened.read()
            except FileNotFoundError:
                return
            offset += len(fresh)
            if fresh:
                yield fresh
            if ended:
                return
            await asyncio.sleep(_FOLLOW_SECONDS)

    def _ended(self, namespace: str, pod: str, container: str, restart: int) -> bool:
        body = self._store.get("pods", namespace, pod)
        if body is None or _restarts(body, container) != restart:
            return True
        status = _status(body, container)
        return status is not None and "terminated" in (status.get("state") or {})


def _status(body: dict[str, Any], container: str) -> dict[str, Any] | None:
    status = body.get("status") or {}
    assert isinstance(status, dict)
    for kind in ("containerStatuses", "initContainerStatuses"):
        for found in status.get(kind) or []:
            if found["name"] == container:
                return dict(found)
    return None


def _restarts(body: dict[str, Any], container: str) -> int:
    status = _status(body, container) or {}
    return int(str(status.get("restartCount") or 0))
