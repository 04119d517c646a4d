"""Deployments and ReplicaSets: rolling updates, recreation, scale, status.

Source of the rules: Kubernetes, "Deployments".
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from drafter_sandbox.metadata import timestamp
from drafter_sandbox.naming import generated_name
from drafter_sandbox.node.container_status import is_ready
from drafter_sandbox.node.jobs import owner_reference, replace_with
from drafter_sandbox.node.scheduler import FINISHED
from drafter_sandbox.selectors import label_predicate
from drafter_sandbox.store import Store

HASH_LABEL = "pod-template-hash"
REVISION_ANNOTATION = "deployment.kubernetes.io/revision"

Body = dict[str, Any]


def template_hash(template: Mapping[str, Any]) -> str:
    """Return a name for a Pod template that is the same in every process."""
    text = json.dumps(template, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:10]


def resolve_share(value: int | str, total: int, *, up: bool) -> int:
    """Return a number of replicas given as a number or as a percentage."""
    if isinstance(value, int):
        return value
    share = total * int(value.rstrip("%")) / 100
    return math.ceil(share) if up else math.floor(share)


@dataclasses.dataclass(frozen=True)
class ReplicaCounts:
    """Replicas of one ReplicaSet: asked for, present, ready."""

    wanted: int
    present: int
    ready: int


def plan_rollout(
    strategy: Mapping[str, Any], replicas: int, new: ReplicaCounts, old: Sequence[ReplicaCounts]
) -> tuple[int, list[int]]:
    """Return the replicas to ask for of the new ReplicaSet and of each old one."""
    if strategy.get("type") == "Recreate":
        gone = all(count.present == 0 for count in old)
        return (replicas if gone else new.wanted), [0 for _ in old]
    rolling = strategy.get("rollingUpdate") or {}
    surge = resolve_share(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = resolve_share(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    present = new.wanted + sum(count.wanted for count in old)
    room = max(0, replicas + surge - present)
    wanted_new = min(replicas, new.wanted + room)
    spare = new.ready + sum(count.ready for count in old) - (replicas - unavailable)
    wanted_old = []
    for count in old:
        unready = count.wanted - min(count.ready, count.wanted)
        drop = min(count.wanted, unready + max(0, min(spare, count.ready)))
        spare -= max(0, drop - unready)
        wanted_old.append(count.wanted - drop)
    return wanted_new, wanted_old


class DeploymentController:
    """Makes ReplicaSets for Deployments."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def reconcile(self) -> float | None:
        """Look at every Deployment."""
        pauses = [
            self._look_at(deployment)
            for deployment in self._store.list("deployments", group="apps")
            if not deployment["metadata"].get("deletionTimestamp")
        ]
        return min((pause for pause in pauses if pause is not None), default=None)

    def _look_at(self, deployment: Body) -> float | None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        sets = [
            found
            for found in self._store.list("replicasets", metadata["namespace"], "apps")
            if any(
                owner["uid"] == metadata["uid"]
                for owner in found["metadata"].get("ownerReferences") or []
            )
        ]
        wanted_hash = template_hash(spec["template"])
        new = next(
            (found for found in sets if found["metadata"]["labels"][HASH_LABEL] == wanted_hash),
            None,
        )
        old = [found for found in sets if found is not new]
        if new is None:
            new = self._create(deployment, wanted_hash, sets)
        elif _revision(new) < max((_revision(found) for found in old), default=0):
            new = self._make_newest(new, old)
        wanted, old_wanted = plan_rollout(
            spec["strategy"], spec["replicas"], _counts(new), [_counts(found) for found in old]
        )
        self._scale(new, wanted)
        for found, number in zip(old, old_wanted, strict=True):
            self._scale(found, number)
        self._trim(deployment, old)
        self._annotate(deployment, new)
        return self._report(deployment, new, old)

    def _create(self, deployment: Body, name: str, sets: Sequence[Body]) -> Body:
        metadata, spec = deployment["metadata"], deployment["spec"]
        revision = 1 + max((_revision(found) for found in sets), default=0)
        template = json.loads(json.dumps(spec["template"]))
        template["metadata"].setdefault("labels", {})[HASH_LABEL] = name
        selector = json.loads(json.dumps(spec["selector"]))
        selector.setdefault("matchLabels", {})[HASH_LABEL] = name
        return self._store.create(
            "replicasets",
            metadata["namespace"],
            {
                "metadata": {
                    "name": f"{metadata['name']}-{name}",
                    "labels": template["metadata"]["labels"],
                    "annotations": {REVISION_ANNOTATION: str(revision)},
                    "ownerReferences": [owner_reference(deployment)],
                },
                "spec": {"replicas": 0, "selector": selector, "template": template},
            },
            "apps",
        )

    def _make_newest(self, replica_set: Body, others: Sequence[Body]) -> Body:
        """Count a return to an earlier template as a new revision."""
        metadata = replica_set["metadata"]
        revision = 1 + max(_revision(found) for found in others)
        metadata.setdefault("annotations", {})[REVISION_ANNOTATION] = str(revision)
        return self._store.update(
            "replicasets", metadata["namespace"], metadata["name"], replica_set, "apps"
        )

    def _annotate(self, deployment: Body, new: Body) -> None:
        """Tell the revision on the Deployment too, where ``kubectl rollout undo`` looks for it."""
        revision = str(_revision(new))
        if (deployment["metadata"].get("annotations") or {}).get(REVISION_ANNOTATION) == revision:
            return
        metadata = deployment["metadata"]
        body = self._store.get("deployments", metadata["namespace"], metadata["name"], "apps")
        if body is not None:
            body["metadata"].setdefault("annotations", {})[REVISION_ANNOTATION] = revision
            self._store.update("deployments", metadata["namespace"], metadata["name"], body, "apps")

    def _scale(self, replica_set: Body, replicas: int) -> None:
        if replica_set["spec"]["replicas"] == replicas:
            return
        metadata = replica_set["metadata"]
        body = self._store.get("replicasets", metadata["namespace"], metadata["name"], "apps")
        if body is not None:
            body["spec"]["replicas"] = replicas
            self._store.update("replicasets", metadata["namespace"], metadata["name"], body, "apps")

    def _trim(self, deployment: Body, old: Sequence[Body]) -> None:
        idle = [found for found in old if not found["spec"]["replicas"] and _present(found) == 0]
        idle.sort(key=_revision)
        surplus = len(idle) - deployment["spec"]["revisionHistoryLimit"]
        for found in idle[: max(0, surplus)]:
            metadata = found["metadata"]
            self._store.delete("replicasets", metadata["namespace"], metadata["name"], "apps")

    def _report(self, deployment: Body, new: Body, old: Sequence[Body]) -> float | None:
        spec = deployment["spec"]
        statuses = [found.get("status") or {} for found in (new, *old)]
        ready = sum(status.get("readyReplicas", 0) for status in statuses)
        present = sum(status.get("replicas", 0) for status in statuses)
        updated = (new.get("status") or {}).get("replicas", 0)
        before = deployment.get("status") or {}
        wanted = spec["replicas"]
        rolling = (spec["strategy"].get("rollingUpdate") or {}).get("maxUnavailable", 0)
        least = wanted - resolve_share(rolling, wanted, up=False)
        complete = updated == wanted and ready >= wanted and present == wanted
        conditions, left = _deployment_conditions(
            before.get("conditions") or [],
            available=ready >= least,
            complete=complete,
            replica_set=new["metadata"]["name"],
            deadline=spec["progressDeadlineSeconds"],
            progress=(updated, ready, present)
            != tuple(
                before.get(name, 0) for name in ("updatedReplicas", "readyReplicas", "replicas")
            ),
        )
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": present,
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, wanted - ready),
            "conditions": conditions,
        }
        status = {name: value for name, value in status.items() if value != 0}
        if status != before:
            metadata = deployment["metadata"]
            self._store.patch_status(
                "deployments",
                metadata["namespace"],
                metadata["name"],
                replace_with(status),
                "apps",
            )
        return left


