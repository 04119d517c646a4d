"""The queries behind the chart's dashboards, with Grafana's variables filled in."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class PanelQuery:
    """One query of a panel.

    Attributes
    ----------
    legend
        Grafana's pattern, such as ``{{run}} {{step}}``.
    unit
        Grafana's name, such as ``s`` or ``percentunit``.
    """

    board: str
    panel: str
    kind: str
    unit: str
    legend: str
    expression: str

    def name(self, labels: Mapping[str, str]) -> str:
        """Return the legend of a series."""
        text = self.legend
        for label in ("namespace", *labels):
            text = text.replace("{{" + label + "}}", labels.get(label, ""))
        return text


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
            for target in panel["targets"]:
                expression = target["expr"]
                for name, value in variables.items():
                    expression = expression.replace(f"${name}", value)
                unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
                yield PanelQuery(
                    path.stem,
                    panel["title"],
                    panel["type"],
                    unit,
                    target.get("legendFormat", ""),
                    expression,
                )
