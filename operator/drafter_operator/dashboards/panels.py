"""Panels and variables that all dashboards build on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    Panel,
    ValueMap,
    ValueMappingResult,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT = 8

Query = tuple[str, str]
"""PromQL and the legend of its series."""

_STATES = {"1": ("Pending", "text"), "2": ("Running", "blue"), "3": ("Succeeded", "green")} | {
    "4": ("Failed", "red"),
    "5": ("Skipped", "purple"),
}
STATE_NUMBER = """\
max by (namespace, run, step) (
  1 * (drafter_run_step_state{{{match}, state="Pending"}} == 1)
  or 2 * (drafter_run_step_state{{{match}, state="Running"}} == 1)
  or 3 * (drafter_run_step_state{{{match}, state="Succeeded"}} == 1)
  or 4 * (drafter_run_step_state{{{match}, state="Failed"}} == 1)
  or 5 * (drafter_run_step_state{{{match}, state="Skipped"}} == 1)
)"""
"""The state of each step as a number, named by the value mapping of a state timeline."""


def _targets(panel: Any, queries: Sequence[Query], *, instant: bool = False) -> Any:
    for index, (expression, legend) in enumerate(queries):
        target = (
            prometheus.Dataquery()
            .expr(expression)
            .legend_format(legend)
            .ref_id(chr(ord("A") + index))
        )
        if instant:
            target = target.instant().format(PromQueryFormat.TABLE)
        panel = panel.with_target(target)
    return panel.datasource(SOURCE)


def curves(
    title: str, meaning: str, *queries: Query, unit: str = "short", span: int = 12
) -> Builder[Panel]:
    """Return a panel of curves over time."""
    legend = (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .calcs([])
    )
    panel = timeseries.Panel().title(title).description(meaning).unit(unit).legend(legend)
    found: Builder[Panel] = _targets(panel.height(HEIGHT).span(span).line_width(1), queries)
    return found


def number(
    title: str, meaning: str, *queries: Query, unit: str = "short", span: int = 6
) -> Builder[Panel]:
    """Return a panel of one number, or one for each series."""
    panel = stat.Panel().title(title).description(meaning).unit(unit).height(HEIGHT // 2).span(span)
    found: Builder[Panel] = _targets(panel, queries)
    return found


def rows(title: str, meaning: str, *queries: Query, span: int = 24) -> Builder[Panel]:
    """Return a table of the present values, a column for each query."""
    panel = table.Panel().title(title).description(meaning).height(HEIGHT).span(span)
    panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    found: Builder[Panel] = _targets(panel, queries, instant=True)
    return found


def states(title: str, meaning: str, query: Query, span: int = 24) -> Builder[Panel]:
    """Return a timeline of the states that :data:`STATE_NUMBER` counts."""
    names = {
        number: ValueMappingResult(text=text, color=color, index=int(number))
        for number, (text, color) in _STATES.items()
    }
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(meaning)
        .mappings([ValueMap(options=names)])
        .height(HEIGHT + 4)
        .span(span)
    )
    found: Builder[Panel] = _targets(panel, [query])
    return found


def board(
    uid: str,
    title: str,
    meaning: str,
    since: str,
    panels: Sequence[Builder[Panel]],
    *,
    of_runs: bool = True,
) -> dict[str, Any]:
    """Return a dashboard with the variables data source, namespace and run.

    Parameters
    ----------
    uid
        Part of its address; it stays.
    since
        Begin of the time range, such as ``now-6h``.
    of_runs
        Whether namespace and run choose what it shows.
    """
    found = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(meaning)
        .tags(["drafter"])
        .time(since, "now")
        .refresh("30s")
        .readonly()
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    )
    chosen = (
        ("namespace", "label_values(drafter_run_info, namespace)"),
        ("run", 'label_values(drafter_run_info{namespace=~"$namespace"}, run)'),
    )
    for name, query in chosen if of_runs else ():
        found = found.with_variable(
            dashboard.QueryVariable(name)
            .query(query)
            .datasource(SOURCE)
            .include_all(True)
            .multi(True)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
        )
    for panel in panels:
        found = found.with_panel(panel)
    body: dict[str, Any] = found.build().to_json()
    return body
