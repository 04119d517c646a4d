"""Every way a job can end is an exit code, a termination message and one line."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import types
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from drafter_jobs.atomic_files import directory_atomically, write_atomically, write_json
from drafter_jobs.contract.outcome import (
    TERMINATION_MESSAGE_LIMIT_BYTES,
    ExitCode,
    Reason,
    TerminationMessage,
    TrainResult,
)
from drafter_jobs.device_metrics import VolumeCollector, gpu_collector
from drafter_jobs.job import InterruptedJobError, JobError, Progress, job_parser, run_job
from drafter_sandbox.observe.monitored import free_port

RESULT = TrainResult(
    epochs=5,
    steps=100,
    best_epoch=4,
    loss="1.5",
    full_accuracy=["0.5", "0.25"],
    estimated_acceptance_length="1.750",
    checkpoint="/data/checkpoints/4",
)

Body = Callable[[argparse.Namespace], Any]


@pytest.fixture
def termination_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination-log"
    monkeypatch.setenv("DRAFTER_TERMINATION_LOG", str(path))
    return path


def run(body: Body, *arguments: str) -> int:
    parser = job_parser("drafter-test", "A job.")
    parser.add_argument("--size", type=int, default=1)
    return run_job(parser, body, arguments or ("--metrics-port", "0"))


def raising(error: BaseException) -> Body:
    def body(parsed: argparse.Namespace) -> None:
        raise error

    return body


def test_success_tells_the_result_in_camel_case(
    termination_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(lambda parsed: RESULT) == 0
    message = json.loads(termination_log.read_text())
    assert message["outcome"] == "Succeeded"
    assert message["result"]["bestEpoch"] == 4
    printed = capsys.readouterr()
    assert json.loads(printed.out) == message["result"]
    assert json.loads(printed.err.splitlines()[-1])["reason"] == "Succeeded"


@pytest.mark.parametrize(
    ("error", "exit_code", "reason", "words"),
    [
        (
            JobError(ExitCode.GATE_NOT_MET, Reason.ACCURACY_BELOW_GATE, "0.1 is below 0.2"),
            15,
            "AccuracyBelowGate",
            ("0.1 is below 0.2",),
        ),
        (InterruptedJobError(), 143, "Interrupted", ("SIGTERM", "resumes")),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"),
            13,
            "DiskFull",
            ("/data/x", "enlarge"),
        ),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), 13, "DiskFull", ("the volume",)),
        (
            OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/x"),
            13,
            "VolumeReadOnly",
            ("/data/x", "read-write"),
        ),
        (PermissionError(errno.EACCES, "denied", "/data/x"), 13, "VolumeReadOnly", ("/data/x",)),
        (
            ZeroDivisionError("division by zero\nsecond line"),
            1,
            "InternalError",
            ("ZeroDivisionError: division by zero", "test_job.py", "DRAFTER_DEBUG"),
        ),
        (FileNotFoundError(errno.ENOENT, "gone", "/data/y"), 1, "InternalError", ("/data/y",)),
    ],
)
def test_a_failure_is_a_code_a_reason_and_one_line(
    termination_log: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    exit_code: int,
    reason: str,
    words: tuple[str, ...],
) -> None:
    assert run(raising(error)) == exit_code
    message = json.loads(termination_log.read_text())
    assert (message["outcome"], message["reason"]) == ("Failed", reason)
    assert "\n" not in message["message"]
    assert all(word in message["message"] for word in words), message["message"]
    assert "Traceback" not in capsys.readouterr().err


def test_a_traceback_is_shown_on_request(
    termination_log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAFTER_DEBUG", "1")
    assert run(raising(KeyError("x"))) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--size", "many"), ("--size", "many")),
        (("--sise", "1"), ("--sise",)),
        (("--metrics-port",), ("--metrics-port",)),
    ],
)
def test_a_wrong_argument_is_a_configuration_error(
    termination_log: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert run(lambda parsed: None, *arguments) == ExitCode.CONFIGURATION_ERROR
    message = json.loads(termination_log.read_text())
    assert message["reason"] == "ConfigurationError"
    assert all(word in message["message"] for word in ("drafter-test", "--help", *words))


def test_help_is_no_failure(termination_log: Path) -> None:
    assert run(lambda parsed: None, "--help") == 0
    assert not termination_log.exists()


def test_metrics_are_served_on_the_address_and_port_given(termination_log: Path) -> None:
    port = free_port()
    seen = []

    def body(parsed: argparse.Namespace) -> None:
        progress = Progress("samples")
        progress.expect(10)
        progress.reach(3)
        progress.advance()
        progress.show_begun(0.5)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            seen.extend(answer.read().decode().splitlines())

    arguments = ("--metrics-address", "127.0.0.1", "--metrics-port", str(port))
    assert run(body, *arguments) == 0
    assert 'drafter_job_work_done{unit="samples"} 4.5' in seen
    assert 'drafter_job_work_expected{unit="samples"} 10.0' in seen
    assert not any(line.startswith("python_") for line in seen)


def test_a_port_in_use_is_named(termination_log: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ("--metrics-address", "127.0.0.1", "--metrics-port", port)
        assert run(lambda parsed: None, *arguments) == ExitCode.CONFIGURATION_ERROR
    message = json.loads(termination_log.read_text())["message"]
    assert f"127.0.0.1:{port}" in message
    assert "--metrics-port" in message


WAITING_JOB = """
import sys, threading
from drafter_jobs.job import InterruptedJobError, job_parser, log, run_job

