"""The operator's probes, as the kubelet asks them."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_cluster import OperatorCluster, wait_until

from drafter_sandbox.observe.monitored import free_port

RESYNC_SECONDS = 1.5


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OperatorCluster]:
    found = OperatorCluster(tmp_path)
    yield found
    found.stop()


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def test_an_operator_that_lists_nothing_is_not_ready_and_in_time_not_alive(
    cluster: OperatorCluster,
) -> None:
    server = cluster.sandbox.process
    assert server is not None
    port = free_port()
    server.send_signal(signal.SIGSTOP)
    cluster.start_operator(metrics_port=port, resync_seconds=RESYNC_SECONDS)

    wait_until(lambda: answer(port, "/readyz")[0] == 503, "it is not ready before the first list")
    server.send_signal(signal.SIGCONT)
    wait_until(lambda: answer(port, "/readyz")[0] == 200, "it is ready after the first list")
    assert answer(port, "/healthz") == (200, "ok\n")

    server.send_signal(signal.SIGSTOP)
    wait_until(lambda: answer(port, "/healthz")[0] == 503, "it is not alive without a resync")
    assert "nothing was looked at for" in answer(port, "/healthz")[1]
    server.send_signal(signal.SIGCONT)
    wait_until(lambda: answer(port, "/healthz")[0] == 200, "it lives again")


def test_sigterm_ends_the_operator_in_time_when_the_server_hangs(cluster: OperatorCluster) -> None:
    server = cluster.sandbox.process
    assert server is not None
    port = free_port()
    cluster.start_operator(metrics_port=port, resync_seconds=RESYNC_SECONDS)
    wait_until(lambda: answer(port, "/readyz")[0] == 200, "it is ready")
    server.send_signal(signal.SIGSTOP)
    wait_until(lambda: answer(port, "/healthz")[0] == 503, "a request hangs")

    seconds = cluster.kill_operator(signal.SIGTERM)
    server.send_signal(signal.SIGCONT)
    assert seconds < 10
