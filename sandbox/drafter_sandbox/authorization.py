"""Whether a user may do what a request asks: RBAC over the stored roles and bindings.

As the ``RBAC`` authorizer of Kubernetes decides it. What is left out: roles that aggregate others,
and the rule that nobody may grant rights that they lack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drafter_sandbox.auth import User
from drafter_sandbox.errors import ApiError
from drafter_sandbox.requests import flag, split_path
from drafter_sandbox.resources import RBAC_GROUP
from drafter_sandbox.store import Store

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_MASTERS = "system:masters"
_NAME_FIELD = "metadata.name="


@dataclass(frozen=True)
class Attributes:
    """What a request does, in the terms of RBAC.

    Attributes
    ----------
    resource
        Plural name; empty for a path that names no resource, such as ``/version``.
    path
        Path of the request.
    """

    verb: str
    path: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def rule_resource(self) -> str:
        """The resource as rules write it: ``pods`` or ``pods/log``."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def attributes_of(method: str, path: str, query: Mapping[str, str]) -> Attributes:
    """Return what a request does, whether or not the resource it names is served."""
    named = split_path(path)
    if named is None:
        return Attributes(method.lower(), path)
    group, version, rest = named
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in ("status", "finalize"):
            rest = rest[2:]
    resource, name, subresource, *_ = [*rest, "", "", ""]
    selector = query.get("fieldSelector", "")
    if not name and method in ("GET", "HEAD") and selector.startswith(_NAME_FIELD):
        name = selector.removeprefix(_NAME_FIELD).partition(",")[0]
    if method in ("GET", "HEAD"):
        verb = "get" if len(rest) > 1 else "list"
        verb = "watch" if flag(query, "watch") else verb
    elif method == "DELETE" and len(rest) == 1:
        verb = "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    return Attributes(verb, path, group, version, resource, subresource, namespace, name)


@dataclass(frozen=True)
class Verdict:
    """Whether a request is allowed, and by which binding; or what was wrong on the way."""

    allowed: bool
    reason: str = ""


Rule = Mapping[str, Any]


class Authorizer:
    """Decides by the roles and bindings in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def decide(self, user: User, asked: Attributes) -> Verdict:
        """Return whether a user may do something."""
        if _MASTERS in user.groups:
            return Verdict(True)
        lacking = []
        for binding, subject in self._bindings(user, asked.namespace):
            reference = binding["roleRef"]
            rules = self._rules(reference, binding["metadata"].get("namespace"))
            if rules is None:
                kind, name = reference["kind"].lower(), reference["name"]
                lacking.append(f'{kind}.{RBAC_GROUP} "{name}" not found')
            elif any(allows(rule, asked) for rule in rules):
                return Verdict(True, _why(binding, subject))
        return Verdict(False, f"RBAC: {', '.join(lacking)}" if lacking else "")

    def check(self, user: User, asked: Attributes) -> Verdict:
        """Return the verdict that allows a request.

        Raises
        ------
        ApiError
            403 when it is not allowed, in the words of Kubernetes.
        """
        verdict = self.decide(user, asked)
        if not verdict.allowed:
            raise denied(user, asked, verdict.reason)
        return verdict

    def rules_of(self, user: User, namespace: str) -> list[Rule]:
        """Return every rule that gives a user rights in a namespace."""
        if _MASTERS in user.groups:
            everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            return [everything, {"verbs": ["*"], "nonResourceURLs": ["*"]}]
        return [
            rule
            for binding, _ in self._bindings(user, namespace)
            for rule in self._rules(binding["roleRef"], binding["metadata"].get("namespace")) or []
        ]

    def _bindings(
        self, user: User, namespace: str
    ) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Yield the bindings that name a user, each with the subject that does."""
        registry = self._store.registry
        kinds: list[tuple[str, str | None]] = [("clusterrolebindings", None)]
        if namespace:
            kinds.append(("rolebindings", namespace))
        for plural, where in kinds:
            for binding in self._store.scan(registry.find(RBAC_GROUP, plural), where):
                for subject in binding.get("subjects") or []:
                    if _is_subject(user, subject, where):
                        yield binding, subject
                        break

    def _rules(self, reference: Mapping[str, Any], namespace: str | None) -> Sequence[Rule] | None:
        plural, where = "clusterroles", None
        if reference["kind"] == "Role":
            plural, where = "roles", namespace
        role = self._store.peek(
            self._store.registry.find(RBAC_GROUP, plural), where, reference["name"]
        )
        return None if role is None else role.get("rules") or []


def _is_subject(user: User, subject: Mapping[str, Any], namespace: str | None) -> bool:
    kind, name = subject["kind"], subject["name"]
    if kind == "ServiceAccount":
        home = subject.get("namespace") or namespace
        return user.name == f"system:serviceaccount:{home}:{name}"
    return name in user.groups if kind == "Group" else bool(user.name == name)


def _why(binding: Mapping[str, Any], subject: Mapping[str, Any]) -> str:
    metadata, role = binding["metadata"], binding["roleRef"]
    home = metadata.get("namespace")
    kind, name = ("RoleBinding", f"{metadata['name']}/{home}") if home else ("", "")
    whom = subject["name"]
    if subject["kind"] == "ServiceAccount":
        whom = f"{whom}/{subject.get('namespace') or home}"
    return (
        f'RBAC: allowed by {kind or "ClusterRoleBinding"} "{name or metadata["name"]}" of'
        f' {role["kind"]} "{role["name"]}" to {subject["kind"]} "{whom}"'
    )


def allows(rule: Rule, asked: Attributes) -> bool:
    """Return whether a rule of a role covers a request."""
    if not _among(rule.get("verbs"), asked.verb):
        return False
    if not asked.resource:
        return any(
            asked.path == allowed
            or (allowed.endswith("*") and asked.path.startswith(allowed.removesuffix("*")))
            for allowed in rule.get("nonResourceURLs") or []
        )
    if not _among(rule.get("apiGroups"), asked.group):
        return False
    resources = rule.get("resources") or []
    any_parent = f"*/{asked.subresource}"
    if not _among(resources, asked.rule_resource) and not (
        asked.subresource and any_parent in resources
    ):
        return False
    names = rule.get("resourceNames") or []
    return not names or asked.name in names


def _among(allowed: Sequence[str] | None, value: str) -> bool:
    return "*" in (allowed or []) or value in (allowed or [])


def denied(user: User, asked: Attributes, reason: str = "") -> ApiError:
    """Return the error for a request that no role allows, worded as Kubernetes words it."""
    more = f": {reason}" if reason else ""
    who = f'User "{user.name}" cannot {asked.verb}'
    if not asked.resource:
        message = f'forbidden: {who} path "{asked.path}"{more}'
        return ApiError(403, "Forbidden", message)
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    full = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    what = f'{full} "{asked.name}"' if asked.name else full
    message = (
        f'{what} is forbidden: {who} resource "{asked.rule_resource}" in API group'
        f' "{asked.group}" {where}{more}'
    )
    details = {"name": asked.name, "group": asked.group, "kind": asked.resource}
    return ApiError(
        403, "Forbidden", message, {key: value for key, value in details.items() if value}
    )
