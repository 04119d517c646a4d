"""Podman as the tests of images use it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LOCAL_BASE = "localhost/drafter-base:bookworm"
BASE_VARIABLE = "IMAGE_BASE"
CONFIGURATION = """
[containers]
# Not more than a container without the right to raise limits may ask for.
default_ulimits = ["nofile=1024:1024", "nproc=2048:2048"]
[engine]
# There may be no systemd to manage cgroups.
cgroup_manager = "cgroupfs"
"""


@dataclass(frozen=True)
class Podman:
    """Runs podman with a configuration that works inside another container too."""

    configuration: Path

    def command(self, *arguments: str) -> list[str]:
        runtime = ("--runtime", "runc") if shutil.which("runc") else ()
        return ["podman", *runtime, *arguments]

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self.configuration),
            "BUILDAH_ISOLATION": "chroot",
        }

    def run(self, *arguments: str, timeout_seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Return how podman ended and what it printed."""
        return self._run(self.command(*arguments), timeout_seconds)

    def output(self, *arguments: str) -> str:
        """Return what podman prints; it must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"podman {arguments}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def base(self) -> str:
        """Return a base image: the one of IMAGE_BASE, or one made of Debian's packages."""
        if named := os.environ.get(BASE_VARIABLE):
            return named
        if self.run("image", "exists", LOCAL_BASE).returncode != 0:
            script = str(REPOSITORY / "images" / "local-base")
            done = self._run([script, LOCAL_BASE], timeout_seconds=400)
            if done.returncode != 0:
                pytest.skip(
                    f"no base image can be made here ({done.stderr.strip()[-300:]});"
                    f" name one that can be pulled in {BASE_VARIABLE}"
                )
        return LOCAL_BASE

    def build(self, image: str, tag: str) -> None:
        """Build an image with images/build, with the packages' source that pip uses here."""
        options = ["--engine", "podman", "--base", self.base(), "--tag", tag]
        for option, variable in (("--pip-conf", "PIP_CONFIG_FILE"), ("--ca-bundle", "PIP_CERT")):
            if value := os.environ.get(variable):
                options += [option, value]
        script = str(REPOSITORY / "images" / "build")
        done = self._run([script, *options, image], timeout_seconds=500)
        assert done.returncode == 0, f"{done.args}: {done.stdout[-3000:]}{done.stderr[-3000:]}"

    def _run(self, command: list[str], timeout_seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )


def podman(directory: Path) -> Podman:
    """Return a podman that starts containers, or skip with the reason."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: no image is built or run")
    configuration = directory / "containers.conf"
    configuration.write_text(CONFIGURATION)
    found = Podman(configuration)
    probe = found.run("run", "--rm", "--network=host", found.base(), "true", timeout_seconds=300)
    if probe.returncode != 0:
        pytest.skip(f"podman cannot start a container here: {probe.stderr.strip()[-300:]}")
    return found
