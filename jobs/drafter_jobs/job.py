"""What every job shares: exit codes, termination message, SIGTERM, metrics, logs.

A job's ``main`` builds an argument parser and hands its body to :func:`run_job`, which turns
every way the body can end into an exit code, a termination message and one printed line.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry, disable_created_metrics, start_http_server
from prometheus_client.registry import Collector

from drafter_jobs.contract import metrics
from drafter_jobs.contract.outcome import (
    METRICS_PORT,
    TERMINATION_LOG_VARIABLE,
    ContractModel,
    ExitCode,
    Reason,
    TerminationMessage,
)
from drafter_jobs.device_metrics import VolumeCollector, gpu_collector

DEBUG_VARIABLE = "DRAFTER_DEBUG"
"""Environment variable that adds tracebacks to the log."""

INTERNAL_ERROR_EXIT_CODE = 1
"""Neither a fault of the settings nor of the input: the Job tries again."""

REGISTRY = CollectorRegistry()
"""The metrics of this job and nothing else."""


class JobError(Exception):
    """The job cannot succeed.

    Parameters
    ----------
    exit_code
        What the process ends with: one of :class:`ExitCode`, or
        :data:`INTERNAL_ERROR_EXIT_CODE` to be tried again.
    reason
        A word for programs.
    message
        One or two sentences that name the field, the value and the way out.
    """

    def __init__(self, exit_code: int, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.reason = reason
        self.message = message


class InterruptedJobError(BaseException):
    """SIGTERM arrived. Not an ``Exception``, so that no body swallows it by accident."""


class Progress:
    """How far the job is, as the gauges every job has.

    Parameters
    ----------
    unit
        samples, steps or requests.
    """

    def __init__(self, unit: str) -> None:
        self._done = _WORK_DONE.labels(unit=unit)
        self._expected = _WORK_EXPECTED.labels(unit=unit)
        self._whole = 0
        self._begun = 0.0

    def expect(self, total: int) -> None:
        """Say how many units there are in all."""
        self._expected.set(total)

    def advance(self, count: int = 1) -> None:
        """Count units as done."""
        self.reach(self._whole + count)

    def reach(self, done: int) -> None:
        """Set the units done so far."""
        self._whole = done
        self._show()

    def show_begun(self, begun: float) -> None:
        """Show what units at work amount to, beside those that are done."""
        self._begun = begun
        self._show()

    def _show(self) -> None:
        self._done.set(self._whole + self._begun)


_WORK_DONE = metrics.WORK_DONE.gauge(REGISTRY)
_WORK_EXPECTED = metrics.WORK_EXPECTED.gauge(REGISTRY)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument as a configuration error instead of exiting by itself."""

    def error(self, message: str) -> NoReturn:
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"{self.prog}: {message}; see {self.prog} --help",
        )


def job_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for a job, with the arguments of the metrics server."""
    parser = _Parser(prog=program, description=description, allow_abbrev=False)
    add_metrics_arguments(parser)
    return parser


def add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the job serves its Prometheus metrics."""
    group = parser.add_argument_group("metrics")
    group.add_argument("--metrics-address", default="0.0.0.0", help="address to bind")
    group.add_argument(
        "--metrics-port", type=int, default=METRICS_PORT, help="TCP port; 0 serves no metrics"
    )


def log(event: str, **fields: object) -> None:
    """Write one line: words on a terminal, JSON elsewhere."""
    if sys.stderr.isatty():
        print(event, *(f"{key}={value}" for key, value in fields.items()), file=sys.stderr)
    else:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"time": stamp, "event": event} | fields
        print(json.dumps(line, default=str), file=sys.stderr, flush=True)


