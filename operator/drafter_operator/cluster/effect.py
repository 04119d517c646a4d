"""Carries out a decision: applies objects, patches children, writes the status, posts events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from drafter_operator.api.base import GROUP, KIND, VERSION
from drafter_operator.cluster.api import FIELD_MANAGER, ApiError, KubernetesApi, now_rfc3339
from drafter_operator.lifecycle.decide import Decision
from drafter_operator.lifecycle.ledger import Patch, Transition
from drafter_operator.run import Run

HASH_ANNOTATION = "drafters.dev/applied-hash"
EVENT_MESSAGE_LIMIT = 1000
IMMUTABLE_KINDS = ("Job", "PersistentVolumeClaim")
"""Kinds that are made once: their specs cannot change, and a newer operator would fail on them."""


def with_hash(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the checksum of itself, by which a later pass knows it."""
    text = json.dumps(body, sort_keys=True).encode()
    annotations = {HASH_ANNOTATION: hashlib.sha256(text).hexdigest()[:16]}
    metadata = dict(body["metadata"])
    metadata["annotations"] = metadata.get("annotations", {}) | annotations
    return {**body, "metadata": metadata}


async def carry_out(api: KubernetesApi, run: Run, decision: Decision) -> None:
    """Bring children and status to what was decided; the status last, once, if it changed.

    Raises
    ------
    ApiError
        The API server refused a request or did not answer; the next pass tries again.
    """
    for body in decision.desired:
        await _apply_if_changed(api, body)
    for patch in decision.patches:
        await _patch(api, run, patch)
    if decision.status != run.status:
        await _write_status(api, run, decision)
        for transition in decision.transitions:
            await post_event(api, run, transition)


async def _apply_if_changed(api: KubernetesApi, body: Mapping[str, Any]) -> None:
    wanted = with_hash(body)
    metadata = wanted["metadata"]
    present = await api.get(wanted["kind"], metadata["namespace"], metadata["name"])
    if present is not None:
        if wanted["kind"] in IMMUTABLE_KINDS:
            return
        annotations = present["metadata"].get("annotations") or {}
        if annotations.get(HASH_ANNOTATION) == metadata["annotations"][HASH_ANNOTATION]:
            return
    await api.apply(wanted)


async def _patch(api: KubernetesApi, run: Run, patch: Patch) -> None:
    # What was applied no longer describes the object, so that it will be applied again.
    body = patch.body | {"metadata": {"annotations": {HASH_ANNOTATION: None}}}
    try:
        await api.patch(patch.kind, run.namespace, patch.name, body)
    except ApiError as error:
        if error.status != 404:
            raise


async def _write_status(api: KubernetesApi, run: Run, decision: Decision) -> None:
    before, after = run.status.to_api(), decision.status.to_api()
    # In a merge patch a field goes when it is null.
    gone = dict.fromkeys(before.keys() - after.keys())
    try:
        await api.patch("DrafterRun", run.namespace, run.name, {"status": after | gone}, "status")
    except ApiError as error:
        # Deleted while the pass went on: nobody waits for the status.
        if error.status != 404:
            raise


async def post_event(api: KubernetesApi, run: Run, transition: Transition) -> None:
    """Post an Event about a run; one that cannot be posted is no reason to fail."""
    stamp = now_rfc3339()
    identity = f"{run.uid}{transition.reason}{transition.message}{run.status.progress}"
    suffix = hashlib.sha256(identity.encode()).hexdigest()[:16]
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{run.name}.{suffix}", "namespace": run.namespace},
        "type": "Warning" if transition.warning else "Normal",
        "reason": transition.reason,
        "message": transition.message[:EVENT_MESSAGE_LIMIT],
        "involvedObject": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": run.name,
            "namespace": run.namespace,
            "uid": run.uid,
        },
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
    try:
        await api.create(body)
    except ApiError as error:
        if error.status not in (403, 404, 409):
            raise
