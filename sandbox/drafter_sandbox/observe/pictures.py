"""Draws the dashboards' panels from a Prometheus, for readers without a Grafana.

``python -m drafter_sandbox.observe.pictures PORT OUTPUT``: the same queries, over the time of
the runs that the Prometheus holds.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from drafter_sandbox.observe.panel_queries import PanelQuery, panel_queries
from drafter_sandbox.observe.prometheus import Prometheus

CHART = Path(__file__).resolve().parents[3] / "charts/drafter-operator"
POINTS = 300
GRID_COLUMNS = 24
HEIGHT_INCHES = 0.35
LEGENDS = 9
ROWS = 16
STATES = {1: "tab:gray", 2: "tab:blue", 3: "tab:green", 4: "tab:red", 5: "tab:purple"}

Series = tuple[str, list[float], list[float]]
"""Name, minutes since the start, values."""


def _series(prometheus: Prometheus, query: PanelQuery, start: float, end: float) -> list[Series]:
    step = max((end - start) / POINTS, 1)
    found = []
    for series in prometheus.query_range(query.expression, start, end, step):
        times = [(float(time) - start) / 60 for time, _ in series["values"]]
        name = query.name({"namespace": "", **series["metric"]})
        found.append((name, times, [float(value) for _, value in series["values"]]))
    return found


def _draw_states(axes: Axes, found: Sequence[Series]) -> None:
    for row, (_, times, values) in enumerate(reversed(found)):
        for (begin, end), value in zip(itertools.pairwise(times), values[:-1], strict=True):
            axes.barh(row, end - begin, left=begin, color=STATES[int(value)], height=0.8)
    axes.set_yticks(range(len(found)), [name for name, _, _ in reversed(found)], fontsize=6)


def _draw_numbers(axes: Axes, found: Sequence[Series]) -> None:
    text = "\n".join(f"{name}: {values[-1]:.5g}" for name, _, values in found)
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=9)
    axes.set_axis_off()


def _draw_rows(axes: Axes, found: Sequence[Series]) -> None:
    text = "\n".join(f"{name}: {values[-1]:.5g}" for name, _, values in found[:ROWS])
    axes.text(0, 0.5, text, va="center", fontsize=6)
    axes.set_axis_off()


def _draw_curves(axes: Axes, found: Sequence[Series]) -> None:
    for name, times, values in found[:LEGENDS]:
        axes.plot(times, values, label=name, linewidth=1, marker=".", markersize=2)
    if any(name for name, _, _ in found):
        axes.legend(fontsize=5)


_DRAW: dict[str, Callable[[Axes, Sequence[Series]], None]] = {
    "state-timeline": _draw_states,
    "stat": _draw_numbers,
    "table": _draw_rows,
}


def draw(prometheus: Prometheus, start: float, end: float, output: Path) -> list[Path]:
    """Draw a picture of each dashboard and return the files.

    Parameters
    ----------
    start, end
        Unix times.
    """
    span = f"{max(int((end - start) / 20), 10)}s"
    variables: dict[str, str] = {"namespace": ".*", "run": ".*", "__rate_interval": span}
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for board, queries in itertools.groupby(
        panel_queries(CHART / "dashboards", variables), key=lambda query: query.board
    ):
        panels = [list(group) for _, group in itertools.groupby(queries, lambda q: q.panel)]
        height = max(group[0].place[1] + group[0].place[3] for group in panels)
        figure = plt.figure(figsize=(15, HEIGHT_INCHES * height), layout="constrained")
        grid = figure.add_gridspec(height, GRID_COLUMNS)
        for group in panels:
            left, top, width, tall = group[0].place
            axes = figure.add_subplot(grid[top : top + tall, left : left + width])
            found = [series for query in group for series in _series(prometheus, query, start, end)]
            axes.set_title(f"{group[0].panel} ({group[0].unit})", fontsize=9)
            axes.tick_params(labelsize=6)
            _DRAW.get(group[0].kind, _draw_curves)(axes, found)
        figure.suptitle(f"Dashboard {board}; minutes since the start", fontsize=10)
        path = output / f"dashboard-{board}.png"
        figure.savefig(path, dpi=80, metadata={"Software": None})
        plt.close(figure)
        written.append(path)
    return written


def main() -> None:
    """Draw the pictures over the time for which Prometheus has runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, help="of a Prometheus on 127.0.0.1")
    parser.add_argument("output", type=Path)
    parsed = parser.parse_args()
    prometheus = Prometheus(Path(), parsed.port)
    known = "timestamp(drafter_run_info)[12h:2s]"
    times = []
    for which in ("min", "max"):
        (found,) = prometheus.query(f"{which}({which}_over_time({known}))")
        times.append(float(found["value"][1]))
    first, last = times
    for path in draw(prometheus, first, last, parsed.output):
        print(path)


if __name__ == "__main__":
    main()
