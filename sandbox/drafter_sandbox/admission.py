"""What happens to an object before it is kept: pruning, defaults, checks."""

from __future__ import annotations

from ipaddress import IPv4Network

from drafter_sandbox import builtin_rules, cel, crd, errors, schemas
from drafter_sandbox.defaults import apply_builtin_defaults
from drafter_sandbox.resources import CRD_GROUP, CRD_PLURAL, ResourceType
from drafter_sandbox.store import Body, Store, timestamp
from drafter_sandbox.validation import validate

DEFAULT_CLASS_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
SERVICE_NETWORK = IPv4Network("127.96.0.0/16")


class ServerAdmission:
    """Completes and checks objects as the Kubernetes API server does.

    Parameters
    ----------
    service_network
        Addresses that Services without one receive.
    """

    def __init__(self, service_network: IPv4Network = SERVICE_NETWORK) -> None:
        self._service_network = service_network

    def create(self, store: Store, resource: ResourceType, body: Body) -> None:
        """Complete and check a new object."""
        self._prepare(resource, body)
        if (resource.group, resource.plural) == ("", "services"):
            self._assign_address(store, resource, body, None)
        if (resource.group, resource.plural) == ("", "persistentvolumeclaims"):
            _assign_storage_class(store, body)
        self._check(resource, None, body, None)
        if _is_crd(resource):
            crd.established(body, timestamp())

    def update(
        self, store: Store, resource: ResourceType, old: Body, body: Body, subresource: str | None
    ) -> None:
        """Complete and check a changed object."""
        self._prepare(resource, body)
        if (resource.group, resource.plural) == ("", "services"):
            self._assign_address(store, resource, body, old)
        self._check(resource, old, body, subresource)
        if _is_crd(resource):
            crd.established(body, timestamp())

    def _prepare(self, resource: ResourceType, body: Body) -> None:
        schema = schemas.schema_of(resource)
        schemas.drop_nulls(schema, body, custom=resource.custom)
        schemas.prune(schema, body)
        if resource.custom:
            schemas.apply_defaults(schema, body)
        elif not _has_wrong_types(schema, body):
            apply_builtin_defaults(resource.group, resource.kind, body)
            if _is_crd(resource) and not validate(schema, body):
                crd.complete(body)
        for name in ("labels", "annotations", "finalizers", "ownerReferences"):
            if body["metadata"].get(name) in ({}, []):
                del body["metadata"][name]

    def _check(
        self, resource: ResourceType, old: Body | None, body: Body, subresource: str | None
    ) -> None:
        schema = schemas.schema_of(resource)
        causes = validate(schema, body)
        if not causes and resource.custom:
            causes = cel.check_rules(schema, body, old)
        if not causes and not resource.custom:
            causes = builtin_rules.problems(resource, body)
            if old is not None and subresource is None:
                causes += builtin_rules.forbidden_changes(resource, old, body)
        if not causes and _is_crd(resource):
            causes = crd.problems(body)
        if causes:
            raise errors.invalid(
                resource.kind, resource.group, body["metadata"].get("name") or "", causes
            )

    def _assign_address(
        self, store: Store, resource: ResourceType, body: Body, old: Body | None
    ) -> None:
        spec = body.get("spec")
        if not isinstance(spec, dict) or spec.get("type") == "ExternalName":
            return
        if not spec.get("clusterIP") and old is not None:
            spec["clusterIP"] = old["spec"].get("clusterIP")
        if not spec.get("clusterIP"):
            taken = {other["spec"].get("clusterIP") for other in store.scan(resource)}
            free = (str(host) for host in self._service_network.hosts() if str(host) not in taken)
            spec["clusterIP"] = next(free)
        spec["clusterIPs"] = [spec["clusterIP"]]


def _is_crd(resource: ResourceType) -> bool:
    return (resource.group, resource.plural) == (CRD_GROUP, CRD_PLURAL)


def _has_wrong_types(schema: schemas.Schema, body: Body) -> bool:
    """Whether an object has fields of wrong types, which defaulting would stumble over."""
    return any(cause.reason == "FieldValueTypeInvalid" for cause in validate(schema, body))


def _assign_storage_class(store: Store, body: Body) -> None:
    """Give a claim that names no class the default one, as DefaultStorageClass does."""
    spec = body.get("spec")
    if not isinstance(spec, dict) or "storageClassName" in spec:
        return
    for storage_class in store.list("storageclasses", group="storage.k8s.io"):
        annotations = storage_class["metadata"].get("annotations") or {}
        if annotations.get(DEFAULT_CLASS_ANNOTATION) == "true":
            spec["storageClassName"] = storage_class["metadata"]["name"]
            return
