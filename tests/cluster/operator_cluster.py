"""A sandbox with the real operator in it, and stand-ins for the jobs and for SGLang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes
import yaml
from running_sandbox import RunningSandbox

REPOSITORY = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "stand_in_programs" / "stand_in.py"
JOB_PROGRAMS = (
    "drafter-prepare",
    "drafter-extract",
    "drafter-train",
    "drafter-export",
    "drafter-benchmark",
)
STEP_OF_PROGRAM = {
    "drafter-prepare": "Prepare",
    "drafter-extract": "Extract",
    "drafter-train": "Train",
    "drafter-export": "Export",
    "server-baseline": "Serve-baseline",
    "drafter-benchmark-baseline": "Benchmark-baseline",
    "server-depth-2": "Serve-depth-2",
    "drafter-benchmark-depth-2": "Benchmark-depth-2",
    "server-depth-4": "Serve-depth-4",
    "drafter-benchmark-depth-4": "Benchmark-depth-4",
}
EVERY_PROGRAM_ONCE = list(STEP_OF_PROGRAM)
"""What a run of :meth:`OperatorCluster.apply_run` starts, in order."""

TIMEOUT_SECONDS = 60


def wait_until(what: Callable[[], Any], failure: str) -> None:
    """Ask until something holds that sends no event."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < end:
        if what():
            return
        time.sleep(0.05)
    raise AssertionError(f"waited {TIMEOUT_SECONDS} s in vain: {failure}")


def stand_in_images(control: Path) -> dict[str, Any]:
    """Return a table of images whose programs are all stand-ins."""
    environment = {"STAND_IN_CONTROL": str(control)}
    jobs = [{"match": [name], "run": ["{python}", str(STAND_IN), name]} for name in JOB_PROGRAMS]
    server = {
        "match": ["python3", "-m", "sglang.launch_server"],
        "run": ["{python}", str(STAND_IN), "sglang"],
    }
    return {
        "images": [
            {"name": "*/drafter-jobs", "environment": environment, "commands": jobs},
            {"name": "lmsysorg/sglang", "environment": environment, "commands": [server]},
        ]
    }


