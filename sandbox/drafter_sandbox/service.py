"""The sandbox as one thing: its store, API server and node, over one state folder."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from drafter_sandbox import audit
from drafter_sandbox.admission import ServerAdmission
from drafter_sandbox.auth import ADMINISTRATOR, Authenticator, kubeconfig, write_private
from drafter_sandbox.certificates import server_certificate, server_context
from drafter_sandbox.default_roles import ensure_default_roles
from drafter_sandbox.expiry import expire_for_ever
from drafter_sandbox.http import ApiServer
from drafter_sandbox.networks import Networks, NetworkTakenError, claim
from drafter_sandbox.node import Node
from drafter_sandbox.node.images import ImageTableError
from drafter_sandbox.store import Store
from drafter_sandbox.streams import LogSource

HOST = "127.0.0.1"


class SandboxError(Exception):
    """A reason why the sandbox cannot start, with the way out."""


@dataclass(frozen=True)
class Settings:
    """How a sandbox is started.

    Attributes
    ----------
    port
        0 takes the port of the last start, or any free one at the first.
    kubeconfig
        Where the kubeconfig is written; by default into the state folder.
    images
        Table that maps image names to local commands; None starts no node.
    cpus, memory
        What the node offers, in cores and as a quantity; None takes the
        machine's.
    """

    state: Path
    port: int = 0
    kubeconfig: Path | None = None
    images: Path | None = None
    cpus: float | None = None
    memory: str | None = None


class Sandbox:
    """A running sandbox."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.url = ""
        self.kubeconfig = settings.kubeconfig or settings.state / "kubeconfig"
        self._lock: IO[str] | None = None
        self._networks: Networks | None = None
        self._server: ApiServer | None = None
        self._node: Node | None = None
        self._expiry: asyncio.Task[None] | None = None
        self.store: Store | None = None

    async def start(self) -> None:
        """Start, resuming what the state folder holds.

        Raises
        ------
        SandboxError
            When the folder is in use or unusable, or the port is taken.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        state = self._settings.state
        try:
            state.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(state / "lock")
        except OSError as error:
            raise SandboxError(
                f"the state folder {state} cannot be written ({error.strerror}): choose another"
                " with --state"
            ) from error
        try:
            self._networks = claim(state)
        except NetworkTakenError as error:
            raise SandboxError(
                f"another sandbox uses the addresses {error} of the state folder {state}: stop"
                " it, or choose another folder with --state"
            ) from error
        try:
            admission = ServerAdmission(self._networks.services)
            self.store = Store(state / "objects.sqlite", admission)
            ensure_default_roles(self.store)
            authenticator = Authenticator(state / "tokens.json")
            certificate, key = server_certificate(state)
            tls = server_context(certificate, key)
            audit_log = audit.AuditLog(state / audit.FILE_NAME)
        except (sqlite3.DatabaseError, ValueError, OSError) as error:
            raise SandboxError(
                f"the state in {state} cannot be read ({error}): remove the folder, or choose"
                " another with --state"
            ) from error
        self._server = ApiServer(self.store, authenticator, tls, audit_log)
        port = await self._listen(self._server)
        self.url = f"https://{HOST}:{port}"
        token = authenticator.token_for(ADMINISTRATOR)
        try:
            self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
            write_private(self.kubeconfig, kubeconfig(self.url, token, certificate))
        except OSError as error:
            raise SandboxError(
                f"the kubeconfig {self.kubeconfig} cannot be written ({error.strerror}): choose"
                " another place with --kubeconfig"
            ) from error
        if self._settings.images is not None:
            try:
                self._node = Node(
                    self.store,
                    state,
                    self._settings.images,
                    self.url,
                    cpus=self._settings.cpus,
                    memory=self._settings.memory,
                    tokens=authenticator,
                    pod_network=self._networks.pods,
                )
            except ImageTableError as error:
                raise SandboxError(str(error)) from error
            self.serve_logs(self._node.logs)
            await self._node.start()
        self.store.collect_garbage()
        self._expiry = asyncio.create_task(expire_for_ever(self.store))

    def serve_logs(self, source: LogSource) -> None:
        """Let ``kubectl logs`` read from a source."""
        if self._server is not None:
            self._server.serve_logs(source)

    async def _listen(self, server: ApiServer) -> int:
        """Listen on the wanted port, or on the last one so that kubeconfigs stay valid."""
        remembered = self._settings.state / "port"
        wanted = self._settings.port
        if wanted == 0 and remembered.exists():
            try:
                return await server.start(HOST, int(remembered.read_text(encoding="utf-8")))
            except (OSError, ValueError, OverflowError):
                await server.stop()
        try:
            port = await server.start(HOST, wanted)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            why = "is in use by another program" if in_use else f"cannot be used ({error.strerror})"
            raise SandboxError(
                f"port {wanted} {why}: choose another with --port, or --port 0 for any free one"
            ) from error
        remembered.write_text(f"{port}\n", encoding="utf-8")
        return port

    async def stop(self) -> None:
        """Stop everything; the state stays for the next start."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._node is not None:
            await self._node.stop()
            self._node = None
        if self.store is not None:
            # Ends the open watches, and with them their requests.
            self.store.close()
        if self._server is not None:
            await self._server.stop()
        if self._networks is not None:
            self._networks.release()
            self._networks = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _locked(path: Path) -> IO[str]:
    """Return the open lock file of a state folder, held until it is closed."""
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise SandboxError(
            f"another sandbox (process {owner}) uses the state folder {path.parent}: stop it, or"
            " choose another folder with --state"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
