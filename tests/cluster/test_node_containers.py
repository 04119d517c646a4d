"""Containers: order, exit codes, messages, restarts, logs, the end."""

from __future__ import annotations

import os
import pathlib

import psutil
import pytest
from node_cluster import NodeCluster, pod, python, shell

LONG = f"{os.getpid()}0000"
"""Seconds to sleep that no other program's command line has."""


def state(found: dict, kind: str = "containerStatuses", index: int = 0) -> dict:
    return found["status"][kind][index]["state"]


def alive(mark: str) -> list[int]:
    """Return the processes whose command line contains a mark."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if any(mark in word for word in words) and process.info["status"] != "zombie":
            found.append(process.pid)
    return found


def test_a_pod_reports_how_its_container_ended(node: NodeCluster) -> None:
    script = "printf 'what happened' > /dev/termination-log; exit 7"
    node.create("pod", pod("failing", shell(script), restartPolicy="Never"))
    found = node.wait_phase("failing", "Failed")
    ended = state(found)["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (7, "Error", "what happened")
    assert found["status"]["podIP"].startswith("127.")


def test_a_message_is_cut_and_may_come_from_the_log(node: NodeCluster) -> None:
    long = "head -c 5000 /dev/zero | tr '\\0' x > /dev/termination-log; exit 1"
    logged = shell("echo from the log; exit 1", terminationMessagePolicy="FallbackToLogsOnError")
    node.create("pod", pod("long", shell(long), restartPolicy="Never"))
    node.create("pod", pod("logged", logged, restartPolicy="Never"))
    assert len(state(node.wait_phase("long", "Failed"))["terminated"]["message"]) == 4096
    found = node.wait_phase("logged", "Failed")
    assert state(found)["terminated"]["message"] == "from the log\n"


def test_a_container_killed_by_a_signal_has_its_code(node: NodeCluster) -> None:
    node.create("pod", pod("killed", shell("kill -9 $$$$"), restartPolicy="Never"))
    ended = state(node.wait_phase("killed", "Failed"))["terminated"]
    assert (ended["exitCode"], ended["signal"]) == (137, 9)


def test_a_container_may_remove_its_termination_log(node: NodeCluster) -> None:
    node.create("pod", pod("removed", shell("rm /dev/termination-log"), restartPolicy="Never"))
    assert state(node.wait_phase("removed", "Succeeded"))["terminated"]["exitCode"] == 0


def test_init_containers_run_in_order_before_the_others(node: NodeCluster) -> None:
    mount = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    body = pod(
        "ordered",
        shell("cat /scratch/order", **mount),
        restartPolicy="Never",
        initContainers=[
            shell("echo first >> /scratch/order", "one", **mount),
            shell("echo second >> /scratch/order", "two", **mount),
        ],
        volumes=[{"name": "scratch", "emptyDir": {}}],
    )
    node.create("pod", body)
    found = node.wait_phase("ordered", "Succeeded")
    assert node.log("ordered") == "first\nsecond\n"
    assert [item["ready"] for item in found["status"]["initContainerStatuses"]] == [True, True]


def test_a_failed_init_container_fails_a_pod_that_never_restarts(node: NodeCluster) -> None:
    body = pod("stuck", shell("echo never"), restartPolicy="Never")
    body["spec"]["initContainers"] = [shell("exit 3", "setup")]
    node.create("pod", body)
    found = node.wait_phase("stuck", "Failed")
    assert state(found, "initContainerStatuses")["terminated"]["exitCode"] == 3
    assert "waiting" in state(found)


def test_a_sidecar_is_refused_with_words(node: NodeCluster) -> None:
    body = pod("aside", shell("true"))
    body["spec"]["initContainers"] = [shell("sleep 99", "side", restartPolicy="Always")]
    node.create("pod", body)
    found = node.wait_phase("aside", "Failed")
    assert "side: the sandbox offers no sidecars" in found["status"]["message"]


def test_a_failing_container_is_restarted_and_its_logs_stay_readable(node: NodeCluster) -> None:
    mount = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    script = "echo x >> /scratch/n; echo start $(wc -l < /scratch/n); test -e /scratch/go || exit 4"
    body = pod("again", shell(script, **mount), restartPolicy="OnFailure")
    body["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    node.create("pod", body)

    def backs_off(found: dict) -> bool:
        status = (found["status"].get("containerStatuses") or [{}])[0]
        waiting = status.get("state", {}).get("waiting", {})
        return waiting.get("reason") == "CrashLoopBackOff" and status["restartCount"] >= 2

    found = node.wait("pod", "again", backs_off)
    status = found["status"]["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 4
    assert found["status"]["phase"] == "Running"
    # While a container waits for its next start, its log is that of the last one.
    assert node.log("again").startswith("start ")
    assert node.log("again", "--previous").startswith("start ")
    (event,) = node.events("again", "BackOff")
    assert event["type"] == "Warning"


def test_a_missing_program_and_a_missing_image_are_named(node: NodeCluster) -> None:
    lost = {"name": "main", "image": "busybox", "command": ["no-such-program"]}
    node.create("pod", pod("lost", lost, restartPolicy="Never"))
    node.create("pod", pod("unknown", {"name": "main", "image": "acme/thing:2"}))
    ended = state(node.wait_phase("lost", "Failed"))["terminated"]
    assert ended["reason"] == "StartError"
    assert "no-such-program" in ended["message"]

    def waits(found: dict) -> bool:
        statuses = found["status"].get("containerStatuses") or [{"state": {}}]
        return statuses[0]["state"].get("waiting", {}).get("reason") == "ErrImagePull"

    waiting = state(node.wait("pod", "unknown", waits))["waiting"]
    assert "acme/thing:2" in waiting["message"]
    assert "images.yaml" in waiting["message"]


def test_the_images_own_command_runs_when_the_pod_names_none(node: NodeCluster) -> None:
    node.create("pod", pod("own", {"name": "main", "image": "python:3"}, restartPolicy="Never"))
    node.wait_phase("own", "Succeeded")
    assert node.log("own") == "the image speaks\n"


def test_a_deleted_pod_gets_sigterm_and_its_grace_period(
    node: NodeCluster, tmp_path: pathlib.Path
) -> None:
    polite = (
        "import signal, sys, pathlib\n"
        f"def end(*_): pathlib.Path({str(tmp_path / 'saved')!r}).touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up')\n"
        "while True: signal.pause()\n"
    )
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', 'deaf-one')"
    node.create("pod", pod("polite", python(polite)))
    node.create(
        "pod",
        pod("deaf", python(f"{stubborn}\ntime.sleep(99)"), terminationGracePeriodSeconds=1),
    )
    for name in ("polite", "deaf"):
        node.wait_ready(name)
        log = node.sandbox.popen("kubectl", "logs", "-f", name, "-n", node.namespace)
        assert log.stdout is not None
        assert log.stdout.readline().startswith("up")
        log.kill()
        log.wait()
        log.stdout.close()
        node.delete("pod", name)
    node.wait_gone("pod", "polite")
    node.wait_gone("pod", "deaf")
    assert (tmp_path / "saved").exists()
    assert alive("deaf-one") == []


def test_everything_a_container_started_ends_with_it(node: NodeCluster) -> None:
    script = f"sh -c 'sleep {LONG}1; :' & echo started; exit 0"
    node.create("pod", pod("parent", shell(script), restartPolicy="Never"))
    node.wait_phase("parent", "Succeeded")
    assert alive(f"{LONG}1") == []


def test_a_pod_that_is_active_too_long_fails_and_leaves_no_process(node: NodeCluster) -> None:
    body = pod("late", shell(f"sleep {LONG}2; :"), restartPolicy="Never", activeDeadlineSeconds=1)
    node.create("pod", body)
    found = node.wait_phase("late", "Failed")
    assert found["status"]["reason"] == "DeadlineExceeded"
    assert alive(f"{LONG}2") == []


def test_a_followed_log_ends_with_its_last_line(node: NodeCluster) -> None:
    node.create("pod", pod("talker", shell("sleep 0.3; echo last words"), restartPolicy="Never"))
    node.wait("pod", "talker", lambda found: found["status"].get("containerStatuses") is not None)
    node.wait("pod", "talker", lambda found: "waiting" not in state(found))
    assert node.log("talker", "-f") == "last words\n"


def test_two_containers_run_side_by_side_with_logs_of_their_own(node: NodeCluster) -> None:
    body = pod("pair", shell("echo a", "one"), shell("echo b; exit 1", "two"))
    body["spec"]["restartPolicy"] = "Never"
    node.create("pod", body)
    node.wait_phase("pair", "Failed")
    assert (node.log("pair", "-c", "one"), node.log("pair", "-c", "two")) == ("a\n", "b\n")


@pytest.mark.parametrize("kind", ["livenessProbe", "startupProbe"])
def test_a_container_that_fails_its_probe_is_restarted(node: NodeCluster, kind: str) -> None:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    node.create("pod", pod("sick", shell("sleep 999", **{kind: probe})))

    def restarted(found: dict) -> bool:
        statuses = found["status"].get("containerStatuses") or [{}]
        return statuses[0].get("restartCount", 0) > 0

    node.wait("pod", "sick", restarted)
    assert node.events("sick", "Unhealthy")
    node.delete("pod", "sick", 0)


def test_a_pod_is_ready_while_its_probe_succeeds(node: NodeCluster) -> None:
    mount = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    probe = {
        "exec": {"command": ["test", "-e", "/scratch/ready"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    script = "touch /scratch/ready; sleep 2; rm /scratch/ready; sleep 999"
    body = pod("fickle", shell(script, readinessProbe=probe, **mount))
    body["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    node.create("pod", body)
    node.wait_ready("fickle")
    found = node.wait(
        "pod", "fickle", lambda pod: not pod["status"]["containerStatuses"][0]["ready"]
    )
    assert found["status"]["containerStatuses"][0]["restartCount"] == 0
    node.delete("pod", "fickle", 0)


def test_a_probe_of_an_unknown_port_fails_and_the_pod_lives(node: NodeCluster) -> None:
    probe = {"tcpSocket": {"port": "nowhere"}, "periodSeconds": 1}
    node.create("pod", pod("odd", shell("sleep 1; exit 5", readinessProbe=probe)))
    node.patch("pod", "odd", {"metadata": {"labels": {"seen": "yes"}}})

    def ended(found: dict) -> bool:
        statuses = found["status"].get("containerStatuses") or [{}]
        return statuses[0].get("lastState", {}).get("terminated", {}).get("exitCode") == 5

    node.wait("pod", "odd", ended)
    node.delete("pod", "odd", 0)
