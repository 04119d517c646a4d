"""A sandbox in its own process, and the tools that tests use on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes

READY = "Use it with:"


def tool(name: str) -> str:
    """Return the path of kubectl or helm, beside the interpreter or on the PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is neither beside {sys.executable} nor on the PATH"
    return found


@dataclass
class RunningSandbox:
    """Starts and stops one sandbox; its state outlives a restart."""

    state: Path
    images: Path | None = None
    arguments: Sequence[str] = ()
    process: subprocess.Popen[str] | None = field(default=None, init=False)
    output: list[str] = field(default_factory=list, init=False)

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def start(self) -> RunningSandbox:
        command = [
            sys.executable,
            "-m",
            "drafter_sandbox.main",
            "start",
            "--state",
            str(self.state),
            *self.arguments,
        ]
        if self.images is not None:
            command += ["--images", str(self.images)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.output = []
        for line in self.process.stdout:
            self.output.append(line)
            if line.startswith(READY):
                return self
        raise AssertionError(f"the sandbox did not start: {self.output}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def environment(self) -> dict[str, str]:
        home = self.state / "home"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(home)}

    def run(
        self, name: str, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [tool(name), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment(),
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{name} {arguments}: {done.stdout}{done.stderr}"
        return done

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Return what a kubectl command prints; it must succeed."""
        return self.run("kubectl", *arguments, stdin=stdin).stdout

    def refused(self, *arguments: str, stdin: str | None = None) -> str:
        """Return the error of a kubectl command, which must fail."""
        done = self.run("kubectl", *arguments, stdin=stdin, check=False)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return an object or list as kubectl gets it."""
        found: dict[str, Any] = json.loads(
            self.kubectl("get", *arguments, "-o", "json", "--show-managed-fields")
        )
        return found

    def apply(self, *bodies: dict[str, Any], arguments: Sequence[str] = ()) -> str:
        text = "\n---\n".join(json.dumps(body) for body in bodies)
        return self.kubectl("apply", *arguments, "-f", "-", stdin=text)

    def popen(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [tool(name), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment(),
        )

    def client(self) -> kubernetes.client.ApiClient:
        """Return a client of the official Python library."""
        return kubernetes.config.new_client_from_config(str(self.kubeconfig))
