"""The queries behind the chart's dashboards, with Grafana's variables filled in."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_LABEL = re.compile(r"{{(\w+)}}")


@dataclasses.dataclass(frozen=True)
class PanelQuery:
    """One query of a panel.

    Attributes
    ----------
    legend
        Grafana's pattern, such as ``{{run}} {{step}}``.
    unit
        Grafana's name, such as ``s`` or ``percentunit``.
    place
        Left, top, width and height of the panel, in a grid of 24 columns.
    """

    board: str
    panel: str
    kind: str
    place: tuple[int, int, int, int]
    unit: str
    legend: str
    expression: str

    def name(self, labels: Mapping[str, str]) -> str:
        """Return the legend of a series."""
        return _LABEL.sub(lambda match: labels.get(match[1], ""), self.legend)


def panel_queries(directory: Path, variables: Mapping[str, str]) -> Iterator[PanelQuery]:
    """Yield every query of every dashboard of a directory, in order.

    Parameters
    ----------
    directory
        Of the dashboards' JSON.
    variables
        Values of Grafana's variables, such as ``run`` and ``__rate_interval``.
    """
    for path in sorted(directory.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            place = panel["gridPos"]
            for target in panel["targets"]:
                expression = target["expr"]
                for name, value in variables.items():
                    expression = expression.replace(f"${name}", value)
                unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
                yield PanelQuery(
                    path.stem,
                    panel["title"],
                    panel["type"],
                    (place["x"], place["y"], place["w"], place["h"]),
                    unit,
                    target.get("legendFormat", ""),
                    expression,
                )