class OperatorCluster:
    """Starts a sandbox and an operator process; both can be killed and started again.

    Parameters
    ----------
    directory
        For all that they write.
    images
        The sandbox's table of images; stand-ins for every job and for SGLang without one.
    """

    def __init__(self, directory: Path, images: Path | None = None) -> None:
        self.control = directory / "control"
        self.control.mkdir()
        if images is None:
            images = directory / "images.yaml"
            images.write_text(yaml.safe_dump(stand_in_images(self.control)))
        os.environ["DRAFTER_SANDBOX_BACKOFF_SECONDS"] = "0.1"
        self.sandbox = RunningSandbox(directory / "state", images).start()
        self.sandbox.kubectl("apply", "-f", str(REPOSITORY / "crds"))
        self._log = directory / "operator.log"
        self._operator: subprocess.Popen[bytes] | None = None

    def start_operator(self, metrics_port: int = 0, resync_seconds: float = 2) -> None:
        command = [
            *(sys.executable, "-m", "drafter_operator.main"),
            *("--metrics-address", "127.0.0.1", "--metrics-port", str(metrics_port)),
            *("--active-seconds", "0.5", "--resync-seconds", str(resync_seconds)),
            *("--log-format", "text"),
        ]
        with self._log.open("ab") as log:
            self._operator = subprocess.Popen(
                command, env=self.sandbox.environment(), stdout=log, stderr=log
            )

    def kill_operator(self, number: int = signal.SIGKILL) -> float:
        """End the operator; return how long that took."""
        assert self._operator is not None
        began = time.monotonic()
        self._operator.send_signal(number)
        self._operator.wait(timeout=30)
        self._operator = None
        return time.monotonic() - began

    def reset(self) -> None:
        """Remove every run and what a test left; the operator runs afterwards."""
        self.sandbox.kubectl("delete", "drun", "--all", "--timeout=20s")
        label = "drafters.dev/run"
        self.sandbox.kubectl("wait", "--for=delete", "pods", "-l", label, "--timeout=30s")
        for left in self.control.iterdir():
            left.unlink()
        if self._operator is None:
            self.start_operator()

    def stop(self) -> None:
        if self._operator is not None:
            self.kill_operator()
        self.sandbox.stop()

    def operator_log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def apply_run(self, name: str, **changes: Any) -> None:
        spec: dict[str, Any] = {
            "target": {"path": "model", "claimName": "models"},
            "storage": {"claimTemplate": {"size": "1Gi"}},
            "data": {"prompts": {"configMap": {"name": "prompts", "key": "p.jsonl"}}, "gpus": 0},
            "hiddenStates": {"gpus": 0},
            "training": {"gpusPerNode": 0, "epochs": 2},
            "serving": {"depths": [2, 4], "tensorParallelSize": 0, "startupTimeoutSeconds": 30},
            "benchmark": {"concurrencies": [1, 2], "requests": 4},
        }
        for section, values in changes.items():
            if isinstance(values, dict):
                spec[section] = spec.get(section, {}) | values
            else:
                spec[section] = values
        self.sandbox.apply(
            {
                "apiVersion": "drafters.dev/v1alpha1",
                "kind": "DrafterRun",
                "metadata": {"name": name},
                "spec": spec,
            }
        )

    def make_references(self, directory: Path) -> None:
        """Make the claim and the ConfigMap that the runs refer to."""
        directory.mkdir(exist_ok=True)
        mode = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        size = {"storage": "1Gi"}
        self.sandbox.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": "models"},
                "spec": {**mode, "capacity": size, "hostPath": {"path": str(directory)}},
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "models"},
                "spec": {**mode, "volumeName": "models", "resources": {"requests": size}},
            },
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "prompts"},
                "data": {"p.jsonl": '{"id": "1", "prompt": "x"}\n'},
            },
        )

    def run(self, name: str) -> dict[str, Any]:
        return self.sandbox.get("drafterrun", name)

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.run(name).get("status", {})
        return status

    def steps(self, name: str) -> dict[str, dict[str, Any]]:
        return {step["name"]: step for step in self.status(name).get("steps", [])}

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        for condition in self.status(name).get("conditions", []):
            if condition["type"] == kind:
                found: dict[str, Any] = condition
                return found
        return {}

    def wait(self, name: str, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the run's status as soon as something holds of it."""
        api = kubernetes.client.CustomObjectsApi(self.sandbox.client())
        watch = kubernetes.watch.Watch()
        status: dict[str, Any] = {}
        for event in watch.stream(
            api.list_namespaced_custom_object,
            *("drafters.dev", "v1alpha1", "default", "drafterruns"),
            field_selector=f"metadata.name={name}",
            timeout_seconds=TIMEOUT_SECONDS,
        ):
            status = event["object"].get("status", {})
            if what(status):
                watch.stop()
                return status
        raise AssertionError(
            f"waited {TIMEOUT_SECONDS} s in vain; the run: {json.dumps(status, indent=1)};"
            f" the operator: {self.operator_log()[-3000:]}"
        )

    def count_changes(self, name: str, seconds: int) -> int:
        """Return how often the run is written in a while."""
        api = kubernetes.client.CustomObjectsApi(self.sandbox.client())
        found = api.list_namespaced_custom_object(
            *("drafters.dev", "v1alpha1", "default", "drafterruns")
        )
        events = kubernetes.watch.Watch().stream(
            api.list_namespaced_custom_object,
            *("drafters.dev", "v1alpha1", "default", "drafterruns"),
            field_selector=f"metadata.name={name}",
            resource_version=found["metadata"]["resourceVersion"],
            timeout_seconds=seconds,
        )
        return sum(event["type"] == "MODIFIED" for event in events)

    def wait_for_phase(self, name: str, phase: str) -> dict[str, Any]:
        return self.wait(name, lambda status: status.get("phase") == phase)

    def wait_for_step(self, name: str, step: str, state: str) -> dict[str, Any]:
        return self.wait(
            name,
            lambda status: any(
                (found["name"], found["state"]) == (step, state)
                for found in status.get("steps", [])
            ),
        )

    def starts(self) -> list[str]:
        """Return the programs started so far, in order."""
        log = self.control / "starts.log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def start_lines(self, name: str) -> list[str]:
        log = (self.control / "starts.log").read_text().splitlines()
        return [line for line in log if line.split()[0] == name]

    def hold(self, name: str) -> None:
        (self.control / f"{name}.hold").touch()

    def release(self, name: str) -> None:
        (self.control / f"{name}.hold").unlink()

    def fail(self, name: str, exit_code: int, reason: str, message: str, times: int = 1) -> None:
        fault = {"exit_code": exit_code, "reason": reason, "message": message, "times": times}
        (self.control / f"{name}.json").write_text(json.dumps(fault))
