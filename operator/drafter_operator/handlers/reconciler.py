"""When a run is looked at: on events, on a resync, and again after an error."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

import aiohttp
import pydantic

from drafter_operator import metrics
from drafter_operator.api.status import Phase
from drafter_operator.cluster.api import FORBIDDEN, ApiError, KubernetesApi
from drafter_operator.cluster.effect import (
    NameTakenError,
    carry_out,
    post_event,
    report_refusal,
)
from drafter_operator.cluster.observe import observe
from drafter_operator.lifecycle.decide import Decision, decide
from drafter_operator.lifecycle.ledger import Transition
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import Run

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0
SETTLE_SECONDS = 0.05
"""Time to the next pass after one in which a step changed its state: the next step may begin."""

STOP_SECONDS = 5.0
"""Time a pass may take after SIGTERM; a Pod is killed some time after that."""

ACTIVE_PHASES = (Phase.PENDING, Phase.RUNNING)

logger = logging.getLogger("drafter_operator")

Key = tuple[str, str]
"""Namespace and name of a run."""


@dataclasses.dataclass
class _Wish:
    """A run that wants to be looked at, and how often it failed in a row."""

    due: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    failures: int = 0
    task: asyncio.Task[None] | None = None


class Reconciler:
    """Runs one pass at a time for each run.

    Parameters
    ----------
    api
        The API server.
    settings
        What the administrator set.
    active_seconds
        Time between two looks at a run that is at work: its progress comes from its Pods.
    resync_seconds
        Time between two looks at any run, so that a lost event does no lasting harm.
    """

    def __init__(
        self,
        api: KubernetesApi,
        settings: OperatorSettings,
        *,
        active_seconds: float,
        resync_seconds: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._settings = settings
        self._active_seconds = active_seconds
        self._resync_seconds = resync_seconds
        self._clock = clock
        self._wishes: dict[Key, _Wish] = {}
        self._http: aiohttp.ClientSession | None = None
        self.last_alive = time.monotonic()
        self.has_listed = False
        self._stopping = False

    async def start(self) -> None:
        """Open the connection to the Pods."""
        self._http = aiohttp.ClientSession()

    async def stop(self) -> None:
        """Let each pass that has begun end with its status; begin no other."""
        self._stopping = True
        for wish in self._wishes.values():
            wish.due.set()
        tasks = [wish.task for wish in self._wishes.values() if wish.task is not None]
        if tasks:
            _, hung = await asyncio.wait(tasks, timeout=STOP_SECONDS)
            for task in hung:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    def wake(self, key: Key) -> None:
        """Look at a run soon."""
        if self._stopping:
            return
        wish = self._wishes.setdefault(key, _Wish())
        wish.due.set()
        if wish.task is None or wish.task.done():
            wish.task = asyncio.create_task(self._look_after(key, wish))

    def keys(self) -> list[Key]:
        """Return the runs that are looked after."""
        return list(self._wishes)

    async def _look_after(self, key: Key, wish: _Wish) -> None:
        while not self._stopping:
            wish.due.clear()
            with metrics.QUEUE_DEPTH.track_inprogress():
                pause = await self._pass(key, wish)
            if pause is None:
                metrics.forget_run(*key)
                # A run of the same name may have been made while this pass found none.
                if wish.due.is_set():
                    continue
                self._wishes.pop(key, None)
                return
            self.last_alive = time.monotonic()
            # wait_for of Python 3.11 loses a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wish.due.wait()

    async def _pass(self, key: Key, wish: _Wish) -> float | None:
        """Do one pass; return the seconds until the next, or None if the run is gone."""
        namespace, name = key
        try:
            with metrics.RECONCILE_DURATION.time():
                decision = await self._reconcile(namespace, name)
        except (ApiError, NameTakenError, aiohttp.ClientError, pydantic.ValidationError) as error:
            return self._failed(key, wish, error)
        except Exception as error:
            # A fault of the operator must not end the care for this run, nor for any other.
            logger.exception("the pass failed", extra={"namespace": namespace, "run": name})
            return self._failed(key, wish, error)
        wish.failures = 0
        if decision is None:
            return None
        if decision.transitions:
            return SETTLE_SECONDS
        status = decision.status
        return self._active_seconds if status.phase in ACTIVE_PHASES else self._resync_seconds

    def _failed(self, key: Key, wish: _Wish, error: Exception) -> float:
        wish.failures += 1
        metrics.RECONCILE_ERRORS.labels(kind=type(error).__name__).inc()
        pause = min(FIRST_BACKOFF_SECONDS * 2.0 ** (wish.failures - 1), LONGEST_BACKOFF_SECONDS)
        logger.error(
            "%s; looking again in %.0f s",
            error,
            pause,
            extra={"namespace": key[0], "run": key[1]},
        )
        return pause

    async def _reconcile(self, namespace: str, name: str) -> Decision | None:
        assert self._http is not None, "the reconciler was not started"
        body = await self._api.get("DrafterRun", namespace, name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        run = Run.from_object(body)
        try:
            observed = await observe(self._api, self._http, run)
            decision = decide(run, observed, self._clock(), self._settings)
            await carry_out(self._api, run, decision)
        except NameTakenError as error:
            await post_event(self._api, run, Transition("NameTaken", str(error), warning=True))
            raise
        except ApiError as error:
            if error.status == FORBIDDEN:
                await report_refusal(self._api, run, error, self._clock())
            raise
        for transition in decision.transitions:
            logger.info(
                transition.message,
                extra={"namespace": namespace, "run": name, "step": decision.status.step},
            )
        metrics.show_run(run, decision.status, observed, self._clock())
        return decision
