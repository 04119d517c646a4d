"""How a DrafterRun's status looks on a terminal: the to-do list and the final table.

Pure: everything is derived from the run's status, as ``kubectl get -o json`` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Status = Mapping[str, Any]

_MARKS = {
    "Pending": ("○", "dim"),
    "Running": ("▶", "bold cyan"),
    "Succeeded": ("✔", "green"),
    "Failed": ("✘", "bold red"),
    "Skipped": ("–", "dim"),
}


def duration(seconds: float) -> str:
    """Write seconds as ``42s``, ``3m05s`` or ``10h48m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def progress_words(step: Mapping[str, Any]) -> str:
    """Return ``120/386 samples, 3.9/s, 1m08s left`` for a step with progress, else nothing."""
    progress = step.get("progress")
    if not progress or not progress.get("total"):
        return ""
    words = [f"{progress['done']}/{progress['total']} {progress['unit']}"]
    if progress.get("ratePerSecond"):
        words.append(f"{float(progress['ratePerSecond']):.1f}/s")
    if progress.get("secondsLeft") is not None:
        words.append(f"{duration(progress['secondsLeft'])} left")
    return ", ".join(words)


def training_words(status: Status) -> str:
    """Return the training's present figures, such as ``epoch 3/5, loss 4.12``."""
    training = status.get("training") or {}
    words = []
    if training.get("epoch") is not None and training.get("epochs"):
        words.append(f"epoch {min(training['epoch'] + 1, training['epochs'])}/{training['epochs']}")
    if training.get("loss"):
        words.append(f"loss {float(training['loss']):.3f}")
    if training.get("accuracy"):
        words.append("accuracy " + "/".join(f"{float(a):.3f}" for a in training["accuracy"]))
    return ", ".join(words)


def step_line(step: Mapping[str, Any], seconds: float | None) -> str:
    """Return one step as a line of plain text, for logs that are no terminal."""
    mark, _ = _MARKS[step["state"]]
    words = [f"{mark} {step['name']}: {step['state']}"]
    if seconds is not None:
        words.append(f"({duration(seconds)})")
    detail = progress_words(step) if step["state"] == "Running" else ""
    detail = detail or step.get("message") or ""
    return " ".join([*words, detail]).rstrip()


def todo_list(status: Status, seconds: Mapping[str, float]) -> RenderableType:
    """Return the steps as a to-do list with progress bars.

    Parameters
    ----------
    status
        Status of the run.
    seconds
        Time each started step has taken so far, by name.
    """
    table = Table.grid(padding=(0, 1))
    for step in status.get("steps") or []:
        mark, style = _MARKS[step["state"]]
        progress = step.get("progress") or {}
        bar: RenderableType = ""
        if step["state"] == "Running" and progress.get("total"):
            bar = ProgressBar(total=progress["total"], completed=progress["done"], width=24)
        spent = duration(seconds[step["name"]]) if step["name"] in seconds else ""
        detail = ""
        if step["state"] == "Running":
            detail = progress_words(step) or step.get("message") or ""
            if step["name"] == "Train":
                detail = ", ".join(filter(None, [detail, training_words(status)]))
        elif step["state"] in ("Failed", "Skipped"):
            detail = step.get("message") or step.get("reason") or ""
        table.add_row(Text(mark, style), Text(step["name"], style), spent, bar, Text(detail))
    headline = Text(f"DrafterRun {status.get('phase', 'Pending')}", "bold")
    return Group(headline, table)


def _number(value: str | None, digits: int) -> str:
    return "–" if value is None else f"{float(value):.{digits}f}"


def _equality(candidate: Mapping[str, Any]) -> str:
    if candidate.get("outputsEqual") is None:
        return "–"
    compared, different = candidate.get("outputsCompared", 0), candidate.get("outputsDifferent", 0)
    word = "yes" if candidate["outputsEqual"] else "no"
    return f"{word} ({compared - different}/{compared})"


def candidate_table(status: Status) -> Table:
    """Return the table a run ends with: one row for each candidate."""
    candidates: Sequence[Mapping[str, Any]] = status.get("candidates") or []
    concurrencies = sorted(
        {load["concurrency"] for candidate in candidates for load in candidate.get("loads") or []}
    )
    table = Table(title="Candidates under the same load", title_justify="left")
    table.add_column("candidate")
    table.add_column("acceptance\nlength", justify="right")
    for concurrency in concurrencies:
        table.add_column(f"tokens/s\nat {concurrency}", justify="right")
        table.add_column(f"speed-up\nat {concurrency}", justify="right")
        table.add_column(f"TTFT ms\nat {concurrency}", justify="right")
    table.add_column("outputs equal\nbaseline", justify="right")
    table.add_column("result")
    best = (status.get("best") or {}).get("candidate")
    for candidate in candidates:
        loads = {load["concurrency"]: load for load in candidate.get("loads") or []}
        cells = [candidate["name"], _number(candidate.get("acceptanceLength"), 2)]
        for concurrency in concurrencies:
            load = loads.get(concurrency, {})
            cells += [
                _number(load.get("outputTokensPerSecond"), 1),
                _number(load.get("speedup"), 2),
                _number(load.get("ttftMillisecondsP50"), 0),
            ]
        result = candidate.get("reason") or candidate["state"]
        if candidate["name"] == best:
            result = "chosen" if candidate["state"] != "Promoted" else "chosen, promoted"
        table.add_row(
            *cells,
            _equality(candidate),
            result,
            style="bold green" if candidate["name"] == best else None,
        )
    return table


def verdict(status: Status) -> str:
    """Return which candidate was chosen and why, or why none was."""
    best = status.get("best")
    if best:
        return str(best["message"])
    for kind in ("Failed", "Promoted", "Complete", "Accepted"):
        for condition in status.get("conditions") or []:
            notable = condition["status"] == "True" or kind in ("Promoted", "Accepted")
            if condition["type"] == kind and notable and condition.get("message"):
                return str(condition["message"])
    return "The run has not come to a choice."
