"""The resource types that the API server knows: built-in ones and those of installed CRDs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from drafter_sandbox.errors import no_such_resource
from drafter_sandbox.schemas import custom_schema


@dataclass(frozen=True)
class ResourceType:
    """One kind of object and the names under which it is served.

    Attributes
    ----------
    schema
        OpenAPI schema of the version, or None for a built-in type, whose
        schema is found by its group, version and kind.
    scale
        Paths of a CRD's scale subresource; built-in types with a ``scale``
        subresource use ``.spec.replicas`` and ``.status.replicas``.
    columns
        ``additionalPrinterColumns`` of a CRD's version.
    """

    group: str
    version: str
    plural: str
    kind: str
    singular: str = ""
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = (
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    )
    stored: bool = True
    custom: bool = False
    schema: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    scale: dict[str, str] | None = field(default=None, compare=False, repr=False)
    columns: tuple[dict[str, Any], ...] = field(default=(), compare=False, repr=False)

    @property
    def key(self) -> str:
        """Name of the type as CRDs are named: ``plural.group``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """Value of ``apiVersion`` of the type's objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        """Kind of a list of the type's objects."""
        return f"{self.kind}List"

    @property
    def has_status(self) -> bool:
        """Whether ``status`` is written through its own subresource only."""
        return "status" in self.subresources


_REVIEW = ("create",)


def _type(
    group: str,
    plural: str,
    kind: str,
    *,
    version: str = "v1",
    short: tuple[str, ...] = (),
    namespaced: bool = True,
    categories: tuple[str, ...] = (),
    sub: tuple[str, ...] = (),
) -> ResourceType:
    return ResourceType(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        singular=kind.lower(),
        short_names=short,
        namespaced=namespaced,
        categories=categories,
        subresources=sub,
    )


def _review(group: str, plural: str, kind: str, *, namespaced: bool = False) -> ResourceType:
    return ResourceType(
        group=group,
        version="v1",
        plural=plural,
        kind=kind,
        singular=kind.lower(),
        namespaced=namespaced,
        verbs=_REVIEW,
        stored=False,
    )


_ALL = ("all",)
RBAC_GROUP = "rbac.authorization.k8s.io"