def _deployment_conditions(
    known: Sequence[Mapping[str, Any]],
    *,
    available: bool,
    complete: bool,
    replica_set: str,
    deadline: int,
    progress: bool,
) -> tuple[list[Body], float | None]:
    now = datetime.now(UTC)
    before = {item["type"]: item for item in known}

    def condition(kind: str, status: str, reason: str, message: str, fresh: bool = False) -> Body:
        old = before.get(kind, {})
        same = old.get("status") == status
        unchanged = same and old.get("reason") == reason and not fresh
        return {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": old["lastTransitionTime"] if same else timestamp(now),
            "lastUpdateTime": old["lastUpdateTime"] if unchanged else timestamp(now),
        }

    availability = (
        condition(
            "Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability."
        )
        if available
        else condition(
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    )
    if complete:
        done = f'ReplicaSet "{replica_set}" has successfully progressed.'
        return [
            availability,
            condition("Progressing", "True", "NewReplicaSetAvailable", done),
        ], None
    last = before.get("Progressing", {})
    since = last.get("lastUpdateTime") if not progress else None
    began = datetime.fromisoformat(since) if since else now
    left = (began + timedelta(seconds=deadline) - now).total_seconds()
    if left <= 0 and last.get("reason") != "NewReplicaSetAvailable":
        late = f'ReplicaSet "{replica_set}" has timed out progressing.'
        return [
            availability,
            condition("Progressing", "False", "ProgressDeadlineExceeded", late),
        ], None
    going = f'ReplicaSet "{replica_set}" is progressing.'
    return [
        availability,
        condition("Progressing", "True", "ReplicaSetUpdated", going, fresh=progress),
    ], max(left, 1.0)


def _counts(replica_set: Body) -> ReplicaCounts:
    status = replica_set.get("status") or {}
    return ReplicaCounts(
        wanted=replica_set["spec"]["replicas"],
        present=_present(replica_set),
        ready=status.get("readyReplicas", 0),
    )


def _present(replica_set: Body) -> int:
    status = replica_set.get("status") or {}
    return int(status.get("replicas", 0)) + int(status.get("terminatingReplicas", 0))


def _revision(replica_set: Body) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(REVISION_ANNOTATION, 0))