def run_job(
    parser: argparse.ArgumentParser,
    body: Callable[[argparse.Namespace], ContractModel | None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a job's body and report how it ended.

    Parameters
    ----------
    parser
        Parser of the command line, with :func:`add_metrics_arguments`.
    body
        The work. Returns the result, raises :class:`JobError` for a known failure, and lets
        :class:`InterruptedJobError` through after saving its state.
    arguments
        Command line without the program; that of the process if None.

    Returns
    -------
    int
        The exit code, after the termination message was written.
    """
    interrupted = threading.Event()
    previous = _interrupt_on_sigterm(interrupted)
    try:
        parsed = parser.parse_args(arguments)
        _serve_metrics(parsed)
        result = body(parsed)
    except JobError as error:
        return _end(error.exit_code, error.reason, error.message)
    except InterruptedJobError:
        return _end(
            ExitCode.INTERRUPTED,
            Reason.INTERRUPTED,
            "stopped by SIGTERM; what was finished is kept and the next start resumes",
        )
    except OSError as error:
        known = _volume_error(error)
        if known is not None:
            return _end(known.exit_code, known.reason, known.message)
        return _internal_error(error)
    except SystemExit as error:
        # argparse ends this way after --help.
        return int(error.code or 0)
    except Exception as error:
        return _internal_error(error)
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
    return _end(ExitCode.SUCCEEDED, Reason.SUCCEEDED, "done", result)


def _interrupt_on_sigterm(interrupted: threading.Event) -> Any:
    if threading.current_thread() is not threading.main_thread():
        return None

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        # A second SIGTERM must not disturb the saving that the first one started.
        if not interrupted.is_set():
            interrupted.set()
            raise InterruptedJobError

    return signal.signal(signal.SIGTERM, interrupt)


def _serve_metrics(parsed: argparse.Namespace) -> None:
    address, port = parsed.metrics_address, parsed.metrics_port
    if port == 0:
        return
    # A creation time beside each counter is a series nobody asks for.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    collectors: list[Collector | None] = []
    if (output := getattr(parsed, "output", None)) is not None:
        collectors.append(VolumeCollector(Path(output)))
    if getattr(parsed, "device", "cpu") != "cpu":
        collectors.append(gpu_collector())
    for collector in filter(None, collectors):
        REGISTRY.register(collector)
    try:
        start_http_server(port, addr=address, registry=REGISTRY)
    except OSError as error:
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"metrics cannot be served on {address}:{port} ({error.strerror}); choose another"
            " --metrics-port, or 0 for none",
        ) from None


def _volume_error(error: OSError) -> JobError | None:
    where = error.filename2 or error.filename or "the volume"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return JobError(
            ExitCode.DISK_FULL,
            Reason.DISK_FULL,
            f"no space left at {where}: enlarge the volume, then retry; finished work is kept",
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return JobError(
            ExitCode.DISK_FULL,
            Reason.VOLUME_READ_ONLY,
            f"{where} cannot be written or read ({error.strerror}): mount the volume read-write"
            " for the Pod's user, then retry",
        )
    return None


def _internal_error(error: BaseException) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)
    place = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(place[-1].filename).name}:{place[-1].lineno})" if place else ""
    text = str(error).strip().splitlines()
    return _end(
        INTERNAL_ERROR_EXIT_CODE,
        Reason.INTERNAL_ERROR,
        f"{type(error).__name__}: {text[0] if text else 'no message'}{where};"
        f" set {DEBUG_VARIABLE}=1 for the traceback",
    )


def _end(exit_code: int, reason: Reason, message: str, result: ContractModel | None = None) -> int:
    outcome = "Succeeded" if exit_code == ExitCode.SUCCEEDED else "Failed"
    termination = TerminationMessage(
        outcome=outcome,
        reason=reason,
        message=message,
        result=result.model_dump(mode="json", by_alias=True) if result is not None else None,
    )
    path = os.environ.get(TERMINATION_LOG_VARIABLE)
    if path:
        try:
            # The kubelet mounts this very file: it cannot be replaced by a rename.
            Path(path).write_bytes(termination.to_bytes())
        except OSError as error:
            log("termination message not written", path=path, error=str(error))
    log(outcome, reason=str(reason), message=message, exit_code=int(exit_code))
    if termination.result is not None:
        print(json.dumps(termination.result), flush=True)
    return int(exit_code)
