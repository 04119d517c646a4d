"""Two live operators: one acts, the other takes over, and no object is written by both."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from operator_cluster import EVERY_PROGRAM_ONCE, OperatorCluster, wait_until

from drafter_sandbox.observe.monitored import free_port

LEASE_SECONDS = 6


class Contender:
    """An operator that takes part in the election."""

    def __init__(self, cluster: OperatorCluster, log: Path, lease_seconds: int) -> None:
        self._port = free_port()
        self.log = log
        command = [
            *(sys.executable, "-m", "drafter_operator.main", "--log-format", "text"),
            *("--metrics-address", "127.0.0.1", "--metrics-port", str(self._port)),
            *("--active-seconds", "0.5", "--resync-seconds", "2"),
            *("--lease-namespace", "default", "--lease-duration-seconds", str(lease_seconds)),
        ]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=cluster.sandbox.environment(), stdout=output, stderr=output
            )

    def says(self, words: str) -> re.Match[str] | None:
        return re.search(words, self.log.read_text())

    def probe(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OperatorCluster]:
    found = OperatorCluster(tmp_path)
    found.make_references(tmp_path / "models")
    yield found
    found.stop()


@pytest.fixture
def contend(cluster: OperatorCluster, tmp_path: Path) -> Iterator[Callable[..., Contender]]:
    contenders: list[Contender] = []

    def start(name: str, lease_seconds: int = LEASE_SECONDS) -> Contender:
        contenders.append(Contender(cluster, tmp_path / f"{name}.log", lease_seconds))
        return contenders[-1]

    yield start
    for contender in contenders:
        contender.end()


def identity(cluster: OperatorCluster) -> str:
    return str(cluster.sandbox.get("lease", "drafter-operator")["spec"]["holderIdentity"])


def writes(cluster: OperatorCluster) -> list[tuple[str, str]]:
    """Return time and identity of each operator's writes, in order, but for the Lease's."""
    found = []
    for line in (cluster.sandbox.state / "audit.log").read_text().splitlines():
        event = json.loads(line)
        operator = re.fullmatch(r"drafter-operator/\S+ \((.*)\)", event["userAgent"])
        if operator is None or event["verb"] in ("get", "list", "watch"):
            continue
        if event["objectRef"]["resource"] != "leases":
            found.append((event["requestReceivedTimestamp"], operator[1]))
    return found


def test_an_operator_that_hangs_is_relieved_and_never_writes_again(
    cluster: OperatorCluster, contend: Callable[..., Contender]
) -> None:
    first = contend("first")
    wait_until(lambda: first.says("this operator is the active one"), "the first acts")
    second = contend("second")
    wait_until(lambda: second.says("standing by"), "the second stands by")
    assert second.probe("/readyz") == "ok\n"
    assert second.probe("/healthz") == "ok\n"
    leader = identity(cluster)
    cluster.hold("drafter-train")
    cluster.apply_run("shared")
    cluster.wait_for_step("shared", "Train", "Running")

    first.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: second.says("this operator is the active one"), "the second takes over")
    cluster.release("drafter-train")
    cluster.wait_for_phase("shared", "Succeeded")
    first.process.send_signal(signal.SIGCONT)

    assert first.process.wait(timeout=30) != 0
    assert first.says("another operator may be active")
    assert cluster.starts() == EVERY_PROGRAM_ONCE
    writers = [writer for _, writer in writes(cluster)]
    heir = identity(cluster)
    assert heir != leader
    assert set(writers) == {leader, heir}
    assert writers == sorted(writers, key=[leader, heir].index), "they wrote in turns"


def test_an_operator_that_is_stopped_gives_its_lease_back(
    cluster: OperatorCluster, contend: Callable[..., Contender]
) -> None:
    first = contend("first", lease_seconds=600)
    wait_until(lambda: first.says("this operator is the active one"), "the first acts")
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(timeout=10) == 0

    second = contend("second", lease_seconds=600)

    wait_until(lambda: second.says("this operator is the active one"), "the second acts")
