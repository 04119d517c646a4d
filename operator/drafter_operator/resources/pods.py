"""What every Pod of a run has: labels, volumes, environment, a hardened security context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafter_operator.api.base import GROUP, KIND, VERSION
from drafter_operator.api.spec import PodSettings
from drafter_operator.resources import names
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import CandidateId, Run

USER_ID = 10001
"""User and group of every Pod; images hold no files that only another user can read."""

Object = dict[str, Any]


def labels(run: Run, component: str, candidate: CandidateId | None = None) -> dict[str, str]:
    """Return the labels of a child object.

    Parameters
    ----------
    component
        The step, such as ``train``, or ``server``.
    """
    found = {
        "app.kubernetes.io/name": "drafter",
        "app.kubernetes.io/instance": run.name,
        names.COMPONENT_LABEL: component,
        "app.kubernetes.io/managed-by": "drafter-operator",
        names.RUN_LABEL: run.name,
    }
    if candidate is not None:
        found[names.CANDIDATE_LABEL] = candidate.name
        found[names.DEPTH_LABEL] = str(candidate.depth)
    return found


def metadata(run: Run, name: str, object_labels: Mapping[str, str]) -> Object:
    """Return the metadata of an object that goes when its run goes."""
    return {
        "name": name,
        "namespace": run.namespace,
        "labels": dict(object_labels),
        "ownerReferences": [
            {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "name": run.name,
                "uid": run.uid,
                "controller": True,
                # Blocking would need a right on the run's finalizers, and nothing waits for it.
                "blockOwnerDeletion": False,
            }
        ],
    }


def resources(settings: PodSettings, gpus: int, operator: OperatorSettings) -> Object:
    """Return a container's resources with the GPUs added as request and limit."""
    found: Object = {kind: found for kind, found in settings.resources.to_api().items() if found}
    if gpus:
        for kind in ("requests", "limits"):
            found.setdefault(kind, {})[operator.gpu_resource_name] = str(gpus)
    return found


def volumes(run: Run, *, data_read_only: bool = False) -> tuple[list[Object], list[Object]]:
    """Return the volumes every Pod of the run has, and their mounts."""
    claim: Object = {"claimName": names.claim_name(run)}
    data: Object = {"name": "data", "persistentVolumeClaim": claim}
    data_mount: Object = {"name": "data", "mountPath": str(names.DATA_MOUNT)}
    if data_read_only:
        data_mount["readOnly"] = True
    found = [data, {"name": "tmp", "emptyDir": {}}]
    mounts = [data_mount, {"name": "tmp", "mountPath": "/tmp"}]
    if run.spec.target.claim_name is not None:
        model_claim = {"claimName": run.spec.target.claim_name, "readOnly": True}
        found.append({"name": "models", "persistentVolumeClaim": model_claim})
        mounts.append({"name": "models", "mountPath": str(names.MODEL_MOUNT), "readOnly": True})
    return found, mounts


def environment(
    run: Run,
    settings: PodSettings,
    operator: OperatorSettings,
    own: Mapping[str, str] | None = None,
    *,
    data_read_only: bool = False,
) -> list[Object]:
    """Return the environment variables of a container.

    Parameters
    ----------
    own
        Variables this kind of container needs, beside those of all. A user's variable of the
        same name takes their place: server-side apply refuses a name given twice.
    data_read_only
        Whether the run's storage can hold no cache of the hub.
    """
    hub = run.spec.target.hub_id is not None or run.spec.data.prompts.dataset is not None
    values = {**dict(operator.environment), **(own or {}), "HOME": "/tmp"}
    if hub and not data_read_only:
        values["HF_HOME"] = str(names.HUB_CACHE)
    variables = {name: {"name": name, "value": value} for name, value in values.items()}
    variables |= {found.name: found.to_api() for found in settings.env}
    return list(variables.values())


def container_security() -> Object:
    """Return the security context of a container that needs no privilege."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def pod_spec(
    settings: PodSettings,
    operator: OperatorSettings,
    container: Object,
    pod_volumes: Sequence[Object],
    **more: Any,
) -> Object:
    """Return the spec of a Pod with one container.

    Parameters
    ----------
    **more
        Further fields, such as ``restartPolicy``.
    """
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            # Terabytes of hidden states are not walked at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": list(pod_volumes),
        **more,
    }
    optional = {
        "nodeSelector": settings.node_selector,
        "tolerations": [toleration.to_api() for toleration in settings.tolerations],
        "serviceAccountName": settings.service_account_name,
        "runtimeClassName": settings.runtime_class_name,
        "priorityClassName": settings.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in operator.image_pull_secrets],
    }
    return spec | {field: value for field, value in optional.items() if value}
