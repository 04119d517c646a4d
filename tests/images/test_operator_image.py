from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import REPOSITORY, Podman, podman
from operator_cluster import OperatorCluster

IMAGE = "localhost/drafter-operator:test"
MAXIMUM_BYTES = 200_000_000
USER = "10001:10001"
"""What the chart runs the operator as."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    found = podman(tmp_path_factory.mktemp("podman"))
    found.build("operator", IMAGE)
    return found


def in_image(engine: Podman, script: str) -> subprocess.CompletedProcess[str]:
    options = ("--rm", "--read-only", "--read-only-tmpfs=false", "--network=host")
    return engine.run("run", *options, "--entrypoint=sh", IMAGE, "-c", script)


def test_is_small_and_labelled(engine: Podman) -> None:
    found = json.loads(engine.output("image", "inspect", IMAGE))[0]
    assert found["Size"] < MAXIMUM_BYTES, f"{found['Size'] / 1e6:.0f} MB"
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    prefix = "org.opencontainers.image."
    assert found["Labels"][f"{prefix}version"] == version
    for name in ("title", "licenses", "revision", "created", "base.name"):
        assert found["Labels"].get(f"{prefix}{name}", "unknown") != "unknown", name


def test_has_no_compiler_no_pip_and_no_torch(engine: Podman) -> None:
    programs = "gcc cc g++ c++ clang ld as make"
    done = in_image(engine, f"for p in {programs}; do command -v $p; done; true")
    assert done.stdout == ""
    unwanted = ("torch", "transformers", "speculators", "drafter_sandbox", "pip", "kubernetes.aio")
    script = f"import importlib.util as u; print([m for m in {unwanted} if u.find_spec(m)])"
    done = in_image(engine, f'python -c "{script}"')
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_runs_as_no_root_on_a_root_it_cannot_write(engine: Podman) -> None:
    assert engine.output("image", "inspect", "--format", "{{.Config.User}}", IMAGE) == USER
    done = in_image(engine, "id -u; touch /x /opt/drafter/x /tmp/x")
    assert done.stdout.strip() == USER.partition(":")[0]
    assert done.stderr.count("Read-only file system") == 3, done.stderr


def test_keeps_none_of_the_builder_s_secrets(engine: Podman) -> None:
    done = in_image(engine, "find / -xdev \\( -name pip.conf -o -name ca.pem \\) 2>/dev/null")
    assert done.stdout == ""
    history = engine.output("history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE)
    for variable in ("PIP_CERT", "PIP_CONFIG_FILE"):
        if value := os.environ.get(variable):
            assert value not in history, variable


class OperatorInItsImage(OperatorCluster):
    """The sandbox, with the operator in a container on the host's network."""

    def __init__(self, directory: Path, engine: Podman) -> None:
        super().__init__(directory)
        self.engine = engine
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.credentials = directory / "kubeconfig"
        self.credentials.write_text(
            self.sandbox.kubectl("config", "view", "--raw", "--flatten", "--minify")
        )
        self.credentials.chmod(0o644)

    def start_operator(self) -> None:
        command = self.engine.command(
            *("run", "--rm", "--network=host", "--user", USER, "--cap-drop=all"),
            *("--read-only", "--read-only-tmpfs=false", "--tmpfs=/tmp"),
            *("--security-opt=no-new-privileges", "--env", "KUBECONFIG=/kubeconfig"),
            *("--volume", f"{self.credentials}:/kubeconfig:ro", IMAGE),
            *("--metrics-address=127.0.0.1", f"--metrics-port={self.port}"),
            *("--lease-namespace=default", "--active-seconds=0.5", "--resync-seconds=2"),
        )
        with self._log.open("ab") as log:
            self._operator = subprocess.Popen(
                command, env=self.engine.environment(), stdout=log, stderr=log
            )

    def wait_until_ready(self, timeout_seconds: float = 30) -> None:
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            assert self._operator is not None
            assert self._operator.poll() is None, self.operator_log()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2):
                    return
            except (urllib.error.URLError, ConnectionError):
                # A probe is asked again and again; there is no event to wait for.
                time.sleep(0.1)
        raise AssertionError(f"not ready within {timeout_seconds} s: {self.operator_log()}")


@pytest.fixture
def cluster(tmp_path: Path, engine: Podman) -> Iterator[OperatorInItsImage]:
    found = OperatorInItsImage(tmp_path, engine)
    yield found
    found.stop()


def test_takes_a_run_to_its_first_job_and_stops_at_once(
    cluster: OperatorInItsImage, tmp_path: Path
) -> None:
    cluster.start_operator()
    cluster.wait_until_ready()
    cluster.make_references(tmp_path / "models")
    cluster.hold("drafter-prepare")
    cluster.apply_run("first")
    cluster.wait_for_step("first", "Prepare", "Running")
    jobs = cluster.sandbox.get("jobs", "-l", "drafters.dev/run=first")["items"]
    assert [job["metadata"]["name"] for job in jobs] == ["first-prepare-1"]
    assert cluster.kill_operator(signal.SIGTERM) < 10, cluster.operator_log()