BUILT_IN: tuple[ResourceType, ...] = (
    _type("", "namespaces", "Namespace", short=("ns",), namespaced=False, sub=("status",)),
    _type("", "nodes", "Node", short=("no",), namespaced=False, sub=("status",)),
    _type(
        "",
        "pods",
        "Pod",
        short=("po",),
        categories=_ALL,
        sub=("status", "log", "eviction", "binding", "exec", "attach", "portforward"),
    ),
    _type("", "services", "Service", short=("svc",), categories=_ALL, sub=("status",)),
    _type("", "endpoints", "Endpoints", short=("ep",)),
    _type("", "configmaps", "ConfigMap", short=("cm",)),
    _type("", "secrets", "Secret"),
    _type("", "events", "Event", short=("ev",)),
    _type("", "serviceaccounts", "ServiceAccount", short=("sa",), sub=("token",)),
    _type("", "persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",), sub=("status",)),
    _type(
        "",
        "persistentvolumes",
        "PersistentVolume",
        short=("pv",),
        namespaced=False,
        sub=("status",),
    ),
    _type("", "resourcequotas", "ResourceQuota", short=("quota",), sub=("status",)),
    _type("", "limitranges", "LimitRange", short=("limits",)),
    _type(
        "apps",
        "deployments",
        "Deployment",
        short=("deploy",),
        categories=_ALL,
        sub=("status", "scale"),
    ),
    _type(
        "apps",
        "replicasets",
        "ReplicaSet",
        short=("rs",),
        categories=_ALL,
        sub=("status", "scale"),
    ),
    _type(
        "apps",
        "statefulsets",
        "StatefulSet",
        short=("sts",),
        categories=_ALL,
        sub=("status", "scale"),
    ),
    _type("apps", "daemonsets", "DaemonSet", short=("ds",), categories=_ALL, sub=("status",)),
    _type("apps", "controllerrevisions", "ControllerRevision"),
    _type("batch", "jobs", "Job", categories=_ALL, sub=("status",)),
    _type("batch", "cronjobs", "CronJob", short=("cj",), categories=_ALL, sub=("status",)),
    _type(RBAC_GROUP, "roles", "Role"),
    _type(RBAC_GROUP, "rolebindings", "RoleBinding"),
    _type(RBAC_GROUP, "clusterroles", "ClusterRole", namespaced=False),
    _type(RBAC_GROUP, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    _type("coordination.k8s.io", "leases", "Lease"),
    _type("discovery.k8s.io", "endpointslices", "EndpointSlice"),
    _type("storage.k8s.io", "storageclasses", "StorageClass", short=("sc",), namespaced=False),
    _type("networking.k8s.io", "networkpolicies", "NetworkPolicy", short=("netpol",)),
    _type("networking.k8s.io", "ingresses", "Ingress", short=("ing",), sub=("status",)),
    _type("networking.k8s.io", "ingressclasses", "IngressClass", namespaced=False),
    _type("policy", "poddisruptionbudgets", "PodDisruptionBudget", short=("pdb",), sub=("status",)),
    _type("scheduling.k8s.io", "priorityclasses", "PriorityClass", short=("pc",), namespaced=False),
    _type(
        "autoscaling",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        version="v2",
        short=("hpa",),
        categories=_ALL,
        sub=("status",),
    ),
    _type(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        short=("crd", "crds"),
        namespaced=False,
        categories=("api-extensions",),
        sub=("status",),
    ),
    _type(
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        namespaced=False,
        categories=("api-extensions",),
    ),
    _type(
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
        categories=("api-extensions",),
    ),
    _review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
    _review("authentication.k8s.io", "tokenreviews", "TokenReview"),
    _review("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    _review("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    _review("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview"),
)

CRD_GROUP = "apiextensions.k8s.io"
CRD_PLURAL = "customresourcedefinitions"


class Registry:
    """The resource types served at the moment."""

    def __init__(self) -> None:
        self._types: dict[tuple[str, str], dict[str, ResourceType]] = {}
        for resource in BUILT_IN:
            self._types.setdefault((resource.group, resource.plural), {})[resource.version] = (
                resource
            )
        self._storage: dict[tuple[str, str], str] = {}

    def all(self) -> Iterator[ResourceType]:
        """Yield every served type, once a version."""
        for versions in self._types.values():
            yield from versions.values()

    def find(self, group: str, plural: str, version: str | None = None) -> ResourceType:
        """Return a type by its names.

        Raises
        ------
        ApiError
            404 when no such type is served.
        """
        versions = self._types.get((group, plural))
        if not versions:
            raise no_such_resource()
        if version is None:
            return versions[self._storage.get((group, plural)) or next(iter(versions))]
        if version not in versions:
            raise no_such_resource()
        return versions[version]

    def install(self, crd: dict[str, Any]) -> None:
        """Serve the versions of a ``CustomResourceDefinition``."""
        spec = crd["spec"]
        names = spec["names"]
        key = (spec["group"], names["plural"])
        versions: dict[str, ResourceType] = {}
        for version in spec["versions"]:
            if version.get("storage"):
                self._storage[key] = version["name"]
            sub = version.get("subresources") or {}
            entry = ResourceType(
                group=spec["group"],
                version=version["name"],
                plural=names["plural"],
                kind=names["kind"],
                singular=names.get("singular") or names["kind"].lower(),
                short_names=tuple(names.get("shortNames") or ()),
                namespaced=spec.get("scope") != "Cluster",
                categories=tuple(names.get("categories") or ()),
                subresources=tuple(name for name in ("status", "scale") if name in sub),
                custom=True,
                schema=custom_schema((version.get("schema") or {}).get("openAPIV3Schema") or {}),
                scale=sub.get("scale"),
                columns=tuple(version.get("additionalPrinterColumns") or ()),
            )
            if version.get("served"):
                versions[version["name"]] = entry
        if self._storage.get(key) not in versions:
            self._storage.pop(key, None)
        if versions:
            self._types[key] = versions
        else:
            self._types.pop(key, None)

    def uninstall(self, crd: dict[str, Any]) -> None:
        """Stop serving the versions of a ``CustomResourceDefinition``."""
        key = (crd["spec"]["group"], crd["spec"]["names"]["plural"])
        self._types.pop(key, None)
        self._storage.pop(key, None)
