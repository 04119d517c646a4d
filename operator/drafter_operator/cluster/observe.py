"""Reads a run's children and what it refers to into an :class:`Observed`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pydantic
from prometheus_client.parser import text_string_to_metric_families

from drafter_jobs.contract.outcome import METRICS_PORT, TerminationMessage
from drafter_operator.api.status import StepState
from drafter_operator.cluster.api import KubernetesApi
from drafter_operator.lifecycle.ledger import PREPARE, SELECT
from drafter_operator.lifecycle.observed import (
    JobState,
    MissingReference,
    Observed,
    PodState,
    Sample,
    ServerState,
)
from drafter_operator.resources import claims, names
from drafter_operator.run import Run

SCRAPE_TIMEOUT = aiohttp.ClientTimeout(total=2)
LOG_LINES = 6
LOG_CHARACTERS = 500
METRIC_PREFIX = "drafter_"


async def observe(api: KubernetesApi, http: aiohttp.ClientSession, run: Run) -> Observed:
    """Return what the cluster holds of a run.

    Raises
    ------
    ApiError
        The API server refused a request or did not answer.
    """
    selector = f"{names.RUN_LABEL}={run.name}"
    job_objects, deployments, missing = await asyncio.gather(
        api.list("Job", run.namespace, selector),
        api.list("Deployment", run.namespace, selector),
        _missing(api, run),
    )
    # Pods are listed after their Jobs: a Job that is complete then has its Pod's result in sight.
    pod_objects = await api.list("Pod", run.namespace, selector)
    owned = [pod for pod in pod_objects if not pod["metadata"].get("deletionTimestamp")]
    states = await asyncio.gather(*(_pod(http, pod) for pod in owned))
    by_job: dict[str, list[PodState]] = {}
    by_candidate: dict[str, list[PodState]] = {}
    for body, state in zip(owned, states, strict=True):
        found = body["metadata"].get("labels", {})
        if job := found.get("batch.kubernetes.io/job-name"):
            by_job.setdefault(job, []).append(state)
        elif candidate := found.get(names.CANDIDATE_LABEL):
            by_candidate.setdefault(candidate, []).append(state)
    # A server's Pod that is being deleted still holds its GPUs.
    for body in pod_objects:
        found = body["metadata"].get("labels", {})
        if (
            body["metadata"].get("deletionTimestamp")
            and "batch.kubernetes.io/job-name" not in found
        ):
            leaving = PodState(body["metadata"]["name"], "Running", _time(body))
            by_candidate.setdefault(found.get(names.CANDIDATE_LABEL, ""), []).append(leaving)
    return Observed(
        jobs={
            body["metadata"]["name"]: _job(body, by_job.get(body["metadata"]["name"], []))
            for body in job_objects
            if _is_owned(body, run) and not body["metadata"].get("deletionTimestamp")
        },
        servers={
            body["metadata"]["name"]: _server(
                body, by_candidate.get(body["metadata"]["labels"].get(names.CANDIDATE_LABEL), [])
            )
            for body in deployments
            if _is_owned(body, run)
        },
        missing=missing,
    )


def _is_owned(body: Mapping[str, Any], run: Run) -> bool:
    """Whether an object is this run's, and not one of an earlier run of the same name."""
    owners = body["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == run.uid for owner in owners)


def _time(body: Mapping[str, Any]) -> datetime:
    stamp = body["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(stamp) if stamp else datetime.now(UTC)


def _condition(body: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    for condition in body.get("status", {}).get("conditions") or []:
        if condition["type"] == kind and condition["status"] == "True":
            return dict(condition)
    return None


def _job(body: Mapping[str, Any], pods: Sequence[PodState]) -> JobState:
    failed = _condition(body, "Failed")
    return JobState(
        name=body["metadata"]["name"],
        suspended=bool(body["spec"].get("suspend")),
        complete=_condition(body, "Complete") is not None,
        failed=failed is not None,
        failure=str((failed or {}).get("message", "")),
        pods=tuple(pods),
    )


def _server(body: Mapping[str, Any], pods: Sequence[PodState]) -> ServerState:
    status = body.get("status", {})
    current = status.get("observedGeneration") == body["metadata"].get("generation")
    return ServerState(
        name=body["metadata"]["name"],
        replicas=int(body["spec"].get("replicas", 1)),
        ready=current and int(status.get("readyReplicas") or 0) > 0,
        pods=tuple(pods),
    )


async def _pod(http: aiohttp.ClientSession, body: Mapping[str, Any]) -> PodState:
    name = body["metadata"]["name"]
    status = body.get("status", {})
    phase = status.get("phase", "Pending")
    started = status.get("startTime")
    containers = status.get("containerStatuses") or []
    container: Mapping[str, Any] = containers[0] if containers else {}
    ended = (container.get("state") or {}).get("terminated") or (
        container.get("lastState") or {}
    ).get("terminated")
    is_job = "batch.kubernetes.io/job-name" in body["metadata"].get("labels", {})
    termination = _termination(ended) if is_job else None
    last_words = ""
    if ended and ended.get("exitCode") and termination is None:
        # The end of the log, for want of a message: `terminationMessagePolicy` of the Pods.
        last_words = str(ended.get("message") or "")
    samples: Sequence[Sample] = ()
    if is_job and phase == "Running" and status.get("podIP"):
        samples = await _scrape(http, status["podIP"])
    return PodState(
        name=name,
        phase=phase,
        created_at=_time(body),
        started_at=datetime.fromisoformat(started) if started else None,
        ready=bool(container.get("ready")),
        restarts=int(container.get("restartCount") or 0),
        waiting=_waiting(body, container),
        exit_code=int(ended["exitCode"]) if ended else None,
        ended_reason=ended.get("reason") if ended else None,
        termination=termination,
        last_words=" | ".join(last_words.splitlines()[-LOG_LINES:])[-LOG_CHARACTERS:],
        samples=samples,
    )


def _waiting(body: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    for condition in body.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message')}"
    waiting = (container.get("state") or {}).get("waiting")
    if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return None


def _termination(ended: Mapping[str, Any] | None) -> TerminationMessage | None:
    if not ended or not ended.get("message"):
        return None
    try:
        return TerminationMessage.model_validate(json.loads(ended["message"]))
    except (ValueError, pydantic.ValidationError):
        return None


async def _scrape(http: aiohttp.ClientSession, address: str) -> Sequence[Sample]:
    """Return the metrics of a job's Pod; nothing while it does not serve them."""
    host = f"[{address}]" if ":" in address else address
    try:
        async with http.get(
            f"http://{host}:{METRICS_PORT}/metrics", timeout=SCRAPE_TIMEOUT
        ) as response:
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return ()
    try:
        return tuple(
            Sample(sample.name, dict(sample.labels), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith(METRIC_PREFIX)
        )
    except ValueError:
        return ()


async def _missing(api: KubernetesApi, run: Run) -> list[MissingReference]:
    """Return what the spec names and the cluster lacks, as far as it is still needed."""
    claims_needed = {run.spec.target.claim_name: "target.claimName"}
    if claims.claim(run) is None:
        claims_needed[run.spec.storage.claim_name] = "storage.claimName"
    missing = []
    for name, field in claims_needed.items():
        if not name:
            continue
        claim = await api.get("PersistentVolumeClaim", run.namespace, name)
        if claim is None:
            missing.append(
                MissingReference(
                    "ClaimNotFound",
                    f"{field}: there is no PersistentVolumeClaim {name} in {run.namespace};"
                    " create it and the run goes on",
                )
            )
        elif field == "storage.claimName" and (fault := _storage_fault(run, claim)):
            missing.append(fault)
    for field, source, step in _config_maps(run):
        if _is_done(run, step):
            continue
        name, key = source
        found = await api.get("ConfigMap", run.namespace, name)
        if found is None:
            missing.append(
                MissingReference(
                    "ConfigMapNotFound",
                    f"{field}: there is no ConfigMap {name} in {run.namespace}; create it and the"
                    " run goes on",
                )
            )
        elif key not in (found.get("data") or {}) | (found.get("binaryData") or {}):
            missing.append(
                MissingReference(
                    "KeyNotFound",
                    f"{field}: the ConfigMap {name} has no key {key}, only"
                    f" {', '.join(sorted(found.get('data') or {})) or 'none'}",
                )
            )
    return missing


def _storage_fault(run: Run, claim: Mapping[str, Any]) -> MissingReference | None:
    """Return why the run's Pods cannot write to a claim the user made, if so."""
    modes = claim["spec"].get("accessModes") or []
    name = claim["metadata"]["name"]
    if modes and set(modes) == {"ReadOnlyMany"}:
        return MissingReference(
            "ClaimReadOnly",
            f"storage.claimName: the PersistentVolumeClaim {name} is ReadOnlyMany, and the run"
            " writes to it; make a run that names a ReadWriteOnce or ReadWriteMany claim",
        )
    if run.spec.training.nodes > 1 and "ReadWriteMany" not in modes:
        return MissingReference(
            "ClaimNotShared",
            f"storage.claimName: training.nodes is {run.spec.training.nodes}, and the"
            f" PersistentVolumeClaim {name} is {', '.join(modes)}: it must be ReadWriteMany to be"
            " written from several nodes",
        )
    return None


def _config_maps(run: Run) -> list[tuple[str, tuple[str, str], str]]:
    found = []
    prompts = run.spec.data.prompts.config_map
    if prompts is not None:
        found.append(("data.prompts.configMap", (prompts.name, prompts.key), PREPARE))
    benchmark = run.spec.benchmark.prompts
    if benchmark is not None and benchmark.config_map is not None:
        source = benchmark.config_map
        found.append(("benchmark.prompts.configMap", (source.name, source.key), SELECT))
    return found


def _is_done(run: Run, step_name: str) -> bool:
    return any(
        step.name == step_name and step.state in (StepState.SUCCEEDED, StepState.SKIPPED)
        for step in run.status.steps
    )
