"""Jobs: which Pods to create and delete, and what the status says.

Source of the rules: Kubernetes, "Jobs" and "Handling retriable and non-retriable pod failures
with Pod failure policy".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from drafter_sandbox.metadata import timestamp
from drafter_sandbox.naming import generated_name
from drafter_sandbox.node.container_status import condition_holds, is_ready
from drafter_sandbox.node.scheduler import FINISHED
from drafter_sandbox.store import Store

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
CONTROLLER_LABEL = "batch.kubernetes.io/controller-uid"
LONGEST_BACKOFF_SECONDS = 360.0

Pod = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class JobPlan:
    """What is to be done about a Job.

    Attributes
    ----------
    create
        Completion index of each Pod to create; None for a Job without indexes.
    delete
        Names of Pods to delete.
    status
        The Job's new status.
    again_seconds
        When to look again without any change.
    """

    create: Sequence[int | None]
    delete: Sequence[str]
    status: dict[str, Any]
    again_seconds: float | None = None


def finished_condition(job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the condition Complete or Failed that holds, or None."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return dict(condition)
    return None


def exit_codes(pod: Pod) -> dict[str, int]:
    """Return the exit code of each container that has ended."""
    status = pod.get("status", {})
    found = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return {
        item["name"]: item["state"]["terminated"]["exitCode"]
        for item in found
        if "terminated" in (item.get("state") or {})
    }


def failure_action(policy: Mapping[str, Any] | None, pod: Pod) -> tuple[str, str]:
    """Return what a failed Pod means by the Pod failure policy: FailJob, Ignore or Count.

    Returns
    -------
    tuple of str
        The action, and the message for a Job that fails by it.
    """
    for index, rule in enumerate((policy or {}).get("rules") or []):
        if "onExitCodes" in rule:
            wanted = rule["onExitCodes"]
            for name, code in exit_codes(pod).items():
                if wanted.get("containerName") not in (None, name) or code == 0:
                    continue
                listed = code in wanted["values"]
                if listed == (wanted["operator"] == "In"):
                    message = (
                        f"Container {name} for pod {pod['metadata']['namespace']}/"
                        f"{pod['metadata']['name']} failed with exit code {code} matching"
                        f" {rule['action']} rule at index {index}"
                    )
                    return rule["action"], message
        for wanted in rule.get("onPodConditions") or []:
            for condition in pod["status"].get("conditions") or []:
                if condition["type"] == wanted["type"] and condition["status"] == wanted.get(
                    "status", "True"
                ):
                    return rule["action"], f"Pod has condition {wanted['type']}"
    return "Count", ""


def plan_job(
    job: Mapping[str, Any], pods: Sequence[Pod], now: datetime, backoff_base_seconds: float
) -> JobPlan:
    """Decide what a Job needs.

    Parameters
    ----------
    job
        A Job that is not finished.
    pods
        Its Pods.
    backoff_base_seconds
        Pause after the first failure; doubled after each further one.
    """
    spec = job["spec"]
    before = job.get("status") or {}
    status: dict[str, Any] = {
        key: value for key, value in before.items() if key in ("startTime", "conditions")
    }
    conditions = [dict(item) for item in status.get("conditions") or []]
    status["conditions"] = conditions
    active = [pod for pod in pods if pod["status"].get("phase") not in FINISHED]
    staying = [pod for pod in active if not pod["metadata"].get("deletionTimestamp")]
    leaving = [pod["metadata"]["name"] for pod in staying]
    succeeded = [pod for pod in pods if pod["status"].get("phase") == "Succeeded"]
    failed = [pod for pod in pods if _has_failed(spec, pod)]
    status["active"] = len(staying)
    status["ready"] = sum(is_ready(pod) for pod in staying)
    status["succeeded"] = len(succeeded)
    status["failed"] = len(failed)
    status["terminating"] = len(active) - len(staying)
    indexed = spec.get("completionMode") == "Indexed"
    completions = spec.get("completions", 1)
    done = {_index(pod) for pod in succeeded} if indexed else set()
    if indexed:
        status["completedIndexes"] = index_ranges(done)
    suspended = bool(spec.get("suspend"))
    if not suspended:
        status.setdefault("startTime", timestamp(now))
        if condition_holds(conditions, "Suspended"):
            _set_condition(conditions, "Suspended", "False", "JobResumed", "Job resumed")
    reached = len(done if indexed else succeeded) >= completions
    end = _end(job, status, failed, staying, now, reached=reached)
    if end is not None:
        target, kind, reason, message = end
        _set_condition(conditions, target, "True", reason, message)
        # A Job has ended only once none of its Pods holds on to anything.
        if not active:
            _set_condition(conditions, kind, "True", reason, message)
            if kind == "Complete":
                status["completionTime"] = timestamp(now)
        status.update(active=0, ready=0, terminating=len(active))
        return JobPlan([], leaving, status)
    if suspended:
        status.pop("startTime", None)
        _set_condition(conditions, "Suspended", "True", "JobSuspended", "Job suspended")
        return JobPlan([], leaving, status)
    deadline = _deadline_left(job, status, now)
    pause = _backoff_left(failed, now, backoff_base_seconds)
    if pause > 0:
        return JobPlan([], [], status, pause if deadline is None else min(pause, deadline))
    occupying = active if spec.get("podReplacementPolicy") == "Failed" else staying
    missing: list[int | None]
    if indexed:
        taken = {_index(pod) for pod in occupying} | done
        missing = [index for index in range(completions) if index not in taken]
    else:
        missing = [None] * (completions - len(succeeded) - len(occupying))
    create = missing[: max(0, spec.get("parallelism", 1) - len(occupying))]
    status["active"] += len(create)
    return JobPlan(create, [], status, deadline)


def index_ranges(indexes: Collection[int]) -> str:
    """Return indexes as ``status.completedIndexes`` writes them, such as ``0,2-4``."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and index == ranges[-1][-1] + 1:
            ranges[-1].append(index)
        else:
            ranges.append([index])
    return ",".join(
        f"{found[0]}-{found[-1]}" if len(found) > 2 else ",".join(map(str, found))
        for found in ranges
    )