class ReplicaSetController:
    """Keeps the number of Pods each ReplicaSet asks for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def reconcile(self) -> float | None:
        """Look at every ReplicaSet."""
        for replica_set in self._store.list("replicasets", group="apps"):
            if not replica_set["metadata"].get("deletionTimestamp"):
                self._look_at(replica_set)
        return None

    def _look_at(self, replica_set: Body) -> None:
        metadata, spec = replica_set["metadata"], replica_set["spec"]
        matches = label_predicate(spec["selector"])
        pods = [
            pod
            for pod in self._store.list("pods", metadata["namespace"])
            if matches(pod)
            and any(
                owner["uid"] == metadata["uid"]
                for owner in pod["metadata"].get("ownerReferences") or []
            )
            and pod["status"].get("phase") not in FINISHED
        ]
        staying = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        ready = [pod for pod in staying if is_ready(pod)]
        surplus = len(staying) - spec["replicas"]
        if surplus > 0:
            first_unready = sorted(staying, key=is_ready)
            for pod in first_unready[:surplus]:
                self._store.delete("pods", metadata["namespace"], pod["metadata"]["name"])
        for _ in range(-surplus):
            self._create(replica_set)
        status: Body = {
            "observedGeneration": metadata["generation"],
            "replicas": len(staying),
            "fullyLabeledReplicas": len(staying),
            "readyReplicas": len(ready),
            "availableReplicas": len(ready),
            "terminatingReplicas": len(pods) - len(staying),
        }
        if status != (replica_set.get("status") or {}):
            self._store.patch_status(
                "replicasets",
                metadata["namespace"],
                metadata["name"],
                replace_with(status),
                "apps",
            )

    def _create(self, replica_set: Body) -> None:
        metadata, template = replica_set["metadata"], replica_set["spec"]["template"]
        self._store.create(
            "pods",
            metadata["namespace"],
            {
                "metadata": {
                    "name": generated_name(f"{metadata['name']}-"),
                    "labels": dict(template["metadata"].get("labels") or {}),
                    "annotations": dict(template["metadata"].get("annotations") or {}),
                    "ownerReferences": [owner_reference(replica_set)],
                },
                "spec": template["spec"],
            },
        )
