"""Events do not stay for ever: they go after an hour, as in Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

from drafter_sandbox.errors import ApiError
from drafter_sandbox.store import Store, timestamp

LIFE = timedelta(hours=1)
_PAUSE_SECONDS = 60.0


def expire_events(store: Store, now: datetime | None = None) -> int:
    """Delete the events whose last occurrence is an hour old; return their number."""
    limit = timestamp((now or datetime.now(UTC)) - LIFE)
    expired = []
    for event in store.scan(store.registry.find("", "events")):
        meta = event["metadata"]
        last = event.get("lastTimestamp") or event.get("eventTime") or meta["creationTimestamp"]
        if max(last, meta["creationTimestamp"]) < limit:
            expired.append((meta["namespace"], meta["name"]))
    for namespace, name in expired:
        with contextlib.suppress(ApiError):
            store.delete("events", namespace, name)
    return len(expired)


async def expire_for_ever(store: Store) -> None:
    """Delete expired events every minute until cancelled."""
    while True:
        expire_events(store)
        await asyncio.sleep(_PAUSE_SECONDS)
