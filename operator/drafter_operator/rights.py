"""Every right the operator uses and why: the one source of the chart's roles and docs/rights.md.

Nothing is deleted by the operator: owner references remove the children of a run. A right that no
request needs, or a request without its right, fails a test against an API server with RBAC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drafter_operator.api.base import GROUP, PLURAL


@dataclass(frozen=True)
class Right:
    """What may be done to one resource.

    Attributes
    ----------
    group
        API group; empty for the core group.
    verbs
        Each verb with the reason for it.
    only
        Template of the one object's name the right is limited to; None for no limit.
    """

    group: str
    resource: str
    verbs: Mapping[str, str]
    only: str | None = None

    @property
    def key(self) -> str:
        """The resource with its group, as ``kubectl`` writes it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


_APPLIED = "applied on the server's side, which takes `patch` even when it creates"

RUN_RIGHTS = (
    Right(
        GROUP,
        PLURAL,
        {
            "get": "each pass begins with the run as it is",
            "list": "every resync looks at all runs, in case a watch has died silently",
            "watch": "a new or changed run is looked at within a second",
        },
    ),
    Right(GROUP, f"{PLURAL}/status", {"patch": "the to-do list, conditions and results"}),
    Right(
        "batch",
        "jobs",
        {
            "get": "a step's Job is made only if it is not there",
            "list": "which steps run, are done or have failed",
            "watch": "the next step begins as soon as one ends",
            "create": "one Job for each step of a run",
            "patch": f"{_APPLIED}; `spec.suspend` of a suspended run",
        },
    ),
    Right(
        "apps",
        "deployments",
        {
            "get": "a server is applied only if it differs from the one applied last",
            "list": "which servers there are and are ready",
            "watch": "a benchmark begins as soon as its server is ready",
            "create": "one server for the baseline and each draft depth",
            "patch": f"{_APPLIED}; replicas of servers that are not measured",
        },
    ),
    Right(
        "",
        "services",
        {
            "get": "a Service is applied only if it differs from the one applied last",
            "create": "one Service for each server, and the stable one",
            "patch": f"{_APPLIED}; a promotion moves the stable one",
        },
    ),
    Right(
        "",
        "persistentvolumeclaims",
        {
            "get": "whether the claims that a run names exist; a claim is made only once",
            "create": "the claim of `storage.claimTemplate`",
            "patch": _APPLIED,
        },
    ),
    Right("", "configmaps", {"get": "whether the prompts that a run names exist"}),
    Right(
        "",
        "pods",
        {
            "list": "how Jobs and servers end: exit code, termination message, address of metrics",
            "watch": "a Pod that fails or cannot be scheduled is noticed within a second",
        },
    ),
    Right("", "events", {"create": "one Event for each transition of a run"}),
)
"""Rights on the runs and what belongs to them, in the watched namespaces."""

OWN_RIGHTS = (
    Right(
        "coordination.k8s.io",
        "leases",
        {"create": "the Lease that one operator holds at a time, at its first start"},
    ),
    Right(
        "coordination.k8s.io",
        "leases",
        {
            "get": "who holds the Lease",
            "update": "taken, renewed every other second, and given back at the end",
        },
        only='{{ include "drafter-operator.fullname" . }}',
    ),
)
"""Rights in the operator's own namespace."""


def rules(rights: Iterable[Right]) -> list[dict[str, Any]]:
    """Return rights as the rules of a role."""
    return [
        {
            "apiGroups": [right.group],
            "resources": [right.resource],
            **({"resourceNames": [right.only]} if right.only else {}),
            "verbs": list(right.verbs),
        }
        for right in rights
    ]


def role_templates() -> str:
    """Return the chart's named templates with the rules of its roles."""
    blocks = []
    for name, rights in (("rules", RUN_RIGHTS), ("ownRules", OWN_RIGHTS)):
        lines = []
        for rule in rules(rights):
            first, *rest = (f"{key}: {_flow(values)}" for key, values in rule.items())
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        text = "\n".join(lines)
        blocks.append(f'{{{{- define "drafter-operator.{name}" -}}}}\n{text}\n{{{{- end }}}}\n')
    return "\n".join(blocks)


def _flow(values: Iterable[str]) -> str:
    return "[" + ", ".join(value if value.isalpha() else f"'{value}'" for value in values) + "]"


_INTRODUCTION = """\
# Rights of the operator

<!-- Written from operator/drafter_operator/rights.py by `make generate`; do not edit. -->

The chart gives the operator's ServiceAccount exactly these verbs. It deletes nothing, reads no
Secret and no log, and has no wildcard: owner references remove what belongs to a deleted run. A
test runs the operator under these roles through a whole life of a run, and fails on any request
that is denied and on any verb that no request used. Pods of runs get no token at all.

## On runs and what belongs to them

A ClusterRole while `watchNamespaces` is empty; else a Role in each of those namespaces, and then
the operator has no right outside them.

"""
_OWN = """
## In the operator's own namespace

"""
_MISSING = """
## When one is missing

The run says so in its condition `Progressing`, with the reason `MissingRight`:

```
$ kubectl get drafterrun my-run -o jsonpath='{.status.conditions[?(@.type=="Progressing")].message}'
the operator may not create jobs.batch in the namespace default (it is the ServiceAccount
drafter-system/drafter-operator): give it this verb, which the chart's role has. The run goes on by
itself
```

It is an Event of the run and a line of the operator's log too. A `list` or `watch` that is missing
is a line of the log only; without a watch a run still goes on, but its changes are noticed at the
next resync. `helm upgrade` brings the chart's roles back. What the operator may do, Kubernetes
tells:

```
kubectl auth can-i --list --as=system:serviceaccount:drafter-system:drafter-operator
```

`rbac.create: false` leaves the roles to you: the tables above are what to give.
"""


def rights_reference() -> str:
    """Return docs/rights.md."""
    return _INTRODUCTION + _table(RUN_RIGHTS) + _OWN + _table(OWN_RIGHTS) + _MISSING


def _table(rights: Iterable[Right]) -> str:
    lines = ["| resource | verb | why |", "|---|---|---|"]
    for right in rights:
        limit = " (its own)" if right.only else ""
        lines += [f"| `{right.key}`{limit} | {verb} | {why} |" for verb, why in right.verbs.items()]
    return "\n".join(lines) + "\n"
