"""Rules of built-in objects that their schemas do not express."""

from __future__ import annotations

import re
from typing import Any

from drafter_sandbox.errors import Cause
from drafter_sandbox.resources import ResourceType
from drafter_sandbox.selectors import label_predicate
from drafter_sandbox.validation import shown

Body = dict[str, Any]

_LABEL_NAME = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_ENUMS: dict[str, tuple[str, ...]] = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
}


def problems(resource: ResourceType, body: Body) -> list[Cause]:
    """Return what is wrong with a built-in object whose types are right."""
    causes = _label_problems(body["metadata"].get("labels") or {}, "metadata.labels")
    kind = (resource.group, resource.kind)
    spec = body.get("spec") or {}
    if kind == ("", "Pod"):
        causes += _pod_problems(spec, "spec")
    elif kind in (("apps", "Deployment"), ("apps", "ReplicaSet"), ("apps", "StatefulSet")):
        causes += _template_problems(spec, only_restart=("Always",))
        causes += _selector_problems(spec)
    elif kind == ("batch", "Job"):
        causes += _template_problems(spec, only_restart=("OnFailure", "Never"))
        causes += _job_problems(spec)
    elif kind == ("", "Service"):
        causes += _service_problems(spec)
    elif kind == ("", "PersistentVolumeClaim"):
        causes += _claim_problems(spec)
    return causes


def forbidden_changes(resource: ResourceType, old: Body, new: Body) -> list[Cause]:
    """Return the changes of fields that may not change."""
    kind = (resource.group, resource.kind)
    before, after = old.get("spec") or {}, new.get("spec") or {}
    fixed: tuple[str, ...] = ()
    if kind in (("apps", "Deployment"), ("apps", "ReplicaSet")):
        fixed = ("selector",)
    elif kind == ("batch", "Job"):
        fixed = ("completions", "selector", "completionMode", "podFailurePolicy")
        # Only a Job that is suspended and has not started may have its template changed.
        started = (old.get("status") or {}).get("startTime")
        if not (before.get("suspend") and not started):
            fixed = (*fixed, "template")
        if before.get("completionMode") == "Indexed":
            fixed = tuple(name for name in fixed if name != "completions")
    elif kind == ("", "PersistentVolumeClaim"):
        fixed = ("accessModes", "storageClassName", "volumeMode", "selector")
        if before.get("volumeName"):
            fixed = (*fixed, "volumeName")
    elif kind == ("", "Pod"):
        return _pod_changes(before, after)
    elif resource.plural in ("configmaps", "secrets") and old.get("immutable"):
        return [
            Cause(
                "data",
                "Forbidden: field is immutable when `immutable` is set",
                "FieldValueForbidden",
            )
            for name in ("data", "binaryData")
            if old.get(name) != new.get(name)
        ]
    return [
        Cause(f"spec.{name}", f"Invalid value: {shown(after.get(name))}: field is immutable")
        for name in fixed
        if before.get(name) != after.get(name)
    ]


def _pod_changes(before: Body, after: Body) -> list[Cause]:
    def rest(spec: Body) -> Body:
        kept = {
            key: value
            for key, value in spec.items()
            if key not in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
        }
        if not before.get("nodeName"):
            kept.pop("nodeName", None)
        for name in ("containers", "initContainers"):
            kept[name] = [
                {key: value for key, value in item.items() if key != "image"}
                for item in spec.get(name) or []
            ]
        return kept

    if rest(before) == rest(after):
        return []
    return [
        Cause(
            "spec",
            "Forbidden: pod updates may not change fields other than"
            " `spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations`"
            " (only additions to existing tolerations),`spec.terminationGracePeriodSeconds`",
            "FieldValueForbidden",
        )
    ]


def _label_problems(labels: dict[str, Any], path: str) -> list[Cause]:
    causes: list[Cause] = []
    for key, value in labels.items():
        name = key.rsplit("/", 1)[-1]
        if not _LABEL_NAME.match(name) or len(name) > 63:
            causes.append(
                Cause(
                    path,
                    f"Invalid value: {shown(key)}: name part must consist of alphanumeric"
                    " characters, '-', '_' or '.', at most 63, and must start and end with an"
                    " alphanumeric character",
                )
            )
        if value and (not _LABEL_NAME.match(str(value)) or len(str(value)) > 63):
            causes.append(
                Cause(
                    path,
                    f"Invalid value: {shown(value)}: a valid label must be an empty string or"
                    " consist of alphanumeric characters, '-', '_' or '.', at most 63, and must"
                    " start and end with an alphanumeric character",
                )
            )
    return causes


