"""Reviews: questions about who somebody is and what they may do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafter_sandbox.auth import Authenticator, User, user_named
from drafter_sandbox.authorization import Attributes, Authorizer
from drafter_sandbox.errors import bad_request
from drafter_sandbox.resources import ResourceType

Body = dict[str, Any]


def review(
    resource: ResourceType,
    body: Body,
    user: User,
    authenticator: Authenticator,
    authorizer: Authorizer,
) -> Body:
    """Return a review with its status filled in.

    Raises
    ------
    ApiError
        400 when it does not say what it asks about.
    """
    spec = body.get("spec") or {}
    result = {
        **body,
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": body.get("metadata") or {},
    }
    if resource.kind == "SelfSubjectRulesReview":
        result["status"] = _rules(authorizer, user, spec.get("namespace") or "")
    elif resource.kind == "SelfSubjectReview":
        result["status"] = {"userInfo": _info(user)}
    elif resource.kind == "TokenReview":
        owner = authenticator.user(f"Bearer {spec.get('token') or ''}")
        result["status"] = {"authenticated": owner is not None}
        if owner is not None:
            result["status"]["user"] = _info(owner)
    else:
        whom = user
        if resource.kind == "SubjectAccessReview":
            whom = user_named(spec.get("user") or "", tuple(spec.get("groups") or ()))
        verdict = authorizer.decide(whom, _asked(spec))
        result["status"] = {"allowed": verdict.allowed}
        if verdict.reason:
            result["status"]["reason"] = verdict.reason
    return result


def _asked(spec: Mapping[str, Any]) -> Attributes:
    if found := spec.get("resourceAttributes"):
        names = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
        return Attributes(**{"verb": "", **{name: found.get(name) or "" for name in names}})
    if found := spec.get("nonResourceAttributes"):
        return Attributes(found.get("verb") or "", found.get("path") or "")
    raise bad_request("spec must have resourceAttributes or nonResourceAttributes")


def _rules(authorizer: Authorizer, user: User, namespace: str) -> Body:
    rules = authorizer.rules_of(user, namespace)
    return {
        "incomplete": False,
        "resourceRules": [dict(rule) for rule in rules if rule.get("resources")],
        "nonResourceRules": [dict(rule) for rule in rules if rule.get("nonResourceURLs")],
    }


def _info(user: User) -> Body:
    return {"username": user.name, "groups": list(user.groups)}
