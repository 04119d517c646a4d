"""Changes of objects, as they happen and for a while after."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from drafter_sandbox import errors

Body = dict[str, Any]
# Group and plural.
TypeKey = tuple[str, str]

_HISTORY = 20_000


@dataclass(frozen=True)
class WatchEvent:
    """A change of one object.

    Attributes
    ----------
    type
        ``ADDED``, ``MODIFIED`` or ``DELETED``.
    object
        The object after the change (its last state when deleted).
    previous
        The object before the change, None when it was added.
    resource_version
        Position of the change among all changes.
    """

    type: str
    object: Body
    previous: Body | None = None
    resource_version: int = 0


class Watch(AsyncIterator[WatchEvent]):
    """Changes of one type's objects, from the moment it was opened."""

    def __init__(self, close: Callable[[Watch], None], namespace: str | None) -> None:
        self._queue: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        self._close = close
        self._namespace = namespace
        self._closed = False

    def deliver(self, event: WatchEvent) -> None:
        """Queue an event if it concerns the watched namespace."""
        if self._namespace is None or event.object["metadata"].get("namespace") == self._namespace:
            self._queue.put_nowait(event)

    def queued(self) -> list[WatchEvent]:
        """Take the events out that have been delivered already."""
        found = []
        while not self._queue.empty():
            event = self._queue.get_nowait()
            if event is None:
                self._queue.put_nowait(None)
                break
            found.append(event)
        return found

    def close(self) -> None:
        """End the watch; a pending ``anext`` stops."""
        if not self._closed:
            self._closed = True
            self._close(self)
            self._queue.put_nowait(None)

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchEvent:
        event = await self._queue.get()
        if event is None:
            raise StopAsyncIteration
        return event


class Changes:
    """Tells watches of changes, and remembers the last ones.

    Parameters
    ----------
    version
        Number of the last change that is not remembered.
    """

    def __init__(self, version: int) -> None:
        self._horizon = version
        self._watches: dict[TypeKey, list[Watch]] = {}
        self._history: deque[tuple[TypeKey, WatchEvent]] = deque()

    def open(self, key: TypeKey, namespace: str | None) -> Watch:
        """Return a new watch of a type."""
        watches = self._watches.setdefault(key, [])
        watch = Watch(watches.remove, namespace)
        watches.append(watch)
        return watch

    def since(self, key: TypeKey, version: str) -> list[WatchEvent]:
        """Return the changes of a type after a version.

        Raises
        ------
        ApiError
            410 when they are no longer remembered, 400 when the version is
            none.
        """
        if not version.isdigit():
            raise errors.bad_request(f"Invalid value for resourceVersion: {version!r}")
        number = int(version)
        if number < self._horizon:
            raise errors.expired(f"too old resource version: {number} ({self._horizon})")
        return [
            event
            for changed, event in self._history
            if changed == key and event.resource_version > number
        ]

    def publish(self, key: TypeKey, event: WatchEvent) -> None:
        """Tell the watches of a type of a change."""
        self._history.append((key, event))
        if len(self._history) > _HISTORY:
            self._horizon = self._history.popleft()[1].resource_version
        for watch in list(self._watches.get(key, ())):
            watch.deliver(event)

    def close(self) -> None:
        """End all watches."""
        for watches in list(self._watches.values()):
            for watch in list(watches):
                watch.close()
