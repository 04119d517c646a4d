from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal
from drafter_sandbox.quickstart.cluster import end_well_on_signals
end_well_on_signals()
try:
    print("up", flush=True)
    signal.pause()
finally:
    print("the sandbox is stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_a_program_cleans_up_is_cleaned_up_on_signals(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"

    process.send_signal(number)
    output, _ = process.communicate(timeout=20)

    assert output == "the sandbox is stopped\n"
    assert process.returncode != 0
