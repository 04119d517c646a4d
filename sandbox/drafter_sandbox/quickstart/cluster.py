"""The quick start's cluster: the sandbox as a process, and what is put into it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import kubernetes
import psutil

from drafter_sandbox.quickstart import tools

NAMESPACE = "default"
OPERATOR_NAMESPACE = "drafter-system"
START_TIMEOUT_SECONDS = 60


class QuickstartError(Exception):
    """The quick start cannot go on; the message says why and what to do."""


def end_well_on_signals() -> None:
    """Let SIGTERM and SIGHUP end the program as Ctrl-C does, so that its sandbox ends with it."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the quick start keeps its files."""

    repository: Path
    home: Path

    @property
    def state(self) -> Path:
        """State directory of the sandbox."""
        return self.home / "cluster"

    @property
    def kubeconfig(self) -> Path:
        """Credentials of the sandbox."""
        return self.home / "kubeconfig"

    @property
    def log(self) -> Path:
        """Output of the sandbox process."""
        return self.home / "sandbox.log"

    @property
    def process_file(self) -> Path:
        """Identity of the sandbox process, for a later ``--stop``."""
        return self.home / "sandbox.json"

    @property
    def finished(self) -> Path:
        """Marks that the run in ``state`` has ended, so that the next start begins anew."""
        return self.home / "finished"

    @property
    def models(self) -> Path:
        """Directory behind the claim ``models``."""
        return self.home / "models"


class Cluster:
    """A running sandbox and the real kubectl and helm that talk to it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._api: Any = None

    def running_process(self) -> psutil.Process | None:
        """Return the sandbox left up by an earlier quick start, if it still runs."""
        try:
            record = json.loads(self.layout.process_file.read_text())
            process = psutil.Process(record["pid"])
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None
        # A process id is used again after a while; the start time tells them apart.
        same = abs(process.create_time() - record["started"]) < 1
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None

    def start(self) -> None:
        """Start the sandbox and wait until it answers.

        Raises
        ------
        QuickstartError
            It did not come up; the message quotes its last output.
        """
        self.layout.kubeconfig.unlink(missing_ok=True)
        with self.layout.log.open("wb") as log:
            started = subprocess.Popen(
                [
                    *(sys.executable, "-m", "drafter_sandbox.main", "start"),
                    *("--state", str(self.layout.state)),
                    *("--kubeconfig", str(self.layout.kubeconfig)),
                    *("--images", str(self.layout.repository / "sandbox/images.yaml")),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = psutil.Process(started.pid)
        self.layout.process_file.write_text(
            json.dumps({"pid": process.pid, "started": process.create_time()})
        )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if started.poll() is not None:
                break
            if self.layout.kubeconfig.exists() and self._answers():
                return
            time.sleep(0.2)
        self.fail_with_log("the sandbox did not come up")

    def _answers(self) -> bool:
        return self._run(["kubectl", "get", "--raw", "/readyz"], check=False).returncode == 0

    def fail_with_log(self, what: str) -> NoReturn:
        """Raise an error that quotes the sandbox's last output."""
        lines = self.layout.log.read_text(errors="replace").splitlines()[-8:]
        raise QuickstartError(
            f"{what}; the end of {self.layout.log}:\n  " + "\n  ".join(lines or ["(no output)"])
        )

    def stop(self) -> bool:
        """Stop the sandbox and its Pods; return whether one was running."""
        process = self.running_process()
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except psutil.TimeoutExpired:
                process.kill()
        self.layout.process_file.unlink(missing_ok=True)
        return process is not None

    def forget(self) -> None:
        """Remove every object and volume of the stopped sandbox."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.layout.state)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it printed.

        Raises
        ------
        QuickstartError
            kubectl failed; the message quotes it.
        """
        return self._run(["kubectl", *arguments], stdin=stdin).stdout

    def run(self, command: Sequence[str]) -> str:
        """Run kubectl or helm in the repository and return what it printed.

        Raises
        ------
        QuickstartError
            It failed; the message quotes it.
        """
        return self._run(command).stdout

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if there is none of that name."""
        text = self.kubectl(
            "get", kind, name, "--namespace", NAMESPACE, "--ignore-not-found", "-o", "json"
        )
        return json.loads(text) if text.strip() else None

    def drafter_run(self, name: str) -> dict[str, Any] | None:
        """Return a DrafterRun, or None if there is none of that name.

        Through the Python client, since it is read every second: a kubectl each time would take
        a noticeable part of the processor whose speed is being measured.
        """
        if self._api is None:
            self._api = kubernetes.client.CustomObjectsApi(
                kubernetes.config.new_client_from_config(str(self.layout.kubeconfig))
            )
        try:
            run: dict[str, Any] = self._api.get_namespaced_custom_object(
                "drafters.dev", "v1alpha1", NAMESPACE, "drafterruns", name
            )
        except kubernetes.client.ApiException as error:
            if error.status == 404:
                return None
            raise
        return run

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects with kubectl."""
        self.kubectl("apply", "-f", "-", stdin="\n".join(map(json.dumps, objects)))

    def install_operator(self) -> None:
        """Install or upgrade the operator's chart with helm."""
        self._run(
            [
                *("helm", "upgrade", "--install", "drafter-operator"),
                str(self.layout.repository / "charts/drafter-operator"),
                *("--namespace", OPERATOR_NAMESPACE, "--create-namespace"),
                *("--wait", "--timeout", "3m"),
            ]
        )

    def _run(
        self, command: Sequence[str], *, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.layout.repository,
            env=os.environ
            | {"KUBECONFIG": str(self.layout.kubeconfig), "PATH": tools.search_path()},
        )
        if check and done.returncode != 0:
            raise QuickstartError(f"{' '.join(command[:4])} …: {done.stderr.strip()}")
        return done


def model_volume(directory: Path) -> list[dict[str, Any]]:
    """Return a volume on ``directory`` and the claim ``models`` bound to it."""
    size = {"storage": "10Gi"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "quickstart-models"},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadOnlyMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": str(directory)},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models", "namespace": NAMESPACE},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "volumeName": "quickstart-models",
                "resources": {"requests": size},
            },
        },
    ]


def prompt_config_map(directory: Path) -> dict[str, Any]:
    """Return the ConfigMap with the training and held-out prompts of ``directory``."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "quickstart-prompts", "namespace": NAMESPACE},
        "data": {
            name: (directory / name).read_text(encoding="utf-8")
            for name in ("train.jsonl", "held_out.jsonl")
        },
    }
