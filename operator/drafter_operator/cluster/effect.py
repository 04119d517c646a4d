"""Carries out a decision: applies objects, patches children, writes the status, posts events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from drafter_operator.api.base import GROUP, KIND, VERSION
from drafter_operator.api.status import DrafterRunStatus
from drafter_operator.cluster.api import FIELD_MANAGER, ApiError, KubernetesApi, now_rfc3339
from drafter_operator.cluster.refusals import other_refusal
from drafter_operator.lifecycle.conditions import blocked
from drafter_operator.lifecycle.decide import Decision
from drafter_operator.lifecycle.ledger import Patch, Transition
from drafter_operator.run import Run

HASH_ANNOTATION = "drafters.dev/applied-hash"
EVENT_MESSAGE_LIMIT = 1000
IMMUTABLE_KINDS = ("Job", "PersistentVolumeClaim")
"""Kinds that are made once: their specs cannot change, and a newer operator would fail on them."""


class NameTakenError(Exception):
    """An object of a child's name exists and is not the run's."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"the {kind} {name} exists already and is not this run's; delete or rename it, or"
            " give the run another name"
        )


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
        await _apply_if_changed(api, run, body)
    for patch in decision.patches:
        await _patch(api, run, patch)
    if decision.status != run.status:
        await _write_status(api, run, decision.status)
        for transition in decision.transitions:
            await post_event(api, run, transition)


async def _apply_if_changed(api: KubernetesApi, run: Run, body: Mapping[str, Any]) -> None:
    wanted = with_hash(body)
    metadata = wanted["metadata"]
    present = await api.get(wanted["kind"], metadata["namespace"], metadata["name"])
    if present is not None:
        if metadata.get("ownerReferences") and not _may_be_applied(run, present):
            return
        if wanted["kind"] in IMMUTABLE_KINDS:
            return
        annotations = present["metadata"].get("annotations") or {}
        if annotations.get(HASH_ANNOTATION) == metadata["annotations"][HASH_ANNOTATION]:
            return
    await api.apply(wanted)


def _may_be_applied(run: Run, present: Mapping[str, Any]) -> bool:
    """Whether an object that is there is the run's; False while an earlier run's still goes.

    Raises
    ------
    NameTakenError
        It belongs to somebody else, who must not lose it.
    """
    owners = present["metadata"].get("ownerReferences") or []
    if any(owner["uid"] == run.uid for owner in owners):
        return True
    if any(owner["kind"] == KIND and owner["name"] == run.name for owner in owners):
        return False
    raise NameTakenError(present["kind"], present["metadata"]["name"])


async def _patch(api: KubernetesApi, run: Run, patch: Patch) -> None:
    # What was applied no longer describes the object, so that it will be applied again.
    body = patch.body | {"metadata": {"annotations": {HASH_ANNOTATION: None}}}
    try:
        await api.patch(patch.kind, run.namespace, patch.name, body)
    except ApiError as error:
        if error.status != 404:
            raise


async def report_refusal(api: KubernetesApi, run: Run, error: ApiError, now: datetime) -> None:
    """Say on the run that the API server refused (403) what a pass needed, once.

    Raises
    ------
    ApiError
        It refused the status too, or did not answer.
    """
    reason = "MissingRight" if error.missing_right else "RequestRefused"
    message = error.missing_right or other_refusal(error.message)
    status = blocked(run, now, reason, message)
    if status == run.status:
        return
    # First, since it may be the status that must not be written.
    await post_event(api, run, Transition(reason, message, warning=True))
    await _write_status(api, run, status)


async def _write_status(api: KubernetesApi, run: Run, status: DrafterRunStatus) -> None:
    body = {"status": merge_patch(run.status.to_api(), status.to_api())}
    try:
        await api.patch("DrafterRun", run.namespace, run.name, body, "status")
    except ApiError as error:
        # Deleted while the pass went on: nobody waits for the status.
        if error.status != 404:
            raise


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) from one object to another."""
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for field, value in after.items():
        known = before.get(field)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            if nested := merge_patch(known, value):
                patch[field] = nested
        elif field not in before or known != value:
            patch[field] = value
    return patch


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
