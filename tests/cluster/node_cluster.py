"""A sandbox with a node, and the few calls its tests make."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes
from kubernetes.client.exceptions import ApiException
from running_sandbox import RunningSandbox

Body = dict[str, Any]

TIMEOUT_SECONDS = 30
IMAGES = """\
images:
  - name: busybox
  - name: python
    path: ["{bin}"]
    command: [python3, -c, "print('the image speaks')"]
"""


class NodeCluster:
    """One namespace of a sandbox with a node."""

    def __init__(self, sandbox: RunningSandbox, namespace: str) -> None:
        self.sandbox = sandbox
        self.namespace = namespace
        client = sandbox.client()
        self.core = kubernetes.client.CoreV1Api(client)
        self.batch = kubernetes.client.BatchV1Api(client)
        self.apps = kubernetes.client.AppsV1Api(client)

    def _call(self, verb: str, kind: str) -> Callable[..., Any]:
        api = {"job": self.batch, "deployment": self.apps, "replica_set": self.apps}.get(
            kind, self.core
        )
        call: Callable[..., Any] = getattr(api, f"{verb}_namespaced_{kind}")
        return call

    def create(self, kind: str, body: Body) -> Body:
        response = self._call("create", kind)(self.namespace, body, _preload_content=False)
        return json.loads(response.data)  # type: ignore[no-any-return]

    def get(self, kind: str, name: str) -> Body:
        response = self._call("read", kind)(name, self.namespace, _preload_content=False)
        return json.loads(response.data)  # type: ignore[no-any-return]

    def exists(self, kind: str, name: str) -> bool:
        try:
            self.get(kind, name)
        except ApiException as error:
            assert error.status == 404, error
            return False
        return True

    def list(self, kind: str, labels: str = "") -> list[Body]:
        response = self._call("list", kind)(
            self.namespace, label_selector=labels, _preload_content=False
        )
        return json.loads(response.data)["items"]  # type: ignore[no-any-return]

    def patch(self, kind: str, name: str, body: Body) -> None:
        self._call("patch", kind)(name, self.namespace, body)

    def delete(self, kind: str, name: str, grace_seconds: int | None = None) -> None:
        options = {} if grace_seconds is None else {"grace_period_seconds": grace_seconds}
        self._call("delete", kind)(name, self.namespace, **options)

    def wait(self, kind: str, name: str, what: Callable[[Body], bool]) -> Body:
        """Return an object once something is true of it."""
        last: Body = {}
        watch = kubernetes.watch.Watch()
        for event in watch.stream(
            self._call("list", kind),
            self.namespace,
            field_selector=f"metadata.name={name}",
            timeout_seconds=TIMEOUT_SECONDS,
        ):
            last = event["raw_object"]
            if event["type"] != "DELETED" and what(last):
                watch.stop()
                return last
        raise AssertionError(f"waited in vain for {kind} {name}: {json.dumps(last, indent=1)}")

    def wait_gone(self, kind: str, name: str) -> None:
        watch = kubernetes.watch.Watch()
        if not self.exists(kind, name):
            return
        for event in watch.stream(
            self._call("list", kind),
            self.namespace,
            field_selector=f"metadata.name={name}",
            timeout_seconds=TIMEOUT_SECONDS,
        ):
            if event["type"] == "DELETED":
                watch.stop()
                return
        assert not self.exists(kind, name), f"{kind} {name} stays"

    def wait_phase(self, name: str, phase: str) -> Body:
        return self.wait("pod", name, lambda pod: pod["status"].get("phase") == phase)

    def wait_ready(self, name: str) -> Body:
        return self.wait("pod", name, is_ready)

    def wait_condition(self, kind: str, name: str, condition: str) -> Body:
        return self.wait(kind, name, lambda body: holds(body, condition))

    def log(self, pod: str, *arguments: str) -> str:
        return self.sandbox.kubectl("logs", pod, "-n", self.namespace, *arguments)

    def events(self, name: str, reason: str) -> list[Body]:
        return [
            event
            for event in self.list("event")
            if event["involvedObject"]["name"] == name and event["reason"] == reason
        ]


def holds(body: Body, condition: str) -> bool:
    """Return whether a condition of an object is True."""
    return any(
        found["type"] == condition and found["status"] == "True"
        for found in body.get("status", {}).get("conditions") or []
    )


def is_ready(pod: Body) -> bool:
    return holds(pod, "Ready")


def condition(body: Body, kind: str) -> Body:
    """Return a condition of an object."""
    return next(found for found in body["status"]["conditions"] if found["type"] == kind)


def shell(script: str, name: str = "main", **fields: Any) -> Body:
    """Return a container that runs a shell script."""
    return {"name": name, "image": "busybox:1", "command": ["sh", "-c", script], **fields}


def python(program: str, name: str = "main", **fields: Any) -> Body:
    """Return a container that runs a Python program."""
    return {"name": name, "image": "python:3", "command": ["python3", "-uc", program], **fields}


def pod(name: str, *containers: Body, labels: Body | None = None, **spec: Any) -> Body:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": list(containers), "terminationGracePeriodSeconds": 2, **spec},
    }


def job(name: str, container: Body, restart_policy: str = "Never", **spec: Any) -> Body:
    template = {
        "spec": {
            "restartPolicy": restart_policy,
            "terminationGracePeriodSeconds": 2,
            "containers": [container],
        }
    }
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def deployment(name: str, container: Body, **spec: Any) -> Body:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    return {
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


def write_images(directory: Path) -> Path:
    """Write the table of images these tests use."""
    table = directory / "images.yaml"
    table.write_text(IMAGES)
    return table
