"""Start the real SGLang on the CPU for a test, and stop it by its process id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafter_sandbox.observe.monitored import free_port

SANDBOX = Path(__file__).resolve().parents[2] / "sandbox"


@dataclass(frozen=True)
class SglangServer:
    url: str
    log: Path
    pid: int

    def get(self, path: str, timeout_s: float = 10) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=timeout_s) as response:
            return json.load(response)

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 120) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return json.load(response)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[dict[str, Any]]:
        """Continue several prompts of token ids greedily, in one batch, past any end token."""
        return self.post(
            "/generate",
            {
                "input_ids": [list(prompt) for prompt in prompts],
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": new_tokens,
                    "ignore_eos": True,
                },
            },
        )


def speculation(
    drafter: Path, draft_tokens: int, topk: int = 1, steps: int | None = None
) -> list[str]:
    """Return SGLang's arguments for a drafter: a chain of tokens unless told otherwise."""
    return [
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(drafter),
        "--speculative-num-steps", str(steps or draft_tokens - 1),
        "--speculative-eagle-topk", str(topk),
        "--speculative-num-draft-tokens", str(draft_tokens),
    ]  # fmt: skip


@contextmanager
def running_sglang(
    target: Path,
    directory: Path,
    arguments: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    startup_s: float = 300,
) -> Iterator[SglangServer]:
    """Run a server on a free port until the block ends; its log is in ``directory``."""
    port = free_port()
    log = directory / f"sglang-{port}.log"
    command = [
        sys.executable, "-m", "drafter_sglang_cpu.launch_server",
        "--model-path", str(target), "--host", "127.0.0.1", "--port", str(port),
        "--device", "cpu", "--dtype", "float32", "--mem-fraction-static", "0.3",
        "--max-total-tokens", "8192", "--context-length", "1024", "--max-running-requests", "8",
        "--skip-server-warmup", "--enable-metrics", *arguments,
    ]  # fmt: skip
    variables = {"OMP_NUM_THREADS": "1", **os.environ, **(environment or {})}
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(SANDBOX), variables.get("PYTHONPATH")))
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=variables, stdout=output, stderr=output, start_new_session=True
        )
    server = SglangServer(f"http://127.0.0.1:{port}", log, process.pid)
    try:
        _wait_until_ready(server, process, startup_s)
        yield server
    finally:
        _stop(process)


def _wait_until_ready(
    server: SglangServer, process: subprocess.Popen[bytes], startup_s: float
) -> None:
    deadline = time.monotonic() + startup_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"SGLang ended with {process.returncode}:\n{tail(server.log)}")
        try:
            with urllib.request.urlopen(f"{server.url}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            # SGLang announces itself by answering this address and in no other way.
            time.sleep(0.2)
    raise AssertionError(f"SGLang was not ready after {startup_s} s:\n{tail(server.log)}")


def tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes it started: they share the session made for them."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
