"""The quick start's to-do list and final table, from a status as kubectl prints it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from drafter_sandbox.quickstart import view


def rendered(thing: Any) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(thing)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def load(concurrency: int, rate: str, speedup: str | None) -> dict[str, Any]:
    return {
        "concurrency": concurrency,
        "outputTokensPerSecond": rate,
        "speedup": speedup,
        "ttftMillisecondsP50": "101.6",
        "ttftMillisecondsP95": "150.0",
        "itlMillisecondsP50": "60.0",
        "itlMillisecondsP95": "61.0",
    }


STATUS: dict[str, Any] = {
    "phase": "Succeeded",
    "steps": [
        {"name": "Prepare", "state": "Succeeded"},
        {
            "name": "Train",
            "state": "Running",
            "progress": {
                "done": 120,
                "total": 480,
                "unit": "steps",
                "ratePerSecond": "2.5",
                "secondsLeft": 144,
            },
        },
        {"name": "Export", "state": "Pending"},
        {"name": "Promote", "state": "Failed", "message": "the volume is full"},
    ],
    "training": {"epoch": 1, "epochs": 5, "loss": "4.1234", "accuracy": ["0.41", "0.17"]},
    "candidates": [
        {"name": "baseline", "state": "Measured", "loads": [load(1, "16.7", "1")]},
        {
            "name": "depth-4",
            "state": "Promoted",
            "acceptanceLength": "1.554",
            "outputsEqual": True,
            "outputsCompared": 24,
            "outputsDifferent": 0,
            "loads": [load(1, "20.0", "1.2")],
        },
        {
            "name": "depth-8",
            "state": "Measured",
            "acceptanceLength": "1.0",
            "outputsEqual": False,
            "outputsCompared": 24,
            "outputsDifferent": 3,
            "reason": "AcceptanceTooLow",
            "loads": [load(1, "9.9", "0.59")],
        },
    ],
    "best": {"candidate": "depth-4", "message": "depth-4 has the highest throughput"},
}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0s"), (59.4, "59s"), (60, "1m00s"), (185, "3m05s"), (38_900, "10h48m")],
)
def test_durations_read_as_people_write_them(seconds: float, words: str) -> None:
    assert view.duration(seconds) == words


def test_todo_list_shows_every_step_its_progress_and_the_training_figures() -> None:
    text = rendered(view.todo_list(STATUS, {"Prepare": 70.0, "Train": 48.0}))
    prepare, train, export, promote = text.splitlines()[1:5]
    assert "✔" in prepare
    assert "1m10s" in prepare
    assert "120/480 steps, 2.5/s, 2m24s left" in train
    assert "epoch 2/5, loss 4.123, accuracy 0.410/0.170" in train
    assert "○ Export" in export
    assert "the volume is full" in promote


def test_a_line_of_a_log_names_the_step_its_state_and_its_progress() -> None:
    line = view.step_line(STATUS["steps"][1], 48.0)
    assert line == "▶ Train: Running (48s) 120/480 steps, 2.5/s, 2m24s left"


def test_table_has_a_row_for_each_candidate_with_its_figures_and_outcome() -> None:
    lines = rendered(view.candidate_table(STATUS)).splitlines()
    baseline = next(line for line in lines if "baseline" in line and "16.7" in line)
    depth4 = next(line for line in lines if "depth-4" in line)
    depth8 = next(line for line in lines if "depth-8" in line)
    assert "–" in baseline
    assert all(word in depth4 for word in ("1.55", "20.0", "1.20", "102", "yes (24/24)"))
    assert "chosen, promoted" in depth4
    assert all(word in depth8 for word in ("0.59", "no (21/24)", "AcceptanceTooLow"))


def test_verdict_is_the_choice_or_the_condition_that_explains_its_absence() -> None:
    assert view.verdict(STATUS) == "depth-4 has the highest throughput"
    conditions = [
        {"type": "Failed", "status": "False", "message": "no step failed"},
        {"type": "Promoted", "status": "False", "message": "no candidate beats the baseline"},
    ]
    assert view.verdict({"conditions": conditions}) == "no candidate beats the baseline"
