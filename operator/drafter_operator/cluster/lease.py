"""Which operator acts: the one that holds the Lease.

Leader election as client-go's ``tools/leaderelection`` does it: a holder renews the Lease, another
takes it over when it was not renewed for its duration. Clocks of different machines are never
compared; each observer times the changes it sees. The Python client's own election neither stops
nor gives the Lease back, so that every restart would wait for it to run out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from drafter_operator.cluster.api import ApiError, KubernetesApi

logger = logging.getLogger("drafter_operator")

CONFLICT = 409


class LeaseLostError(Exception):
    """The Lease could not be renewed in time, or another operator holds it."""


@dataclass(frozen=True)
class LeaseTimes:
    """Times of the election, in seconds.

    Attributes
    ----------
    duration
        How long a Lease holds after its last renewal, for the others.
    deadline
        How long its holder acts after its last renewal; less than ``duration``.
    retry
        Time between two looks at it.
    """

    duration: float = 15
    deadline: float = 10
    retry: float = 2


class OperatorLease:
    """A Lease that one operator holds at a time.

    Parameters
    ----------
    api
        The API server.
    namespace, name
        Of the Lease.
    identity
        Of this process; no other may have it.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times
        self._clock = clock
        self._seen: Mapping[str, Any] = {}
        self._seen_at = clock()
        self._renewed_at: float | None = None
        self.last_tried = clock()

    def is_held(self) -> bool:
        """Whether this operator may write."""
        return (
            self._renewed_at is not None and self._clock() - self._renewed_at < self._times.deadline
        )

    async def acquire(self) -> None:
        """Wait until the Lease is this operator's."""
        told: str | None = None
        while not await self._try():
            holder = str(self._seen.get("holderIdentity"))
            if holder != told:
                logger.info("standing by: %s is the active operator", holder)
                told = holder
            await asyncio.sleep(self._times.retry)
        logger.info("this operator is the active one: %s", self._identity)

    async def keep(self) -> None:
        """Renew the Lease for ever.

        Raises
        ------
        LeaseLostError
            Nothing may be written from now on.
        """
        while True:
            await asyncio.sleep(self._times.retry)
            try:
                async with asyncio.timeout(self._times.retry):
                    held = await self._try()
            except TimeoutError:
                held = False
            if held:
                continue
            holder = self._seen.get("holderIdentity")
            if holder not in (self._identity, None, ""):
                self._renewed_at = None
                raise LeaseLostError(f"the Lease {self._name} is held by {holder}")
            if not self.is_held():
                raise LeaseLostError(
                    f"the Lease {self._name} was not renewed for {self._times.deadline:.0f} s"
                )

    async def give_back(self) -> None:
        """Let the next operator start at once."""
        if not self.is_held():
            return
        self._renewed_at = None
        try:
            found = await self._api.get("Lease", self._namespace, self._name)
            if found is not None and found["spec"].get("holderIdentity") == self._identity:
                spec = found["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(found | {"spec": spec})
        except ApiError as error:
            logger.warning("the Lease runs out by itself: %s", error)

    async def _try(self) -> bool:
        """Take or renew the Lease if that is allowed; return whether it is held."""
        began = self.last_tried = self._clock()
        try:
            found = await self._api.get("Lease", self._namespace, self._name)
            if found is None:
                await self._api.create(self._object({"spec": {}}))
            else:
                self._notice(found["spec"])
                if not self._may_take(found["spec"]):
                    return False
                await self._api.replace(self._object(found))
        except ApiError as error:
            if error.status != CONFLICT:
                logger.warning("the Lease cannot be taken or renewed: %s", error)
            return False
        self._renewed_at = began
        return True

    def _notice(self, spec: Mapping[str, Any]) -> None:
        if spec != self._seen:
            self._seen, self._seen_at = spec, self._clock()

    def _may_take(self, spec: Mapping[str, Any]) -> bool:
        if not spec.get("holderIdentity") or spec["holderIdentity"] == self._identity:
            return True
        return self._clock() - self._seen_at > float(spec.get("leaseDurationSeconds") or 0)

    def _object(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Lease as this operator's, with what the server needs to refuse a race."""
        before = found["spec"]
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        mine = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._times.duration),
            "acquireTime": before.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (not mine),
        }
        metadata = {"name": self._name, "namespace": self._namespace}
        if version := found.get("metadata", {}).get("resourceVersion"):
            metadata["resourceVersion"] = version
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
