"""The roles and bindings that every cluster begins with, as far as they are of use here.

After Kubernetes' bootstrap policy: everyone who is authenticated may discover what is served and
ask about their own rights; ``cluster-admin`` may do everything.
"""

from __future__ import annotations

from typing import Any

from drafter_sandbox.resources import RBAC_GROUP
from drafter_sandbox.store import Store

_EVERYONE = "system:authenticated"
_PUBLIC = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", *_PUBLIC]
_REVIEWS = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]

_ROLES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "cluster-admin": (
        "system:masters",
        [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
            {"nonResourceURLs": ["*"], "verbs": ["*"]},
        ],
    ),
    "system:discovery": (_EVERYONE, [{"nonResourceURLs": _DISCOVERY, "verbs": ["get"]}]),
    "system:public-info-viewer": (_EVERYONE, [{"nonResourceURLs": _PUBLIC, "verbs": ["get"]}]),
    "system:basic-user": (
        _EVERYONE,
        [
            {"apiGroups": ["authorization.k8s.io"], "resources": _REVIEWS, "verbs": ["create"]},
            {
                "apiGroups": ["authentication.k8s.io"],
                "resources": ["selfsubjectreviews"],
                "verbs": ["create"],
            },
        ],
    ),
}


def ensure_default_roles(store: Store) -> None:
    """Create the roles and their bindings that are not there."""
    for name, (group, rules) in _ROLES.items():
        metadata = {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}
        role = {"metadata": metadata, "rules": rules}
        binding = {
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": group}],
        }
        for plural, body in (("clusterroles", role), ("clusterrolebindings", binding)):
            if store.get(plural, None, name, RBAC_GROUP) is None:
                store.create(plural, None, body, RBAC_GROUP)
