"""What outlives the sandbox's process, and what does not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from node_cluster import NodeCluster, deployment, job, pod, shell, write_images
from running_sandbox import RunningSandbox

SLEEP = f"{os.getpid()}1111"


def sleepers() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if SLEEP in " ".join(process.info["cmdline"] or [])
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[RunningSandbox]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTER_SANDBOX_BACKOFF_SECONDS", "0.1")
        found = RunningSandbox(tmp_path / "state", write_images(tmp_path)).start()
        yield found
        if found.process is not None:
            found.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_pods_end_with_the_sandbox_and_go_on_at_its_next_start(
    sandbox: RunningSandbox, number: int
) -> None:
    node = NodeCluster(sandbox, "default")
    node.create("persistent_volume_claim", _claim())
    node.create("deployment", deployment("server", shell(f"sleep {SLEEP}"), replicas=1))
    # The Job's process must not end the first time, whatever the sandbox does.
    script = f"test -e /data/again || {{ touch /data/again; sleep {SLEEP}; exit 1; }}"
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    body = job("work", shell(script, **mount), backoffLimit=0, podFailurePolicy=_policy())
    source = {"persistentVolumeClaim": {"claimName": "kept"}}
    body["spec"]["template"]["spec"]["volumes"] = [{"name": "v", **source}]
    node.create("job", body)
    node.create("pod", pod("done", shell("echo finished"), restartPolicy="Never"))
    node.wait_phase("done", "Succeeded")
    node.wait("job", "work", lambda found: found["status"].get("ready") == 1)
    (before,) = node.list("pod", "app=server")
    node.wait_ready(before["metadata"]["name"])
    address = before["status"].get("podIP")

    sandbox.stop(number)
    left = sleepers()
    _, alive = psutil.wait_procs(left, timeout=5)
    assert alive == []
    sandbox.start()

    node = NodeCluster(sandbox, "default")
    (after,) = node.list("pod", "app=server")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["podIP"] == address
    assert after["status"]["phase"] == "Running"

    def restarted(found: dict[str, Any]) -> bool:
        status = found["status"]["containerStatuses"][0]
        return status["restartCount"] == 1 and status["ready"]

    found = node.wait("pod", before["metadata"]["name"], restarted)
    ended = found["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "NodeRestart")
    # The node is to blame for the end of the Job's Pod, so that it costs no attempt.
    node.wait_condition("job", "work", "Complete")
    assert node.log("done") == "finished\n"

    uid = node.get("pod", "done")["metadata"]["uid"]
    node.delete("pod", "done")
    node.create("pod", pod("other", shell("true"), restartPolicy="Never"))
    node.wait_phase("other", "Succeeded")
    assert not (sandbox.state / "pods" / uid).exists()


def _claim() -> dict[str, Any]:
    size = {"requests": {"storage": "1Mi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": size}
    return {"metadata": {"name": "kept"}, "spec": spec}


def _policy() -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True"}
    return {"rules": [{"action": "Ignore", "onPodConditions": [condition]}]}
