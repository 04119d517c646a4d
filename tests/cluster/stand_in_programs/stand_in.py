"""Stands in for a job or for SGLang in tests of the operator: ends at once with a fixed result.

Started as ``stand_in.py NAME ARGUMENTS…``. The directory in ``STAND_IN_CONTROL`` changes what it
does: a file ``NAME.json`` with ``exit_code``, ``reason``, ``message`` and ``times`` makes that
many starts fail; a file ``NAME.hold`` makes it wait until the file is gone; a file
``NAME.metrics`` is what it serves as its metrics meanwhile. Every start is written to
``starts.log`` there.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

CONTROL = Path(os.environ["STAND_IN_CONTROL"])

RESULTS: dict[str, dict[str, Any]] = {
    "drafter-prepare": {
        "input": 40,
        "written": 38,
        "skipped": 1,
        "failed": 1,
        "tokens": 4000,
        "responseTokens": 3000,
        "heldOut": 4,
        "draftVocabularySize": 64,
        "vocabularyCoverage": "0.98",
    },
    "drafter-extract": {
        "input": 38,
        "written": 38,
        "skipped": 0,
        "failed": 0,
        "tokens": 4000,
        "bytes": 1000000,
        "auxiliaryLayers": [2, 4, 5],
    },
    "drafter-train": {
        "epochs": 2,
        "steps": 20,
        "bestEpoch": 1,
        "loss": "1.5",
        "fullAccuracy": ["0.6", "0.3"],
        "estimatedAcceptanceLength": "1.9",
        "checkpoint": "/data/x/1",
    },
    "drafter-export": {
        "architecture": "LlamaForCausalLMEagle3",
        "tensors": 14,
        "renamed": 10,
        "dropped": ["t2d"],
        "added": [],
        "auxiliaryLayers": [1, 3, 4],
        "parameters": 1000,
        "sha256": "0" * 64,
    },
}
THROUGHPUT = {"baseline": 100.0, "depth-2": 110.0, "depth-4": 150.0}
ACCEPTANCE = {"depth-2": "1.4", "depth-4": "1.9"}


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def benchmark_result(arguments: list[str]) -> dict[str, Any]:
    candidate = option(arguments, "--candidate")
    result: dict[str, Any] = {
        "candidate": candidate,
        "depth": int(option(arguments, "--depth")),
        "loads": [
            {
                "concurrency": int(concurrency),
                "requested": 4,
                "completed": 4,
                "outputTokensPerSecond": str(THROUGHPUT[candidate]),
                "ttftMillisecondsP50": "10",
                "ttftMillisecondsP95": "20",
                "itlMillisecondsP50": "5",
                "itlMillisecondsP95": "6",
            }
            for concurrency in option(arguments, "--concurrencies").split(",")
        ],
    }
    if candidate in ACCEPTANCE:
        override = CONTROL / f"{candidate}.acceptance"
        length = override.read_text() if override.exists() else ACCEPTANCE[candidate]
        result |= {"acceptanceLength": length, "acceptanceRate": "0.3"}
        result |= {"outputsCompared": 8, "outputsEqual": 8}
    return result


def end(code: int, reason: str, message: str, result: dict[str, Any] | None) -> None:
    outcome = "Succeeded" if code == 0 else "Failed"
    text = {"outcome": outcome, "reason": reason, "message": message, "result": result}
    Path(os.environ["DRAFTER_TERMINATION_LOG"]).write_text(json.dumps(text))
    sys.exit(code)


def hold(name: str) -> None:
    while (CONTROL / f"{name}.hold").exists():
        time.sleep(0.02)


def serve_metrics(arguments: list[str], text: bytes) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        (option(arguments, "--metrics-address"), 9400), Handler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()


def run_job(program: str, arguments: list[str]) -> None:
    name = program
    if program == "drafter-benchmark":
        name = f"{program}-{option(arguments, '--candidate')}"
    with (CONTROL / "starts.log").open("a") as log:
        log.write(f"{name} {' '.join(arguments)}\n")
    signal.signal(signal.SIGTERM, lambda *_: end(143, "Interrupted", "stopped", None))
    served = CONTROL / f"{name}.metrics"
    if served.exists():
        serve_metrics(arguments, served.read_bytes())
    hold(name)
    fault = CONTROL / f"{name}.json"
    if fault.exists():
        wanted = json.loads(fault.read_text())
        if wanted["times"] > 0:
            fault.write_text(json.dumps(wanted | {"times": wanted["times"] - 1}))
            if wanted["exit_code"] == 137:
                os.kill(os.getpid(), signal.SIGKILL)
            end(wanted["exit_code"], wanted["reason"], wanted["message"], None)
    if program == "drafter-benchmark":
        end(0, "Succeeded", "done", benchmark_result(arguments))
    end(0, "Succeeded", "done", RESULTS[program])


def serve(arguments: list[str]) -> None:
    algorithm = "--speculative-algorithm" in arguments
    depth = option(arguments, "--speculative-num-draft-tokens") if algorithm else "0"
    name = f"server-depth-{depth}" if algorithm else "server-baseline"
    with (CONTROL / "starts.log").open("a") as log:
        log.write(f"{name} {' '.join(arguments)}\n")
    if (CONTROL / f"{name}.crash").exists():
        sys.exit(f"the stand-in server {name} was told to crash")
    hold(name)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *_: Any) -> None:
            pass

    address = option(arguments, "--host"), int(option(arguments, "--port"))
    http.server.ThreadingHTTPServer(address, Handler).serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "sglang":
        serve(sys.argv[2:])
    else:
        run_job(sys.argv[1], sys.argv[2:])