def _pod_problems(spec: Body, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(Cause(f"{path}.containers", "Required value", "FieldValueRequired"))
    for name, allowed in _ENUMS.items():
        if name in spec and spec[name] not in allowed:
            causes.append(_unsupported(f"{path}.{name}", spec[name], allowed))
    volumes = {volume["name"] for volume in spec.get("volumes") or []}
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or []):
            where = f"{path}.{group}[{index}]"
            if container["name"] in seen:
                causes.append(
                    Cause(
                        f"{where}.name",
                        f"Duplicate value: {shown(container['name'])}",
                        "FieldValueDuplicate",
                    )
                )
            seen.add(container["name"])
            if not container.get("image"):
                causes.append(Cause(f"{where}.image", "Required value", "FieldValueRequired"))
            for number, mount in enumerate(container.get("volumeMounts") or []):
                if mount["name"] not in volumes:
                    causes.append(
                        Cause(
                            f"{where}.volumeMounts[{number}].name",
                            f"Not found: {shown(mount['name'])}",
                            "FieldValueNotFound",
                        )
                    )
    return causes


def _template_problems(spec: Body, only_restart: tuple[str, ...]) -> list[Cause]:
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    causes = _label_problems(
        (template.get("metadata") or {}).get("labels") or {}, "spec.template.metadata.labels"
    )
    causes += _pod_problems(pod, "spec.template.spec")
    if pod.get("restartPolicy") in _ENUMS["restartPolicy"] and (
        pod["restartPolicy"] not in only_restart
    ):
        causes.append(
            _unsupported("spec.template.spec.restartPolicy", pod["restartPolicy"], only_restart)
        )
    return causes


def _selector_problems(spec: Body) -> list[Cause]:
    selector = spec.get("selector") or {}
    if not selector:
        return [Cause("spec.selector", "Required value", "FieldValueRequired")]
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if label_predicate(selector)({"metadata": {"labels": labels}}):
        return []
    return [
        Cause(
            "spec.template.metadata.labels",
            f"Invalid value: {shown(labels)}: `selector` does not match template `labels`",
        )
    ]


def _job_problems(spec: Body) -> list[Cause]:
    causes = [
        Cause(
            f"spec.{name}",
            f"Invalid value: {spec[name]}: must be greater than or equal to 0",
        )
        for name in ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished")
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        causes.append(
            Cause(
                "spec.completions",
                "Required value: when completion mode is Indexed",
                "FieldValueRequired",
            )
        )
    if spec.get("podFailurePolicy") and (
        (spec.get("template") or {}).get("spec", {}).get("restartPolicy") != "Never"
    ):
        causes.append(
            Cause(
                "spec.template.spec.restartPolicy",
                'Invalid value: "OnFailure": only "Never" is supported when podFailurePolicy is'
                " specified",
            )
        )
    return causes


def _service_problems(spec: Body) -> list[Cause]:
    allowed = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    causes: list[Cause] = []
    if spec.get("type") not in allowed:
        causes.append(_unsupported("spec.type", spec.get("type"), allowed))
    ports = spec.get("ports") or []
    if not ports and spec.get("type") != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(Cause("spec.ports", "Required value", "FieldValueRequired"))
    for index, port in enumerate(ports):
        if not 0 < port.get("port", 0) < 65536:
            causes.append(
                Cause(
                    f"spec.ports[{index}].port",
                    f"Invalid value: {port.get('port')}: must be between 1 and 65535, inclusive",
                )
            )
        if len(ports) > 1 and not port.get("name"):
            causes.append(
                Cause(f"spec.ports[{index}].name", "Required value", "FieldValueRequired")
            )
    return causes


def _claim_problems(spec: Body) -> list[Cause]:
    causes: list[Cause] = []
    if not spec.get("accessModes"):
        causes.append(
            Cause(
                "spec.accessModes",
                "Required value: at least 1 access mode is required",
                "FieldValueRequired",
            )
        )
    if not ((spec.get("resources") or {}).get("requests") or {}).get("storage"):
        causes.append(Cause("spec.resources[storage]", "Required value", "FieldValueRequired"))
    return causes


def _unsupported(path: str, value: Any, allowed: tuple[str, ...]) -> Cause:
    listed = ", ".join(shown(item) for item in allowed)
    return Cause(
        path,
        f"Unsupported value: {shown(value)}: supported values: {listed}",
        "FieldValueNotSupported",
    )
