"""Values that the API server sets in built-in objects when their author left them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Body = dict[str, Any]


def apply_builtin_defaults(group: str, kind: str, body: Body) -> None:
    """Set the defaults of a built-in object in place."""
    function = _DEFAULTS.get((group, kind))
    if function is not None:
        function(body)


def _each(owner: Body, name: str) -> list[Body]:
    return [item for item in owner.get(name) or [] if isinstance(item, dict)]


def _probe(probe: Body) -> None:
    probe.setdefault("timeoutSeconds", 1)
    probe.setdefault("periodSeconds", 10)
    probe.setdefault("successThreshold", 1)
    probe.setdefault("failureThreshold", 3)
    if isinstance(probe.get("httpGet"), dict):
        probe["httpGet"].setdefault("path", "/")
        probe["httpGet"].setdefault("scheme", "HTTP")


def _container(container: Body) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    image = str(container.get("image") or "")
    latest = ":" not in image.rsplit("/", 1)[-1] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    container.setdefault("resources", {})
    resources = container["resources"]
    if isinstance(resources, dict) and resources.get("limits"):
        requests = resources.setdefault("requests", {})
        for name, amount in resources["limits"].items():
            requests.setdefault(name, amount)
    for port in _each(container, "ports"):
        port.setdefault("protocol", "TCP")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(name), dict):
            _probe(container[name])
    for variable in _each(container, "env"):
        source = (variable.get("valueFrom") or {}).get("fieldRef")
        if source is not None:
            source.setdefault("apiVersion", "v1")


def _volume(volume: Body) -> None:
    sources = [name for name in volume if name != "name"]
    if not sources:
        volume["emptyDir"] = {}
    for name in ("configMap", "secret", "downwardAPI", "projected"):
        if isinstance(volume.get(name), dict):
            volume[name].setdefault("defaultMode", 0o644)


def pod_spec_defaults(spec: Body) -> None:
    """Set the defaults of a Pod's specification or of a Pod template's."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    for name in ("containers", "initContainers"):
        for container in _each(spec, name):
            _container(container)
    for volume in _each(spec, "volumes"):
        _volume(volume)
    if spec.get("serviceAccountName"):
        spec.setdefault("serviceAccount", spec["serviceAccountName"])


def _template(owner: Body) -> Body:
    template: Body = owner.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_spec_defaults(template.setdefault("spec", {}))
    return template


def _pod(body: Body) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("enableServiceLinks", True)
    pod_spec_defaults(spec)
    status = body.setdefault("status", {})
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", _quality(spec))


def _quality(spec: Body) -> str:
    containers = _each(spec, "containers") + _each(spec, "initContainers")
    resources = [container.get("resources") or {} for container in containers]
    if not any(item.get("requests") or item.get("limits") for item in resources):
        return "BestEffort"
    guaranteed = all(
        {"cpu", "memory"} <= set(item.get("limits") or {})
        and item.get("requests") == item.get("limits")
        for item in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _deployment(body: Body) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    _template(spec)


def _replica_set(body: Body) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _template(spec)


def _stateful_set(body: Body) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
    _template(spec)


def _daemon_set(body: Body) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("updateStrategy", {"type": "RollingUpdate"})
    _template(spec)


def _job_spec(spec: Body) -> None:
    indexed = spec.setdefault("completionMode", "NonIndexed") == "Indexed"
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    if indexed and "backoffLimitPerIndex" in spec:
        spec.setdefault("backoffLimit", 2**31 - 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    if not spec["manualSelector"]:
        del spec["manualSelector"]
    spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
    if spec.get("podFailurePolicy"):
        spec["podReplacementPolicy"] = "Failed"
    _template(spec)


def _job(body: Body) -> None:
    spec = body.setdefault("spec", {})
    _job_spec(spec)
    # As the API server does, and what `kubectl logs job/x` selects Pods by.
    uid, name = body["metadata"].get("uid"), body["metadata"].get("name")
    if uid and not spec.get("manualSelector"):
        labels = {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": name,
            "controller-uid": uid,
            "job-name": name,
        }
        meta = spec["template"]["metadata"]
        meta["labels"] = {**(meta.get("labels") or {}), **labels}
        spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})


def _cron_job(body: Body) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    template = spec.setdefault("jobTemplate", {}).setdefault("spec", {})
    _template(template)


def _service(body: Body) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] != "ExternalName":
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
    for port in _each(spec, "ports"):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    body.setdefault("status", {"loadBalancer": {}})


def _claim(body: Body) -> None:
    body.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    body.setdefault("status", {}).setdefault("phase", "Pending")


def _volume_object(body: Body) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")


def _namespace(body: Body) -> None:
    labels = body["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = body["metadata"].get("name")
    body.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    body.setdefault("status", {}).setdefault("phase", "Active")


def _secret(body: Body) -> None:
    body.setdefault("type", "Opaque")
    texts = body.pop("stringData", None)
    if texts:
        import base64

        data = body.setdefault("data", {})
        for name, text in texts.items():
            data[name] = base64.b64encode(str(text).encode()).decode()


def _role_binding(body: Body) -> None:
    reference = body.get("roleRef")
    if isinstance(reference, dict):
        reference.setdefault("apiGroup", "rbac.authorization.k8s.io")
    for subject in _each(body, "subjects"):
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _storage_class(body: Body) -> None:
    body.setdefault("reclaimPolicy", "Delete")
    body.setdefault("volumeBindingMode", "Immediate")


_RBAC = "rbac.authorization.k8s.io"
_DEFAULTS: dict[tuple[str, str], Callable[[Body], None]] = {
    ("", "Namespace"): _namespace,
    ("", "Pod"): _pod,
    ("", "Service"): _service,
    ("", "Secret"): _secret,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "PersistentVolume"): _volume_object,
    ("apps", "Deployment"): _deployment,
    ("apps", "ReplicaSet"): _replica_set,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    (_RBAC, "RoleBinding"): _role_binding,
    (_RBAC, "ClusterRoleBinding"): _role_binding,
    ("storage.k8s.io", "StorageClass"): _storage_class,
}
