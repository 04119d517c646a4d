"""Kubernetes' protobuf form of the objects that kubectl and helm send in it.

Some clients send built-in objects in protobuf whatever the server prefers.
Only what they send is read here: answers are always JSON, which they accept.
A field that is not in the table is refused, never dropped.

The table gives each message's fields as ``number name type``. ``*`` marks a
pointer in the API's Go types, whose zero value counts as set; ``[]`` a list;
``{}`` a map with string keys; ``-`` a field that the server ignores. Numbers
are those of the ``generated.proto`` files of ``k8s.io/api`` and
``k8s.io/apimachinery``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from drafter_sandbox.errors import ApiError, bad_request

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_OBJECT = "1 metadata ObjectMeta; 2 spec {0}; 3 status -"
_TABLE: dict[str, str] = {
    "ObjectMeta": "1 name string; 2 generateName string; 3 namespace string; 4 selfLink string;"
    " 5 uid string; 6 resourceVersion string; 7 generation int; 8 creationTimestamp Time;"
    " 9 deletionTimestamp *Time; 10 deletionGracePeriodSeconds *int; 11 labels {}string;"
    " 12 annotations {}string; 13 ownerReferences []OwnerReference; 14 finalizers []string;"
    " 17 managedFields []ManagedFieldsEntry",
    "OwnerReference": "1 kind string; 3 name string; 4 uid string; 5 apiVersion string;"
    " 6 controller *bool; 7 blockOwnerDeletion *bool",
    "ManagedFieldsEntry": "1 manager string; 2 operation string; 3 apiVersion string;"
    " 4 time *Time; 6 fieldsType string; 7 fieldsV1 *Raw; 8 subresource string",
    "LabelSelector": "1 matchLabels {}string; 2 matchExpressions []LabelSelectorRequirement",
    "LabelSelectorRequirement": "1 key string; 2 operator string; 3 values []string",
    "DeleteOptions": "1 gracePeriodSeconds *int; 2 preconditions *Preconditions;"
    " 3 orphanDependents *bool; 4 propagationPolicy *string; 5 dryRun []string;"
    " 6 ignoreStoreReadErrorWithClusterBreakingPotential *bool",
    "Preconditions": "1 uid *string; 2 resourceVersion *string",
    "Namespace": _OBJECT.format("NamespaceSpec"),
    "NamespaceSpec": "1 finalizers []string",
    "Secret": "1 metadata ObjectMeta; 2 data {}bytes; 3 type string; 4 stringData {}string;"
    " 5 immutable *bool",
    "ConfigMap": "1 metadata ObjectMeta; 2 data {}string; 3 binaryData {}bytes; 4 immutable *bool",
    "ServiceAccount": "1 metadata ObjectMeta; 2 secrets []ObjectReference;"
    " 3 imagePullSecrets []LocalObjectReference; 4 automountServiceAccountToken *bool",
    "LocalObjectReference": "1 name string",
    "ObjectReference": "1 kind string; 2 namespace string; 3 name string; 4 uid string;"
    " 5 apiVersion string; 6 resourceVersion string; 7 fieldPath string",
    "Service": _OBJECT.format("ServiceSpec"),
    "ServiceSpec": "1 ports []ServicePort; 2 selector {}string; 3 clusterIP string; 4 type string;"
    " 5 externalIPs []string; 7 sessionAffinity string; 8 loadBalancerIP string;"
    " 9 loadBalancerSourceRanges []string; 10 externalName string;"
    " 11 externalTrafficPolicy string; 12 healthCheckNodePort int;"
    " 13 publishNotReadyAddresses bool; 17 ipFamilyPolicy *string; 18 clusterIPs []string;"
    " 19 ipFamilies []string; 20 allocateLoadBalancerNodePorts *bool;"
    " 21 loadBalancerClass *string; 22 internalTrafficPolicy *string;"
    " 23 trafficDistribution *string",
    "ServicePort": "1 name string; 2 protocol string; 3 port int; 4 targetPort IntOrString;"
    " 5 nodePort int; 6 appProtocol *string",
    "ResourceQuota": _OBJECT.format("ResourceQuotaSpec"),
    "ResourceQuotaSpec": "1 hard {}Quantity; 2 scopes []string",
    "PodTemplateSpec": "1 metadata ObjectMeta; 2 spec PodSpec",
    "PodSpec": "1 volumes []Volume; 2 containers []Container; 3 restartPolicy string;"
    " 4 terminationGracePeriodSeconds *int; 5 activeDeadlineSeconds *int; 6 dnsPolicy string;"
    " 7 nodeSelector {}string; 8 serviceAccountName string; 9 serviceAccount string;"
    " 10 nodeName string; 11 hostNetwork bool; 12 hostPID bool; 13 hostIPC bool;"
    " 15 imagePullSecrets []LocalObjectReference; 16 hostname string; 17 subdomain string;"
    " 19 schedulerName string; 20 initContainers []Container;"
    " 21 automountServiceAccountToken *bool; 22 tolerations []Toleration;"
    " 24 priorityClassName string; 25 priority *int; 27 shareProcessNamespace *bool;"
    " 29 runtimeClassName *string; 30 enableServiceLinks *bool; 31 preemptionPolicy *string",
    "Container": "1 name string; 2 image string; 3 command []string; 4 args []string;"
    " 5 workingDir string; 6 ports []ContainerPort; 7 env []EnvVar;"
    " 8 resources ResourceRequirements; 9 volumeMounts []VolumeMount;"
    " 13 terminationMessagePath string; 14 imagePullPolicy string; 16 stdin bool;"
    " 17 stdinOnce bool; 18 tty bool; 19 envFrom []EnvFromSource;"
    " 20 terminationMessagePolicy string; 24 restartPolicy *string",
    "ContainerPort": "1 name string; 2 hostPort int; 3 containerPort int; 4 protocol string;"
    " 5 hostIP string",
    "EnvVar": "1 name string; 2 value string; 3 valueFrom *EnvVarSource",
    "EnvVarSource": "1 fieldRef *ObjectFieldSelector; 3 configMapKeyRef *KeySelector;"
    " 4 secretKeyRef *KeySelector",
    "ObjectFieldSelector": "1 apiVersion string; 2 fieldPath string",
    "KeySelector": "1 <inline> LocalObjectReference; 2 key string; 3 optional *bool",
    "EnvFromSource": "1 prefix string; 2 configMapRef *EnvSource; 3 secretRef *EnvSource",
    "EnvSource": "1 <inline> LocalObjectReference; 2 optional *bool",
    "ResourceRequirements": "1 limits {}Quantity; 2 requests {}Quantity",
    "VolumeMount": "1 name string; 2 readOnly bool; 3 mountPath string; 4 subPath string;"
    " 5 mountPropagation *string; 6 subPathExpr string; 7 recursiveReadOnly *string",
    "Volume": "1 name string; 2 <inline> VolumeSource",
    "VolumeSource": "1 hostPath *HostPathVolumeSource; 2 emptyDir *EmptyDirVolumeSource;"
    " 6 secret *SecretVolumeSource; 10 persistentVolumeClaim *ClaimVolumeSource;"
    " 19 configMap *ConfigMapVolumeSource",
    "HostPathVolumeSource": "1 path string; 2 type *string",
    "EmptyDirVolumeSource": "1 medium string; 2 sizeLimit *Quantity",
    "SecretVolumeSource": "1 secretName string; 2 items []KeyToPath; 3 defaultMode *int;"
    " 4 optional *bool",
    "ClaimVolumeSource": "1 claimName string; 2 readOnly bool",
    "ConfigMapVolumeSource": "1 <inline> LocalObjectReference; 2 items []KeyToPath;"
    " 3 defaultMode *int; 4 optional *bool",
    "KeyToPath": "1 key string; 2 path string; 3 mode *int",
    "Toleration": "1 key string; 2 operator string; 3 value string; 4 effect string;"
    " 5 tolerationSeconds *int",
    "Deployment": _OBJECT.format("DeploymentSpec"),
    "DeploymentSpec": "1 replicas *int; 2 selector *LabelSelector; 3 template PodTemplateSpec;"
    " 4 strategy DeploymentStrategy; 5 minReadySeconds int; 6 revisionHistoryLimit *int;"
    " 7 paused bool; 9 progressDeadlineSeconds *int",
    "DeploymentStrategy": "1 type string; 2 rollingUpdate *RollingUpdateDeployment",
    "RollingUpdateDeployment": "1 maxUnavailable *IntOrString; 2 maxSurge *IntOrString",
    "Job": _OBJECT.format("JobSpec"),
    "JobSpec": "1 parallelism *int; 2 completions *int; 3 activeDeadlineSeconds *int;"
    " 4 selector *LabelSelector; 5 manualSelector *bool; 6 template PodTemplateSpec;"
    " 7 backoffLimit *int; 8 ttlSecondsAfterFinished *int; 9 completionMode *string;"
    " 10 suspend *bool; 12 backoffLimitPerIndex *int; 13 maxFailedIndexes *int;"
    " 14 podReplacementPolicy *string; 15 managedBy *string",
    "CronJob": _OBJECT.format("CronJobSpec"),
    "CronJobSpec": "1 schedule string; 2 startingDeadlineSeconds *int;"
    " 3 concurrencyPolicy string; 4 suspend *bool; 5 jobTemplate JobTemplateSpec;"
    " 6 successfulJobsHistoryLimit *int; 7 failedJobsHistoryLimit *int; 8 timeZone *string",
    "JobTemplateSpec": "1 metadata ObjectMeta; 2 spec JobSpec",
    "Role": "1 metadata ObjectMeta; 2 rules []PolicyRule",
    "ClusterRole": "1 metadata ObjectMeta; 2 rules []PolicyRule;"
    " 3 aggregationRule *AggregationRule",
    "AggregationRule": "1 clusterRoleSelectors []LabelSelector",
    "PolicyRule": "1 verbs []string; 2 apiGroups []string; 3 resources []string;"
    " 4 resourceNames []string; 5 nonResourceURLs []string",
    "RoleBinding": "1 metadata ObjectMeta; 2 subjects []Subject; 3 roleRef RoleRef",
    "ClusterRoleBinding": "1 metadata ObjectMeta; 2 subjects []Subject; 3 roleRef RoleRef",
    "Subject": "1 kind string; 2 apiGroup string; 3 name string; 4 namespace string",
    "RoleRef": "1 apiGroup string; 2 kind string; 3 name string",
    "PodDisruptionBudget": _OBJECT.format("PodDisruptionBudgetSpec"),
    "PodDisruptionBudgetSpec": "1 minAvailable *IntOrString; 2 selector *LabelSelector;"
    " 3 maxUnavailable *IntOrString; 4 unhealthyPodEvictionPolicy *string",
    "PriorityClass": "1 metadata ObjectMeta; 2 value int; 3 globalDefault bool;"
    " 4 description string; 5 preemptionPolicy *string",
    "Ingress": _OBJECT.format("IngressSpec"),
    "IngressSpec": "1 defaultBackend *IngressBackend; 2 tls []IngressTLS; 3 rules []IngressRule;"
    " 4 ingressClassName *string",
    "IngressBackend": "3 resource *TypedLocalObjectReference; 4 service *IngressServiceBackend",
    "TypedLocalObjectReference": "1 apiGroup *string; 2 kind string; 3 name string",
    "IngressServiceBackend": "1 name string; 2 port ServiceBackendPort",
    "ServiceBackendPort": "1 name string; 2 number int",
    "IngressTLS": "1 hosts []string; 2 secretName string",
    "IngressRule": "1 host string; 2 <inline> IngressRuleValue",
    "IngressRuleValue": "1 http *HTTPIngressRuleValue",
    "HTTPIngressRuleValue": "1 paths []HTTPIngressPath",
    "HTTPIngressPath": "1 path string; 2 backend IngressBackend; 3 pathType *string",
    "Lease": "1 metadata ObjectMeta; 2 spec LeaseSpec",
    "LeaseSpec": "1 holderIdentity *string; 2 leaseDurationSeconds *int; 3 acquireTime *MicroTime;"
    " 4 renewTime *MicroTime; 5 leaseTransitions *int",
    "Eviction": "1 metadata ObjectMeta; 2 deleteOptions *DeleteOptions",
    "TokenRequest": _OBJECT.format("TokenRequestSpec"),
    "TokenRequestSpec": "1 audiences []string; 3 boundObjectRef *BoundObjectReference;"
    " 4 expirationSeconds *int",
    "BoundObjectReference": "1 kind string; 2 apiVersion string; 3 name string; 4 uid string",
    "SelfSubjectReview": "1 metadata ObjectMeta; 2 status -",
    "SelfSubjectAccessReview": _OBJECT.format("SelfSubjectAccessReviewSpec"),
    "SelfSubjectAccessReviewSpec": "1 resourceAttributes *ResourceAttributes;"
    " 2 nonResourceAttributes *NonResourceAttributes",
    "ResourceAttributes": "1 namespace string; 2 verb string; 3 group string; 4 version string;"
    " 5 resource string; 6 subresource string; 7 name string; 8 fieldSelector -;"
    " 9 labelSelector -",
    "NonResourceAttributes": "1 path string; 2 verb string",
    "SelfSubjectRulesReview": _OBJECT.format("SelfSubjectRulesReviewSpec"),
    "SelfSubjectRulesReviewSpec": "1 namespace string",
}


@dataclass(frozen=True)
class _Field:
    name: str
    type: str
    pointer: bool = False
    repeated: bool = False
    map: bool = False


@cache
def _fields(message: str) -> dict[int, _Field]:
    fields: dict[int, _Field] = {}
    for line in _TABLE[message].split(";"):
        number, name, kind = line.split()
        bare = kind.removeprefix("*").removeprefix("[]").removeprefix("{}")
        fields[int(number)] = _Field(
            name, bare, kind.startswith("*"), kind.startswith("[]"), kind.startswith("{}")
        )
    return fields


def decode_object(content: bytes) -> dict[str, Any]:
    """Return the object that a request's body holds in Kubernetes' protobuf form.

    Raises
    ------
    ApiError
        400 when the bytes are malformed, 415 when they hold something that
        is not in the table.
    """
    if not content.startswith(_MAGIC):
        raise bad_request("the body does not begin as Kubernetes' protobuf form does")
    kind = api_version = ""
    raw = b""
    for number, value in _wire(content[len(_MAGIC) :]):
        if number == 1 and isinstance(value, bytes):
            for part, text in _wire(value):
                if part == 1:
                    api_version = _text(text)
                elif part == 2:
                    kind = _text(text)
        elif number == 2 and isinstance(value, bytes):
            raw = value
    if kind not in _TABLE:
        raise ApiError(
            415,
            "UnsupportedMediaType",
            f"the sandbox reads {kind or 'this object'} in JSON only, not in protobuf",
        )
    return {"apiVersion": api_version, "kind": kind, **_message(kind, raw)}


def _wire(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the field numbers and values of a message."""
    position = 0

    def varint() -> int:
        nonlocal position
        result = shift = 0
        while True:
            if position >= len(data) or shift > 63:
                raise bad_request("malformed protobuf")
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7

    while position < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or (varint() if tag & 7 == 2 else None)
        if size is None and tag & 7 == 2:
            size = 0
        if size is None or position + size > len(data):
            raise bad_request("malformed protobuf")
        yield tag >> 3, data[position : position + size]
        position += size


