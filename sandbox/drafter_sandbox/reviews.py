"""Reviews: questions about access, to which the sandbox answers yes."""

from __future__ import annotations

from typing import Any

from drafter_sandbox.auth import Authenticator
from drafter_sandbox.resources import ResourceType

Body = dict[str, Any]

_REASON = "the sandbox has no authorization: whoever has a token may do anything"


def review(resource: ResourceType, body: Body, username: str, authenticator: Authenticator) -> Body:
    """Return a review with its status filled in."""
    result = {
        **body,
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": body.get("metadata") or {},
    }
    if resource.kind == "SelfSubjectRulesReview":
        result["status"] = {
            "incomplete": False,
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }
    elif resource.kind == "SelfSubjectReview":
        result["status"] = {"userInfo": _user(username)}
    elif resource.kind == "TokenReview":
        token = (body.get("spec") or {}).get("token") or ""
        owner = authenticator.username(f"Bearer {token}")
        result["status"] = {"authenticated": owner is not None}
        if owner is not None:
            result["status"]["user"] = _user(owner)
    else:
        result["status"] = {"allowed": True, "reason": _REASON}
    return result


def _user(username: str) -> Body:
    groups = ["system:authenticated"]
    if username.startswith("system:serviceaccount:"):
        namespace = username.split(":")[2]
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    else:
        groups.append("system:masters")
    return {"username": username, "groups": groups}
