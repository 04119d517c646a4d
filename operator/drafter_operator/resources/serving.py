"""The Deployments and Services of a run's candidates."""

from __future__ import annotations

import math
from typing import Any

from drafter_operator.resources import names, pods
from drafter_operator.resources.server_arguments import SERVER_COMMAND, server_arguments
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import CandidateId, Run

COMPONENT = "server"
STARTUP_PERIOD_SECONDS = 2
HEALTH_TIMEOUT_SECONDS = 30
"""``/health`` generates a token, takes a second at least and up to 20 s under load."""


def _selector(run: Run, candidate: CandidateId) -> dict[str, str]:
    return {
        names.RUN_LABEL: run.name,
        names.COMPONENT_LABEL: COMPONENT,
        names.CANDIDATE_LABEL: candidate.name,
    }


def _probe(path: str, period: int, timeout: int, failures: int) -> pods.Object:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
        "successThreshold": 1,
    }


def deployment(run: Run, candidate: CandidateId, replicas: int, operator: OperatorSettings) -> Any:
    """Return the Deployment that serves one candidate."""
    serving = run.spec.serving
    # A target from the hub is downloaded into the run's storage.
    read_only = run.spec.target.hub_id is None
    volumes, mounts = pods.volumes(run, data_read_only=read_only)
    volumes.append(
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": serving.shared_memory_size},
        }
    )
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    startup_failures = math.ceil(serving.startup_timeout_seconds / STARTUP_PERIOD_SECONDS)
    object_labels = pods.labels(run, COMPONENT, candidate)
    container = {
        "name": "sglang",
        "image": serving.image,
        "command": list(SERVER_COMMAND),
        "args": server_arguments(run, candidate),
        "env": pods.environment(run, serving.pod, operator, data_read_only=read_only),
        "ports": [{"name": "http", "containerPort": names.SERVER_PORT, "protocol": "TCP"}],
        "resources": pods.resources(serving.pod, serving.tensor_parallel_size, operator),
        "securityContext": pods.container_security(),
        "startupProbe": _probe("/ready", STARTUP_PERIOD_SECONDS, 5, startup_failures),
        "readinessProbe": _probe("/ready", 5, 5, 3),
        "livenessProbe": _probe("/health", 30, HEALTH_TIMEOUT_SECONDS, 3),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": pods.metadata(run, names.server_name(run, candidate), object_labels),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": _selector(run, candidate)},
            # A second server beside the first one would need a second set of GPUs.
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": serving.startup_timeout_seconds + 60,
            "revisionHistoryLimit": 2,
            "template": {
                "metadata": {"labels": object_labels},
                "spec": pods.pod_spec(
                    serving.pod,
                    operator,
                    container,
                    volumes,
                    terminationGracePeriodSeconds=serving.termination_grace_period_seconds,
                ),
            },
        },
    }


def _service(run: Run, name: str, candidate: CandidateId, component: str) -> pods.Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": pods.metadata(run, name, pods.labels(run, component, candidate)),
        "spec": {
            "selector": _selector(run, candidate),
            "ports": [
                {
                    "name": "http",
                    "port": names.SERVER_PORT,
                    "targetPort": "http",
                    "protocol": "TCP",
                }
            ],
        },
    }


def candidate_service(run: Run, candidate: CandidateId) -> pods.Object:
    """Return the Service of one candidate, which its benchmark talks to."""
    return _service(run, names.server_name(run, candidate), candidate, COMPONENT)


def stable_service(run: Run, candidate: CandidateId) -> pods.Object:
    """Return the Service whose name stays while the promoted candidate changes."""
    return _service(run, names.stable_service_name(run), candidate, "stable")