def _has_failed(spec: Mapping[str, Any], pod: Pod) -> bool:
    """Return whether a Pod counts as a failed attempt.

    One that was told to end, as when the Job is suspended, says nothing about the program.
    """
    return (
        pod["status"].get("phase") == "Failed"
        and not pod["metadata"].get("deletionTimestamp")
        and failure_action(spec.get("podFailurePolicy"), pod)[0] != "Ignore"
    )


def _index(pod: Pod) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION, 0))


def _end(
    job: Mapping[str, Any],
    status: Mapping[str, Any],
    failed: Sequence[Pod],
    staying: Sequence[Pod],
    now: datetime,
    *,
    reached: bool,
) -> tuple[str, str, str, str] | None:
    """Return how a Job is to end: the condition that says so, the final one, reason, message."""
    spec = job["spec"]
    for target, kind in (("FailureTarget", "Failed"), ("SuccessCriteriaMet", "Complete")):
        for known in status["conditions"]:
            if known["type"] == target and known["status"] == "True":
                return target, kind, known["reason"], known["message"]
    for pod in failed:
        action, message = failure_action(spec.get("podFailurePolicy"), pod)
        if action == "FailJob":
            return "FailureTarget", "Failed", "PodFailurePolicy", message
    limit = spec.get("backoffLimit", 6)
    restarts = _restarts_in_place(spec, staying)
    if len(failed) > limit or (restarts and restarts >= limit):
        message = "Job has reached the specified backoff limit"
        return "FailureTarget", "Failed", "BackoffLimitExceeded", message
    left = _deadline_left(job, status, now)
    if left is not None and left <= 0:
        message = "Job was active longer than specified deadline"
        return "FailureTarget", "Failed", "DeadlineExceeded", message
    if reached:
        message = "Reached expected number of succeeded pods"
        return "SuccessCriteriaMet", "Complete", "CompletionsReached", message
    return None


def _restarts_in_place(spec: Mapping[str, Any], pods: Sequence[Pod]) -> int:
    if spec.get("template", {}).get("spec", {}).get("restartPolicy") != "OnFailure":
        return 0
    return sum(
        found["restartCount"]
        for pod in pods
        for kind in ("initContainerStatuses", "containerStatuses")
        for found in pod["status"].get(kind) or []
    )


def _deadline_left(
    job: Mapping[str, Any], status: Mapping[str, Any], now: datetime
) -> float | None:
    deadline = job["spec"].get("activeDeadlineSeconds")
    if deadline is None or job["spec"].get("suspend") or "startTime" not in status:
        return None
    end = datetime.fromisoformat(status["startTime"]) + timedelta(seconds=deadline)
    return (end - now).total_seconds()