def body(parsed):
    try:
        log("ready")
        threading.Event().wait()
    except InterruptedJobError:
        log("saved")
        raise

sys.exit(run_job(job_parser("drafter-test", ""), body, ["--metrics-port", "0"]))
"""


def test_sigterm_reaches_the_body_and_ends_in_143(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING_JOB],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"DRAFTER_TERMINATION_LOG": str(log)},
    )
    assert process.stderr is not None
    assert json.loads(process.stderr.readline())["event"] == "ready"
    process.send_signal(signal.SIGTERM)
    assert json.loads(process.stderr.readline())["event"] == "saved"
    process.stderr.read()
    assert process.wait(timeout=30) == 143
    assert json.loads(log.read_text())["reason"] == "Interrupted"


def test_a_termination_message_that_cannot_be_written_changes_no_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAFTER_TERMINATION_LOG", str(tmp_path / "missing" / "log"))
    assert run(lambda parsed: RESULT) == 0


def test_a_long_message_is_shortened_to_the_kubelets_limit() -> None:
    message = TerminationMessage(
        outcome="Failed", reason=Reason.INTERNAL_ERROR, message="é" * 5000, result={"a": 1}
    )
    written = message.to_bytes()
    assert len(written) <= TERMINATION_MESSAGE_LIMIT_BYTES
    read = json.loads(written)
    assert read["message"].endswith(" …")
    assert read["result"] == {"a": 1}


def test_a_message_of_characters_that_json_escapes_fits_too() -> None:
    message = TerminationMessage(
        outcome="Failed", reason=Reason.INTERNAL_ERROR, message='"\\\x01' * 3000
    )
    assert len(message.to_bytes()) <= TERMINATION_MESSAGE_LIMIT_BYTES


@pytest.mark.parametrize("text", ["short", "a message of some length " * 10])
def test_a_result_that_alone_is_too_large_is_an_error(text: str) -> None:
    message = TerminationMessage(
        outcome="Succeeded",
        reason=Reason.SUCCEEDED,
        message=text,
        result={"x": "y" * TERMINATION_MESSAGE_LIMIT_BYTES},
    )
    with pytest.raises(ValueError, match="the result takes"):
        message.to_bytes()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    write_json(file, {"b": 1, "a": "é"})
    write_json(file, {"a": 2})
    assert json.loads(file.read_text()) == {"a": 2}
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "record"
    write_atomically(file, b"old")
    with pytest.raises(TypeError):
        write_atomically(file, "not bytes")  # type: ignore[arg-type]
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_directory_appears_when_its_block_ends_well(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    with directory_atomically(target) as inside:
        (inside / "one").write_text("1")
        assert not target.exists()
    assert [entry.name for entry in target.iterdir()] == ["one"]
    with directory_atomically(target) as inside:
        (inside / "two").write_text("2")
    assert [entry.name for entry in target.iterdir()] == ["two"]
    assert list(target.parent.iterdir()) == [target]


def test_a_directory_whose_block_fails_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with directory_atomically(target) as inside:
        (inside / "one").write_text("1")
    with pytest.raises(KeyError), directory_atomically(target) as inside:
        (inside / "two").write_text("2")
        raise KeyError("failed")
    assert [entry.name for entry in target.iterdir()] == ["one"]
    assert list(tmp_path.iterdir()) == [target]


class FakeNvml(types.ModuleType):
    """Two GPUs, of which the second does not answer."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 1:
            raise self.NVMLError
        return index

    def nvmlDeviceGetMemoryInfo(self, _: int) -> types.SimpleNamespace:  # noqa: N802
        return types.SimpleNamespace(used=3 << 30, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, _: int) -> types.SimpleNamespace:  # noqa: N802
        return types.SimpleNamespace(gpu=75)


def test_gpus_show_their_memory_and_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    registry = CollectorRegistry()
    collector = gpu_collector()
    assert collector is not None
    registry.register(collector)

    first = {"gpu": "0"}
    assert registry.get_sample_value("drafter_gpu_memory_used_bytes", first) == 3 << 30
    assert registry.get_sample_value("drafter_gpu_memory_size_bytes", first) == 80 << 30
    assert registry.get_sample_value("drafter_gpu_utilization_ratio", first) == 0.75
    assert registry.get_sample_value("drafter_gpu_utilization_ratio", {"gpu": "1"}) is None


def test_a_volume_shows_its_room_before_its_directory_exists(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(VolumeCollector(tmp_path / "not" / "yet"))

    size = registry.get_sample_value("drafter_job_volume_size_bytes")
    available = registry.get_sample_value("drafter_job_volume_available_bytes")
    assert size == shutil.disk_usage(tmp_path).total
    assert available is not None
    assert 0 <= available <= size
