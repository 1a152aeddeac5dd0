"""Panels of our boards: helpers over grafanalib.

A helper takes what differs between panels (title, description, unit, queries) and sets what must not: the
datasource variable, no maxDataPoints, and a text that says why nothing is shown where "No data" would stand. What
makes panels a board is ``board.py``; variables and top N are ``variables.py``; ``normalise.py`` repairs what
grafanalib writes. Boards are in ``boards/``.

grafanalib's bar gauge, heat map and table are of Grafana 6 to 9; those panels are built here (``shapes.py``) as Grafana writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafanalib import core

from dashboards.shapes import Queries, States, Steps, modern, to_column, to_mappings, to_steps, to_targets
from dashboards.variables import DATASOURCE

#: What is shown where a query about users has no answer.
NO_TRAFFIC = "no traffic in this time"


def timeseries(
    title: str,
    description: str,
    unit: str,
    queries: Queries,
    *,
    dashed: str = "",
    top: float | None = None,
    log: bool = False,
    signed: bool = False,
    stacked: bool = False,
    empty: str = NO_TRAFFIC,
    data_links: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> core.TimeSeries:
    """Lines over time. dashed: regular expression of legends drawn as dashed red lines, for thresholds.

    top: highest value of the axis, where the quantity has one. log: an axis by powers of ten, for quantities that
    differ by orders of magnitude. signed: the axis goes below 0. empty: what is shown where no query has an answer. data_links: at each line.
    """
    overrides = []
    if dashed:
        properties = [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "custom.stacking", "value": {"mode": "none", "group": "A"}},
            {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
        ]
        overrides.append({"matcher": {"id": "byRegexp", "options": dashed}, "properties": properties})
    defaults: dict[str, Any] = {"noValue": empty}
    if data_links:
        defaults["links"] = list(data_links)
    if top is not None:
        defaults["max"] = top
    return core.TimeSeries(
        title=title,
        description=description,
        unit=unit,
        targets=to_targets(queries),
        dataSource=DATASOURCE,
        fillOpacity=20 if stacked else 8,
        legendDisplayMode="table",
        legendCalcs=["lastNotNull", "max"],
        tooltipMode="multi",
        tooltipSort="desc",
        showPoints="never",
        stacking={"mode": "normal" if stacked else "none", "group": "A"},
        scaleDistributionType="log" if log else "linear",
        scaleDistributionLog=10,
        # A log axis has no 0.
        valueMin=None if log or signed else 0,
        overrides=overrides,
        extraJson={"fieldConfig": {"defaults": defaults}},
        **more,
    )


def stat(
    title: str,
    description: str,
    unit: str,
    query: str,
    steps: Steps,
    *,
    empty: str = "unknown",
    decimals: int | None = None,
    legend: str = "",
    states: States = (),
    **more: Any,
) -> core.Stat:
    """One number, coloured by its thresholds. empty: what is shown where the query has no answer.

    legend: with a label in it, a number for each series, under that name. states: words for the numbers.
    """
    return core.Stat(
        title=title,
        description=description,
        format=unit,
        targets=to_targets([(query, legend)]),
        dataSource=DATASOURCE,
        decimals=decimals,
        color={"mode": "thresholds"},
        colorMode="background",
        textMode="value_and_name" if legend else "auto",
        reduceCalc="lastNotNull",
        noValue=empty,
        mappings=to_mappings(states) if states else [],
        thresholds=to_steps(steps),
        **more,
    )


def state_timeline(
    title: str,
    description: str,
    query: str,
    legend: str,
    states: States,
    *,
    empty: str = "unknown in this time",
    **more: Any,
) -> core.StateTimeline:
    """One band per series whose value is a state; for a few series, never for every replica."""
    return core.StateTimeline(
        title=title,
        description=description,
        targets=to_targets([(query, legend)]),
        dataSource=DATASOURCE,
        showValue="auto",
        mappings=to_mappings(states),
        thresholds=[{"value": None, "color": "text"}],
        # StateTimeline has no unit of its own; a state is a plain number until it is mapped.
        extraJson={"fieldConfig": {"defaults": {"unit": "none", "noValue": empty}}},
        **more,
    )


def heat_map(
    title: str,
    description: str,
    unit: str,
    query: str,
    *,
    legend: str = "{{le}}",
    counts: str = "none",
    empty: str = NO_TRAFFIC,
    **more: Any,
) -> core.Panel:
    """How many fall into each bucket over time. query: cumulative buckets by ``le``, summed (``sum by (le) (…)``).

    unit: of the buckets' edges. counts: unit of what is counted. However many replicas, there are as many series as
    buckets.
    """
    options = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": counts},
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "fill": "dark-orange",
            "scale": "exponential",
            "exponent": 0.5,
            "steps": 64,
            "reverse": False,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "unit": unit, "reverse": False},
    }
    custom = {
        "scaleDistribution": {"type": "linear"},
        "hideFrom": {"tooltip": False, "viz": False, "legend": False},
    }
    target = core.Target(expr=query, legendFormat=legend, refId="A", format="heatmap", datasource=DATASOURCE)
    return modern(
        kind="heatmap",
        title=title,
        description=description,
        targets=[target],
        dataSource=DATASOURCE,
        options=options,
        defaults={"unit": unit, "noValue": empty, "custom": custom},
        **more,
    )


def table(
    title: str,
    description: str,
    columns: Sequence[tuple[str, str, str]],
    labels: Sequence[str],
    *,
    empty: str,
    sort: str = "",
    ascending: bool = False,
    steps: Mapping[str, Steps] | None = None,
    data_links: Mapping[str, Mapping[str, Any]] | None = None,
    states: Mapping[str, States] | None = None,
    **more: Any,
) -> core.Panel:
    """What holds at the end of the time shown, a row for each set of ``labels`` that the queries have in common.

    columns: (PromQL, name, unit). Each query has to be limited to the rows that are wanted (``variables.top``).
    labels: columns too, in their order, before the numbers; other labels are left out, so every query must be
    grouped by them or have no others that matter. sort: name of a column. steps, states, data_links: by
    column; steps colour the text, data links stand at the cell.
    """
    targets = [
        core.Target(
            expr=expr, legendFormat="", refId=chr(65 + i), instant=True, format="table", datasource=DATASOURCE
        )
        for i, (expr, _, _) in enumerate(columns)
    ]
    # A single query's value column has no letter.
    values = {("Value" if len(columns) == 1 else f"Value #{chr(65 + i)}"): c for i, c in enumerate(columns)}
    shown = [*labels, *values]
    keep = {"id": "filterFieldsByName", "options": {"include": {"names": shown}}}
    organize = {
        "id": "organize",
        "options": {
            "excludeByName": {},
            "indexByName": {name: i for i, name in enumerate(shown)},
            "renameByName": {value: name for value, (_, name, _) in values.items()},
        },
    }
    overrides = [to_column(name, [{"id": "unit", "value": unit}]) for _, name, unit in columns]
    for name, limits in (steps or {}).items():
        shape = {"mode": "absolute", "steps": to_steps(limits)}
        cell = {"id": "custom.cellOptions", "value": {"type": "color-text"}}
        overrides.append(to_column(name, [{"id": "thresholds", "value": shape}, cell]))
    for name, link in (data_links or {}).items():
        overrides.append(to_column(name, [{"id": "links", "value": [dict(link)]}]))
    for name, of in (states or {}).items():
        cell = {"id": "custom.cellOptions", "value": {"type": "color-text"}}
        overrides.append(to_column(name, [{"id": "mappings", "value": to_mappings(of)}, cell]))
    return modern(
        kind="table",
        title=title,
        description=description,
        targets=targets,
        dataSource=DATASOURCE,
        # Names of metrics go first: rows that differ in them would not be merged.
        transformations=[keep, {"id": "merge", "options": {}}, organize],
        options={
            "cellHeight": "sm",
            "frameIndex": 0,
            "showHeader": True,
            "sortBy": [{"displayName": sort, "desc": not ascending}] if sort else [],
        },
        defaults={
            "unit": "none",
            "noValue": empty,
            "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
        },
        overrides=overrides,
        **more,
    )


def bar_gauge(
    title: str,
    description: str,
    unit: str,
    queries: Queries,
    steps: Steps,
    *,
    top: float | None = None,
    empty: str = NO_TRAFFIC,
    data_links: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> core.Panel:
    """A bar for each series, by its value at the end of the time shown. For a few series: pools, models, a top N."""
    targets = to_targets(queries)
    for target in targets:
        target.instant = True
    defaults: dict[str, Any] = {"unit": unit, "noValue": empty, "min": 0, "color": {"mode": "thresholds"}}
    if top is not None:
        defaults["max"] = top
    if data_links:
        defaults["links"] = list(data_links)
    options = {
        "displayMode": "gradient",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "maxVizHeight": 300,
        "minVizHeight": 16,
        "minVizWidth": 8,
        "namePlacement": "auto",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "color",
    }
    return modern(
        kind="bargauge",
        title=title,
        description=description,
        targets=targets,
        dataSource=DATASOURCE,
        thresholds=to_steps(steps),
        options=options,
        defaults=defaults,
        **more,
    )


def text(title: str, description: str, markdown: str) -> core.Panel:
    """Words on a board: what it does not show, and where that is."""
    return modern(
        kind="text",
        title=title,
        description=description,
        options={"mode": "markdown", "content": markdown},
    )
