"""Events about objects, counted instead of repeated."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any

from drafter_sandbox.errors import ApiError
from drafter_sandbox.metadata import timestamp
from drafter_sandbox.store import Store


class EventRecorder:
    """Posts Events; the same words about the same object raise a counter."""

    def __init__(self, store: Store, component: str) -> None:
        self._store = store
        self._component = component

    def post(self, about: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        """Post an Event.

        Parameters
        ----------
        about
            The object.
        kind
            ``Normal`` or ``Warning``.
        """
        metadata = about["metadata"]
        namespace = metadata.get("namespace", "default")
        identity = f"{metadata['uid']}{reason}{message}".encode()
        name = f"{metadata['name']}.{hashlib.sha256(identity).hexdigest()[:16]}"
        now = timestamp()
        with contextlib.suppress(ApiError):
            known = self._store.get("events", namespace, name)
            if known is not None:
                known["count"] = int(known.get("count") or 1) + 1
                known["lastTimestamp"] = now
                self._store.update("events", namespace, name, known)
                return
            self._store.create(
                "events",
                namespace,
                {
                    "metadata": {"name": name},
                    "type": kind,
                    "reason": reason,
                    "message": message[:1024],
                    "involvedObject": {
                        "apiVersion": about["apiVersion"],
                        "kind": about["kind"],
                        "name": metadata["name"],
                        "namespace": namespace,
                        "uid": metadata["uid"],
                    },
                    "source": {"component": self._component},
                    "reportingComponent": self._component,
                    "firstTimestamp": now,
                    "lastTimestamp": now,
                    "count": 1,
                },
            )
