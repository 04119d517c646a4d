"""Finds, fetches and runs Prometheus: Debian's own package, unpacked without root."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

PACKAGE = "prometheus"
START_TIMEOUT_SECONDS = 30
POLL_SECONDS = 0.2

T = TypeVar("T")


class PrometheusUnavailableError(Exception):
    """Prometheus cannot be had; the message says why and what to do."""


def default_directory() -> Path:
    """Return where ``make observe`` unpacks the package: beside the interpreter's environment."""
    return Path(sys.prefix) / "prometheus"


def prometheus_tool(name: str) -> str | None:
    """Return the path of prometheus or promtool, from the PATH or as fetched; else None."""
    fetched = default_directory() / "usr/bin" / name
    return shutil.which(name) or (str(fetched) if fetched.exists() else None)


def fetch_prometheus(directory: Path | None = None) -> None:
    """Download Debian's package and unpack it, if neither PATH nor directory has Prometheus.

    Raises
    ------
    PrometheusUnavailableError
        There is no apt, or it has no such package.
    """
    if prometheus_tool("prometheus") and prometheus_tool("promtool"):
        return
    directory = directory or default_directory()
    part = directory.with_name(f".{directory.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        _run(["apt-get", "download", PACKAGE], part)
        (archive,) = part.glob(f"{PACKAGE}_*.deb")
        _run(["dpkg-deb", "--extract", str(archive), str(part)], part)
        archive.unlink()
        shutil.rmtree(directory, ignore_errors=True)
        part.rename(directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _run(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False, timeout=300
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise PrometheusUnavailableError(
            f"{command[0]}: {error}; install Prometheus and promtool and put them on the PATH"
        ) from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise PrometheusUnavailableError(
            f"{' '.join(command[:3])}: {last[0]}; run apt-get update, or install Prometheus and"
            " promtool and put them on the PATH"
        )


class Prometheus:
    """A Prometheus process with its discovery, and the queries to it.

    Parameters
    ----------
    directory
        For configuration, data and log.
    port
        On 127.0.0.1.
    """

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self.process: subprocess.Popen[bytes] | None = None
        self._discovery: subprocess.Popen[bytes] | None = None

    def start(
        self, configuration: Mapping[str, Any], rules: Mapping[str, Any], kubeconfig: Path
    ) -> None:
        """Write the configuration and start; return when it answers.

        Parameters
        ----------
        configuration
            Prometheus' own, but for the rules.
        rules
            A rule file.
        kubeconfig
            Credentials of the sandbox whose Pods are discovered.

        Raises
        ------
        PrometheusUnavailableError
            There is no Prometheus, or it does not come up.
        """
        program = prometheus_tool("prometheus")
        if program is None:
            raise PrometheusUnavailableError("Prometheus is missing: run make prometheus")
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "rules.yaml").write_text(yaml.safe_dump(dict(rules)))
        whole = {**configuration, "rule_files": ["rules.yaml"]}
        (self.directory / "prometheus.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
        with (self.directory / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    "--config.file=prometheus.yaml",
                    "--storage.tsdb.path=data",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._discovery = subprocess.Popen(
                [
                    *(sys.executable, "-m", "drafter_sandbox.observe.discovery"),
                    *("--kubeconfig", str(kubeconfig), "--directory", str(self.directory)),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait_until(self._is_ready, "Prometheus answers", START_TIMEOUT_SECONDS)

    def stop(self) -> None:
        """End both processes."""
        for process in filter(None, (self._discovery, self.process)):
            process.terminate()
            process.wait(timeout=30)
        self.process = self._discovery = None

    def process_ids(self) -> list[int]:
        """Return the ids of the processes that run."""
        return [found.pid for found in (self.process, self._discovery) if found is not None]

    def wait_until(
        self, what: Callable[[], T], description: str, timeout: float = START_TIMEOUT_SECONDS
    ) -> T:
        """Return the first true answer of a question.

        Raises
        ------
        PrometheusUnavailableError
            None came in time; the message quotes the log.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if answer := what():
                return answer
            if self.process is not None and self.process.poll() is not None:
                break
            time.sleep(POLL_SECONDS)
        lines = (self.directory / "prometheus.log").read_text(errors="replace").splitlines()
        raise PrometheusUnavailableError(
            f"waited {timeout:.0f} s in vain until: {description}; the end of its log:\n  "
            + "\n  ".join(lines[-6:])
        )

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {json.load(error).get('error')}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the instant vector of a PromQL expression.

        Raises
        ------
        ValueError
            It is no valid expression.
        """
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def query_range(
        self, expression: str, start: float, end: float, step: float
    ) -> list[dict[str, Any]]:
        """Return the series of a PromQL expression from one Unix time to another.

        Raises
        ------
        ValueError
            It is no valid expression.
        """
        limits = {"start": str(start), "end": str(end), "step": str(step)}
        found: list[dict[str, Any]] = self._get("query_range", query=expression, **limits)["result"]
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing."""
        found: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets that are scraped."""
        found: list[dict[str, Any]] = self._get("targets", state="active")["activeTargets"]
        return found
