"""Who a request comes from: bearer tokens kept in the state folder."""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml

ADMINISTRATOR = "system:admin"
_SERVICE_ACCOUNT = "system:serviceaccount:"
_AUTHENTICATED = "system:authenticated"


@dataclass(frozen=True)
class User:
    """Whom a request comes from."""

    name: str
    groups: tuple[str, ...]

    @property
    def service_account(self) -> tuple[str, str] | None:
        """Namespace and name of the ServiceAccount it is, or None."""
        if not self.name.startswith(_SERVICE_ACCOUNT):
            return None
        namespace, _, name = self.name.removeprefix(_SERVICE_ACCOUNT).partition(":")
        return namespace, name


def user_named(name: str, groups: tuple[str, ...] = ()) -> User:
    """Return a user with the groups that every such user is in, and some more."""
    if name == ADMINISTRATOR:
        return User(name, ("system:masters", _AUTHENTICATED, *groups))
    account = User(name, ()).service_account
    if account is None:
        return User(name, (*groups, _AUTHENTICATED))
    return User(
        name,
        ("system:serviceaccounts", f"system:serviceaccounts:{account[0]}", *groups, _AUTHENTICATED),
    )


class Authenticator:
    """Tokens of the administrator and of ServiceAccounts.

    Parameters
    ----------
    path
        File (mode 0600) that keeps the tokens over a restart; None keeps them
        in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._tokens: dict[str, str] = {}
        if path is not None and path.exists():
            self._tokens = json.loads(path.read_text(encoding="utf-8"))

    def token_for(self, username: str) -> str:
        """Return the token of a user, made at the first call.

        Parameters
        ----------
        username
            Such as ``system:serviceaccount:<namespace>:<name>``.
        """
        for token, owner in self._tokens.items():
            if owner == username:
                return token
        token = secrets.token_urlsafe(32)
        self._tokens[token] = username
        if self._path is not None:
            write_private(self._path, json.dumps(self._tokens, indent=1))
        return token

    def user(self, header: str | None) -> User | None:
        """Return whose token an ``Authorization`` header carries, or None."""
        scheme, _, given = (header or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        for token, owner in self._tokens.items():
            if hmac.compare_digest(token.encode(), given.strip().encode()):
                return user_named(owner)
        return None


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def kubeconfig(url: str, token: str, authority: Path) -> str:
    """Return a kubeconfig for the sandbox's API server.

    Parameters
    ----------
    authority
        File of the certificate that the server's is signed by.
    """
    trusted = base64.b64encode(authority.read_bytes()).decode()
    name = "drafter-sandbox"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": name, "cluster": {"server": url, "certificate-authority-data": trusted}}
            ],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}
            ],
            "current-context": name,
        },
        sort_keys=False,
    )
