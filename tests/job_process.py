"""Run a job as a user does, and read what it tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    exit_code: int
    termination: dict[str, Any]

    @property
    def reason(self) -> str:
        return str(self.termination["reason"])

    @property
    def message(self) -> str:
        return str(self.termination["message"])

    @property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.termination["result"]
        return result


def run_here(
    main: Callable[[Sequence[str]], None],
    arguments: Sequence[object],
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
) -> Ended:
    """Run a job's ``main`` in this process."""
    log = directory / "termination-log"
    log.unlink(missing_ok=True)
    monkeypatch.setenv("DRAFTER_TERMINATION_LOG", str(log))
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--metrics-port", "0"])
    return Ended(int(ended.value.code or 0), json.loads(log.read_bytes()))


def start(module: str, arguments: Sequence[object], log: Path) -> subprocess.Popen[str]:
    """Start a job in a process of its own; its log lines come from ``stderr``."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments), "--metrics-port", "0"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"DRAFTER_TERMINATION_LOG": str(log), "OMP_NUM_THREADS": "1"},
    )


def wait_for_event(process: subprocess.Popen[str], event: str, count: int) -> None:
    """Read the job's log until an event has occurred so many times."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if f'"event": "{event}"' in line:
            count -= 1
            if count == 0:
                return
    raise AssertionError(f"the job ended first: {''.join(seen)}")