def _backoff_left(failed: Sequence[Pod], now: datetime, base: float) -> float:
    if not failed:
        return 0.0
    pause = min(base * 2 ** (len(failed) - 1), LONGEST_BACKOFF_SECONDS)
    last = max(_finished_at(pod) for pod in failed)
    return (last + timedelta(seconds=pause) - now).total_seconds()


def _finished_at(pod: Pod) -> datetime:
    times = [
        item["state"]["terminated"]["finishedAt"]
        for item in pod["status"].get("containerStatuses") or []
        if "terminated" in (item.get("state") or {})
    ]
    return datetime.fromisoformat(max(times) if times else pod["metadata"]["creationTimestamp"])


def _set_condition(
    conditions: list[dict[str, Any]], kind: str, status: str, reason: str, message: str
) -> None:
    now = timestamp()
    known = next((item for item in conditions if item["type"] == kind), None)
    if known is None:
        known = {"type": kind}
        conditions.append(known)
    if known.get("status") != status:
        known["lastTransitionTime"] = now
    known.update(status=status, reason=reason, message=message, lastProbeTime=now)


class JobController:
    """Carries the plans of all Jobs out, and removes finished ones after their time to live."""

    def __init__(self, store: Store, backoff_base_seconds: float) -> None:
        self._store = store
        self._backoff = backoff_base_seconds

    def reconcile(self) -> float | None:
        """Look at every Job."""
        now = datetime.now(UTC)
        pauses = [self._look_at(job, now) for job in self._store.list("jobs", group="batch")]
        return min((pause for pause in pauses if pause is not None), default=None)

    def _look_at(self, job: dict[str, Any], now: datetime) -> float | None:
        metadata = job["metadata"]
        if metadata.get("deletionTimestamp"):
            return None
        finished = finished_condition(job)
        if finished is not None:
            return self._expire(job, finished, now)
        pods = [
            pod
            for pod in self._store.list("pods", metadata["namespace"])
            if (pod["metadata"].get("labels") or {}).get(CONTROLLER_LABEL) == metadata["uid"]
        ]
        plan = plan_job(job, pods, now, self._backoff)
        for name in plan.delete:
            self._store.delete("pods", metadata["namespace"], name)
        for index in plan.create:
            self._create(job, index)
        if plan.status != (job.get("status") or {}):
            self._store.patch_status(
                "jobs",
                metadata["namespace"],
                metadata["name"],
                replace_with(plan.status),
                "batch",
            )
        return plan.again_seconds

    def _expire(
        self, job: Mapping[str, Any], finished: Mapping[str, Any], now: datetime
    ) -> float | None:
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return None
        end = datetime.fromisoformat(finished["lastTransitionTime"]) + timedelta(seconds=seconds)
        if (left := (end - now).total_seconds()) > 0:
            return left
        metadata = job["metadata"]
        self._store.delete("jobs", metadata["namespace"], metadata["name"], "batch")
        return None

    def _create(self, job: Mapping[str, Any], index: int | None) -> None:
        metadata, template = job["metadata"], job["spec"]["template"]
        annotations = dict(template["metadata"].get("annotations") or {})
        labels = dict(template["metadata"].get("labels") or {})
        spec = {**template["spec"]}
        stem = metadata["name"]
        if index is not None:
            annotations[INDEX_ANNOTATION] = labels[INDEX_ANNOTATION] = str(index)
            stem = f"{stem}-{index}"
            spec.setdefault("hostname", stem)
            variable = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
            for kind in ("containers", "initContainers"):
                if kind in spec:
                    spec[kind] = [
                        {**container, "env": [variable, *(container.get("env") or [])]}
                        for container in spec[kind]
                    ]
        self._store.create(
            "pods",
            metadata["namespace"],
            {
                "metadata": {
                    "name": generated_name(f"{stem}-"),
                    "labels": labels,
                    "annotations": annotations,
                    "ownerReferences": [owner_reference(job)],
                },
                "spec": spec,
            },
        )


def replace_with(wanted: Mapping[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Return a change that puts a whole status in the place of another."""

    def change(status: dict[str, Any]) -> None:
        status.clear()
        status.update(wanted)

    return change


def owner_reference(owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference of a controller for what it makes."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
