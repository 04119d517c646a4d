"""Which groups, versions and resources are served, as clients ask for it."""

from __future__ import annotations

from typing import Any

from drafter_sandbox.resources import Registry, ResourceType

Body = dict[str, Any]

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

_SUBRESOURCE_VERBS: dict[str, tuple[str, ...]] = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "log": ("get",),
    "eviction": ("create",),
    "binding": ("create",),
    "token": ("create",),
    "exec": ("create", "get"),
    "attach": ("create", "get"),
    "portforward": ("create", "get"),
}
_SUBRESOURCE_KINDS: dict[str, tuple[str, str, str]] = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "binding": ("", "v1", "Binding"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
    "exec": ("", "v1", "PodExecOptions"),
    "attach": ("", "v1", "PodAttachOptions"),
    "portforward": ("", "v1", "PodPortForwardOptions"),
}


def groups(registry: Registry) -> dict[str, list[str]]:
    """Return the versions of every named group, the preferred one first."""
    found: dict[str, list[str]] = {}
    for resource in registry.all():
        if resource.group:
            versions = found.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
    return found


def _group(name: str, versions: list[str]) -> Body:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def api_versions() -> Body:
    """Return the answer to ``/api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(registry: Registry) -> Body:
    """Return the answer to ``/apis``."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, versions) for name, versions in groups(registry).items()],
    }


def group(registry: Registry, name: str) -> Body | None:
    """Return the answer to ``/apis/<group>``, or None without such a group."""
    versions = groups(registry).get(name)
    if versions is None:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def resource_list(registry: Registry, name: str, version: str) -> Body | None:
    """Return the answer to ``/apis/<group>/<version>``, or None without such a version."""
    entries: list[Body] = []
    for resource in registry.all():
        if (resource.group, resource.version) != (name, version):
            continue
        entry: Body = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        entries.append(entry)
        for sub in resource.subresources:
            kind = _SUBRESOURCE_KINDS.get(sub)
            below: Body = {
                "name": f"{resource.plural}/{sub}",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": kind[2] if kind else resource.kind,
                "verbs": list(_SUBRESOURCE_VERBS[sub]),
            }
            if kind:
                below["group"], below["version"] = kind[0], kind[1]
            entries.append(below)
    if not entries:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{name}/{version}" if name else version,
        "resources": entries,
    }


def aggregated(registry: Registry, *, core: bool) -> Body:
    """Return the answer to ``/api`` or ``/apis`` in the form with everything in one document."""
    items = []
    named = {"": ["v1"]} if core else groups(registry)
    for name, versions in named.items():
        items.append(
            {
                "metadata": {"name": name} if name else {},
                "versions": [
                    {
                        "version": version,
                        "freshness": "Current",
                        "resources": [
                            _aggregated_resource(resource)
                            for resource in registry.all()
                            if (resource.group, resource.version) == (name, version)
                        ],
                    }
                    for version in versions
                ],
            }
        )
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _aggregated_resource(resource: ResourceType) -> Body:
    entry: Body = {
        "resource": resource.plural,
        "responseKind": {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        },
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": sub,
                "responseKind": dict(
                    zip(
                        ("group", "version", "kind"),
                        _SUBRESOURCE_KINDS.get(
                            sub, (resource.group, resource.version, resource.kind)
                        ),
                        strict=True,
                    )
                ),
                "verbs": list(_SUBRESOURCE_VERBS[sub]),
            }
            for sub in resource.subresources
        ]
    return entry
