"""Controllers that look again whenever something they care about has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from drafter_sandbox.errors import ApiError
from drafter_sandbox.store import Store

logger = logging.getLogger(__name__)

Kind = tuple[str, str]
"""Group and plural."""


class ControllerLoop:
    """Calls a function after each change of some kinds, and when it asked to be called again.

    Parameters
    ----------
    name
        For the log.
    kinds
        What to watch.
    reconcile
        Level-triggered: looks at everything, and returns after how many seconds it wants to look
        again without any change, or None.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        kinds: Sequence[Kind],
        reconcile: Callable[[], float | None],
    ) -> None:
        self._name = name
        self._store = store
        self._kinds = kinds
        self._reconcile = reconcile
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to watch."""
        for group, plural in self._kinds:
            self._tasks.append(asyncio.create_task(self._watch(group, plural)))
        self._tasks.append(asyncio.create_task(self._run()))

    def wake(self) -> None:
        """Look soon, whatever the watches say."""
        self._changed.set()

    async def stop(self) -> None:
        """End the watches."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self, group: str, plural: str) -> None:
        async for _ in self._store.watch(plural, group):
            self._changed.set()

    async def _run(self) -> None:
        pause: float | None = 0.0
        while True:
            # wait_for of Python 3.11 loses a cancellation that comes together with the change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            self._changed.clear()
            try:
                pause = self._reconcile()
            except ApiError as error:
                # Mostly somebody else was faster, and that change wakes the loop again.
                logger.info("%s: %s", self._name, error)
                pause = 1.0
            except Exception:
                logger.exception("the controller %s failed", self._name)
                pause = 1.0
