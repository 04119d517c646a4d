"""Who a request comes from: bearer tokens kept in the state folder."""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
from pathlib import Path

import yaml

ADMINISTRATOR = "system:admin"


class Authenticator:
    """Tokens of the administrator and of ServiceAccounts.

    Whoever has a token may do anything: there is no authorization.

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

    def username(self, header: str | None) -> str | None:
        """Return whose token an ``Authorization`` header carries, or None."""
        scheme, _, given = (header or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        for token, owner in self._tokens.items():
            if hmac.compare_digest(token.encode(), given.strip().encode()):
                return owner
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
