"""What a refusal of the API server (403) means: a right that is missing, or something else."""

from __future__ import annotations

import re

# As the RBAC authorizer words it, in ``k8s.io/apiserver/pkg/endpoints/handlers/responsewriters``.
_DENIED = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)"'
    r' in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)"| at the cluster scope)'
)
_SERVICE_ACCOUNT = "system:serviceaccount:"


def missing_right(message: str) -> str | None:
    """Return which right is missing and the way out, or None for another refusal.

    Parameters
    ----------
    message
        Of the API server's answer.
    """
    denied = _DENIED.search(message)
    if denied is None:
        return None
    resource = denied["resource"] + (f".{denied['group']}" if denied["group"] else "")
    where = f"in the namespace {denied['namespace']}" if denied["namespace"] else "in the cluster"
    who = denied["user"]
    if who.startswith(_SERVICE_ACCOUNT):
        who = f"the ServiceAccount {who.removeprefix(_SERVICE_ACCOUNT).replace(':', '/')}"
    return (
        f"the operator may not {denied['verb']} {resource} {where} (it is {who}): give it this"
        " verb, which the chart's role has. The run goes on by itself"
    )


def other_refusal(message: str) -> str:
    """Return what is said of a refusal for another reason, such as a quota or a policy."""
    return f"the API server refuses what the run needs: {message}. The run goes on by itself"
