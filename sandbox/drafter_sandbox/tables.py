"""What ``kubectl get`` shows: the ``Table`` form of objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from drafter_sandbox import jsonpath
from drafter_sandbox.resources import ResourceType

Body = dict[str, Any]
Cell = Callable[[Body], Any]

NONE = "<none>"
UNKNOWN = "<unknown>"


def age(moment: str | None, now: datetime | None = None) -> str:
    """Return how long ago a moment was, as kubectl writes it: ``47s``, ``5m``, ``3d4h``."""
    if not moment:
        return UNKNOWN
    try:
        then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        return "<invalid>"
    return duration((now or datetime.now(UTC)).timestamp() - then.timestamp())


def duration(total: float) -> str:
    """Return seconds in kubectl's short form."""
    seconds = int(total)
    if seconds < -1:
        return "<invalid>"
    seconds = max(0, seconds)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return _two(days // 365, "y", days % 365, "d")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}" + (f"{small}{small_unit}" if small else "")


def _created(body: Body) -> str:
    return age(body["metadata"].get("creationTimestamp"))


def _at(path: str, default: Any = NONE) -> Cell:
    def cell(body: Body) -> Any:
        found = jsonpath.find(path, body)
        return found[0] if found and found[0] not in (None, "") else default

    return cell


def _pod_ready(body: Body) -> str:
    statuses = (body.get("status") or {}).get("containerStatuses") or []
    total = len((body.get("spec") or {}).get("containers") or [])
    return f"{sum(bool(status.get('ready')) for status in statuses)}/{total}"


def _pod_restarts(body: Body) -> str:
    statuses = (body.get("status") or {}).get("containerStatuses") or []
    count = sum(status.get("restartCount") or 0 for status in statuses)
    ended = [
        (status.get("lastState") or {}).get("terminated", {}).get("finishedAt")
        for status in statuses
    ]
    last = max((moment for moment in ended if moment), default=None)
    return f"{count} ({age(last)} ago)" if count and last else str(count)


def pod_status(body: Body) -> str:
    """Return a Pod's state in one word, as kubectl's STATUS column has it."""
    status = body.get("status") or {}
    if body["metadata"].get("deletionTimestamp"):
        return "Terminating"
    reason = str(status.get("reason") or status.get("phase") or "Unknown")
    initial = status.get("initContainerStatuses") or []
    for index, container in enumerate(initial):
        state = container.get("state") or {}
        ended = state.get("terminated")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if container.get("started") and container.get("ready"):
            continue
        if ended is not None:
            return f"Init:{ended.get('reason') or 'Error'}"
        waiting = (state.get("waiting") or {}).get("reason")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{len(initial)}"
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        state = container.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif state.get("terminated") is not None:
            ended = state["terminated"]
            reason = ended.get("reason") or (
                f"Signal:{ended['signal']}"
                if ended.get("signal")
                else f"ExitCode:{ended.get('exitCode')}"
            )
        elif state.get("running") is not None and container.get("ready"):
            running = True
    return "Running" if reason == "Completed" and running else reason


def _job_status(body: Body) -> str:
    conditions = (body.get("status") or {}).get("conditions") or []
    true = {condition["type"] for condition in conditions if condition.get("status") == "True"}
    if "Complete" in true or "Failed" in true:
        return "Complete" if "Complete" in true else "Failed"
    if body["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if kind in true:
            return kind
    return "Running"


def _job_completions(body: Body) -> str:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    done = status.get("succeeded") or 0
    if spec.get("completions") is not None:
        return f"{done}/{spec['completions']}"
    parallel = spec.get("parallelism") or 0
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _job_duration(body: Body) -> str:
    status = body.get("status") or {}
    if not status.get("startTime"):
        return ""
    start = datetime.fromisoformat(status["startTime"].replace("Z", "+00:00"))
    end = datetime.now(UTC)
    if status.get("completionTime"):
        end = datetime.fromisoformat(status["completionTime"].replace("Z", "+00:00"))
    return duration((end - start).total_seconds())


def _containers(path: str, field: str) -> Cell:
    return lambda body: ",".join(
        str(item.get(field, "")) for item in (jsonpath.find(path, body) or [[]])[0] or []
    )


def _selector(body: Body) -> str:
    selector = (body.get("spec") or {}).get("selector") or {}
    labels = selector.get("matchLabels", selector)
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


def _ports(body: Body) -> str:
    return (
        ",".join(
            f"{port['port']}"
            + (f":{port['nodePort']}" if port.get("nodePort") else "")
            + f"/{port.get('protocol', 'TCP')}"
            for port in (body.get("spec") or {}).get("ports") or []
        )
        or NONE
    )


_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(body: Body) -> str:
    modes = (body.get("spec") or {}).get("accessModes") or []
    return ",".join(_MODES.get(mode, mode) for mode in modes)


def _node_status(body: Body) -> str:
    states = []
    for condition in (body.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Ready":
            states.append("Ready" if condition["status"] == "True" else "NotReady")
    if (body.get("spec") or {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    return ",".join(states) or "Unknown"


def _node_roles(body: Body) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [
        key[len(prefix) :] for key in body["metadata"].get("labels") or {} if key.startswith(prefix)
    ]
    return ",".join(sorted(roles)) or NONE


def _event_seen(body: Body) -> str:
    return age(
        (body.get("series") or {}).get("lastObservedTime")
        or body.get("lastTimestamp")
        or body.get("eventTime")
        or body["metadata"].get("creationTimestamp")
    )


def _event_object(body: Body) -> str:
    target = body.get("involvedObject") or body.get("regarding") or {}
    return f"{str(target.get('kind', '')).lower()}/{target.get('name', '')}"


def _ready_of(body: Body) -> str:
    status = body.get("status") or {}
    return f"{status.get('readyReplicas') or 0}/{(body.get('spec') or {}).get('replicas', 0)}"


def _endpoints(body: Body) -> str:
    found = [
        f"{address['ip']}:{port['port']}"
        for subset in body.get("subsets") or []
        for address in subset.get("addresses") or []
        for port in subset.get("ports") or []
    ]
    return ",".join(found[:3]) + (" + more..." if len(found) > 3 else "") or NONE


def _slice_endpoints(body: Body) -> str:
    found = [a for endpoint in body.get("endpoints") or [] for a in endpoint["addresses"]]
    return ",".join(found[:3]) or UNKNOWN


def _count(name: str) -> Cell:
    return lambda body: len(body.get(name) or {})


# Name, type, cell, and whether only `-o wide` shows it.
_Column = tuple[str, str, Cell, bool]


def _column(name: str, cell: Cell, kind: str = "string", *, wide: bool = False) -> _Column:
    return (name, kind, cell, wide)


_AGE = _column("Age", _created)
_TEMPLATE = ".spec.template.spec.containers"
_WORKLOAD: tuple[_Column, ...] = (
    _AGE,
    _column("Containers", _containers(_TEMPLATE, "name"), wide=True),
    _column("Images", _containers(_TEMPLATE, "image"), wide=True),
    _column("Selector", _selector, wide=True),
)
_COLUMNS: dict[tuple[str, str], tuple[_Column, ...]] = {
    ("", "pods"): (
        _column("Ready", _pod_ready),
        _column("Status", pod_status),
        _column("Restarts", _pod_restarts),
        _AGE,
        _column("IP", _at(".status.podIP"), wide=True),
        _column("Node", _at(".spec.nodeName"), wide=True),
        _column("Nominated Node", _at(".status.nominatedNodeName"), wide=True),
        _column("Readiness Gates", lambda _: NONE, wide=True),
    ),
    ("batch", "jobs"): (
        _column("Status", _job_status),
        _column("Completions", _job_completions),
        _column("Duration", _job_duration),
        *_WORKLOAD,
    ),
    ("batch", "cronjobs"): (
        _column("Schedule", _at(".spec.schedule")),
        _column("Suspend", lambda body: str(bool(body["spec"].get("suspend")))),
        _column("Active", lambda body: len((body.get("status") or {}).get("active") or [])),
        _AGE,
    ),
    ("apps", "deployments"): (
        _column("Ready", _ready_of),
        _column("Up-to-date", _at(".status.updatedReplicas", 0), "integer"),
        _column("Available", _at(".status.availableReplicas", 0), "integer"),
        *_WORKLOAD,
    ),
    ("apps", "replicasets"): (
        _column("Desired", _at(".spec.replicas", 0), "integer"),
        _column("Current", _at(".status.replicas", 0), "integer"),
        _column("Ready", _at(".status.readyReplicas", 0), "integer"),
        *_WORKLOAD,
    ),
    ("apps", "statefulsets"): (_column("Ready", _ready_of), *_WORKLOAD),
    ("", "services"): (
        _column("Type", _at(".spec.type")),
        _column("Cluster-IP", _at(".spec.clusterIP")),
        _column("External-IP", _at(".spec.externalName")),
        _column("Port(s)", _ports),
        _AGE,
        _column("Selector", _selector, wide=True),
    ),
    ("", "endpoints"): (_column("Endpoints", _endpoints), _AGE),
    ("discovery.k8s.io", "endpointslices"): (
        _column("AddressType", _at(".addressType")),
        _column(
            "Ports",
            lambda body: ",".join(str(p.get("port")) for p in body.get("ports") or []) or UNKNOWN,
        ),
        _column("Endpoints", _slice_endpoints),
        _AGE,
    ),
    ("", "persistentvolumeclaims"): (
        _column("Status", _at(".status.phase")),
        _column("Volume", _at(".spec.volumeName", "")),
        _column("Capacity", _at(".status.capacity.storage", "")),
        _column("Access Modes", _modes),
        _column("StorageClass", _at(".spec.storageClassName", "")),
        _AGE,
    ),
    ("", "persistentvolumes"): (
        _column("Capacity", _at(".spec.capacity.storage", "")),
        _column("Access Modes", _modes),
        _column("Reclaim Policy", _at(".spec.persistentVolumeReclaimPolicy", "")),
        _column("Status", _at(".status.phase", "")),
        _column("StorageClass", _at(".spec.storageClassName", "")),
        _AGE,
    ),
    ("", "nodes"): (
        _column("Status", _node_status),
        _column("Roles", _node_roles),
        _AGE,
        _column("Version", _at(".status.nodeInfo.kubeletVersion", "")),
        _column("OS-Image", _at(".status.nodeInfo.osImage", UNKNOWN), wide=True),
        _column("Kernel-Version", _at(".status.nodeInfo.kernelVersion", UNKNOWN), wide=True),
    ),
    ("", "namespaces"): (_column("Status", _at(".status.phase", "Active")), _AGE),
    ("", "configmaps"): (_column("Data", _count("data"), "integer"), _AGE),
    ("", "secrets"): (
        _column("Type", _at(".type")),
        _column("Data", _count("data"), "integer"),
        _AGE,
    ),
    ("", "serviceaccounts"): (_AGE,),
    ("coordination.k8s.io", "leases"): (_column("Holder", _at(".spec.holderIdentity", "")), _AGE),
    ("apiextensions.k8s.io", "customresourcedefinitions"): (
        _column("Created At", _at(".metadata.creationTimestamp")),
    ),
    ("rbac.authorization.k8s.io", "rolebindings"): (
        _column("Role", lambda body: f"{body['roleRef']['kind']}/{body['roleRef']['name']}"),
        _AGE,
    ),
    ("rbac.authorization.k8s.io", "clusterrolebindings"): (
        _column("Role", lambda body: f"{body['roleRef']['kind']}/{body['roleRef']['name']}"),
        _AGE,
    ),
}
_EVENT_COLUMNS: tuple[_Column, ...] = (
    _column("Last Seen", _event_seen),
    _column("Type", _at(".type", "")),
    _column("Reason", _at(".reason", "")),
    _column("Object", _event_object),
    _column("Source", _at(".source.component", ""), wide=True),
    _column("Message", lambda body: str(body.get("message") or body.get("note") or "").strip()),
)


def _custom_cell(declared: Body) -> Cell:
    path, kind = declared["jsonPath"], declared["type"]

    def cell(body: Body) -> Any:
        try:
            found = jsonpath.find(path, body)
        except ValueError:
            return None
        value = found[0] if found else None
        if value is None:
            return None
        if kind == "date":
            return age(str(value))
        if kind == "string" and not isinstance(value, str):
            return json.dumps(value, separators=(",", ":"))
        return value

    return cell


def _columns(resource: ResourceType) -> list[_Column]:
    name = _column("Name", lambda body: body["metadata"]["name"])
    if resource.plural == "events" and not resource.custom:
        return list(_EVENT_COLUMNS)
    if resource.columns:
        return [
            name,
            *(
                (item["name"], item["type"], _custom_cell(item), (item.get("priority") or 0) > 0)
                for item in resource.columns
            ),
        ]
    return [name, *_COLUMNS.get((resource.group, resource.plural), (_AGE,))]


def table(
    resource: ResourceType,
    bodies: Iterable[Body],
    list_meta: Body,
    include: str = "Metadata",
) -> Body:
    """Return objects as a ``Table``.

    Parameters
    ----------
    include
        How much of each object a row carries: ``None``, ``Metadata`` or
        ``Object``.
    """
    columns = _columns(resource)
    rows = []
    for body in bodies:
        row: Body = {"cells": [cell(body) for _, _, cell, _ in columns]}
        if include == "Object":
            row["object"] = body
        elif include != "None":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": body["metadata"],
            }
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_meta,
        "columnDefinitions": [
            {
                "name": name,
                "type": kind if kind != "date" else "string",
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": int(wide),
            }
            for name, kind, _, wide in columns
        ],
        "rows": rows,
    }