def _text(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise bad_request("malformed protobuf")
    return value.decode()


def _message(name: str, data: bytes) -> dict[str, Any]:
    fields = _fields(name)
    result: dict[str, Any] = {}
    for number, value in _wire(data):
        field = fields.get(number)
        if field is None:
            raise ApiError(
                415,
                "UnsupportedMediaType",
                f"the sandbox does not read field {number} of {name} in protobuf: send JSON",
            )
        if field.type == "-":
            continue
        if field.map:
            key, item = _map_entry(field.type, value)
            result.setdefault(field.name, {})[key] = item
        elif field.repeated:
            result.setdefault(field.name, []).append(_value(field.type, value))
        else:
            decoded = _value(field.type, value)
            if field.name == "<inline>":
                result.update(decoded)
            # Without a pointer, Go writes zero values that mean absent.
            elif field.pointer or decoded not in ("", 0, False, None, {}):
                result[field.name] = decoded
    return result


def _map_entry(kind: str, value: int | bytes) -> tuple[str, Any]:
    key, item = "", _value(kind, b"")
    assert isinstance(value, bytes)
    for number, part in _wire(value):
        if number == 1:
            key = _text(part)
        else:
            item = _value(kind, part)
    return key, item


def _value(kind: str, value: int | bytes) -> Any:
    if isinstance(value, int):
        if kind == "bool":
            return bool(value)
        return value - (1 << 64) if value >= 1 << 63 else value
    if kind == "string":
        return value.decode()
    if kind == "bytes":
        return base64.b64encode(value).decode()
    if kind in ("Time", "MicroTime"):
        return _time(value, micro=kind == "MicroTime")
    if kind == "IntOrString":
        parts = dict(_wire(value))
        if parts.get(1, 0) == 1:
            return _text(parts.get(3, b""))
        return _value("int", parts.get(2, 0))
    if kind == "Quantity":
        return _text(dict(_wire(value)).get(1, b"0"))
    if kind == "Raw":
        return json.loads(_text(dict(_wire(value)).get(1, b"{}")))
    return _message(kind, value)


def _time(value: bytes, *, micro: bool) -> str | None:
    parts = dict(_wire(value))
    if not parts:
        return None
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    assert isinstance(seconds, int)
    assert isinstance(nanos, int)
    moment = datetime.fromtimestamp(seconds, UTC)
    if micro:
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{nanos // 1000:06d}Z"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
