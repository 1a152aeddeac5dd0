"""Helpers over grafanalib for our boards, and the normaliser that turns its output into what Grafana writes today.

A helper takes what differs between panels (title, description, unit, queries) and sets what must not: the
datasource variable, no maxDataPoints, text instead of "No data" where nothing is normal. Boards are in ``boards/``.

grafanalib's last release is older than the schema that we declare; ``to_json`` drops the keys that Grafana has
dropped and repairs the values that it would refuse. What is left decodes whole in Grafana's own SDK types.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

from dashboards.rulefile import Links

SCHEMA_VERSION = 41
TAG = "exaserve"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

#: Thresholds: (value from which, colour); the first value is None, "from the start".
Steps = Sequence[tuple[float | None, str]]
#: Queries: (PromQL, legend).
Queries = Sequence[tuple[str, str]]

#: Keys of panels and dashboards that Grafana no longer has.
_RETIRED_PANEL = (
    "cacheTimeout",
    "editable",
    "error",
    "height",
    "minSpan",
    "span",
    "maxDataPoints",
    "hideTimeOverride",
)
_RETIRED_BOARD = ("rows", "hideControls", "sharedCrosshair", "style", "gnetId", "__inputs")
_TARGET_KEYS = ("refId", "expr", "legendFormat", "instant", "range", "datasource")


def timeseries(
    title: str,
    description: str,
    unit: str,
    queries: Queries,
    *,
    dashed: str = "",
    top: int | None = None,
    **more: Any,
) -> core.TimeSeries:
    """Lines over time. dashed: regular expression of legends drawn as dashed red lines, for thresholds.

    top: highest value of the axis, where the quantity has one.
    """
    overrides = []
    if dashed:
        properties = [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
        ]
        overrides.append({"matcher": {"id": "byRegexp", "options": dashed}, "properties": properties})
    return core.TimeSeries(
        title=title,
        description=description,
        unit=unit,
        targets=_targets(queries),
        dataSource=DATASOURCE,
        fillOpacity=8,
        legendDisplayMode="table",
        legendCalcs=["lastNotNull", "max"],
        tooltipMode="multi",
        tooltipSort="desc",
        showPoints="never",
        stacking={"mode": "none", "group": "A"},
        valueMin=0,
        valueMax=top,
        overrides=overrides,
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
    **more: Any,
) -> core.Stat:
    """One number, coloured by its thresholds. empty: what is shown where the query has no answer."""
    return core.Stat(
        title=title,
        description=description,
        format=unit,
        targets=_targets([(query, "")]),
        dataSource=DATASOURCE,
        decimals=decimals,
        color={"mode": "thresholds"},
        colorMode="background",
        reduceCalc="lastNotNull",
        noValue=empty,
        thresholds=[{"value": value, "color": color} for value, color in steps],
        **more,
    )


def state_timeline(
    title: str, description: str, query: str, legend: str, states: Sequence[tuple[int, str, str]], **more: Any
) -> core.StateTimeline:
    """One band per series whose value is a state. states: (value, name, colour)."""
    options = {
        str(value): {"text": name, "color": color, "index": i}
        for i, (value, name, color) in enumerate(states)
    }
    return core.StateTimeline(
        title=title,
        description=description,
        targets=_targets([(query, legend)]),
        dataSource=DATASOURCE,
        showValue="auto",
        mappings=[{"type": "value", "options": options}],
        thresholds=[{"value": None, "color": "text"}],
        # StateTimeline has no unit of its own; a state is a plain number until it is mapped.
        extraJson={"fieldConfig": {"defaults": {"unit": "none"}}},
        **more,
    )


def runbook(alert: str, links: Links) -> dict[str, Any]:
    """A panel's link to the runbook of that alert."""
    return {"title": f"Runbook: {alert}", "url": links.runbook(alert), "targetBlank": True}


def label_variable(name: str, label: str, selector: str) -> core.Template:
    """A variable with the values of ``label``; several or all may be chosen."""
    return core.Template(
        name=name,
        label=name,
        dataSource=DATASOURCE,
        query=f"label_values({selector}, {label})",
        includeAll=True,
        multi=True,
        allValue=".*",
        default="$__all",
        refresh=2,
    )


def dashboard(
    name: str,
    title: str,
    description: str,
    rows: Sequence[tuple[int, Sequence[Any]]],
    variables: Sequence[core.Template],
) -> core.Dashboard:
    """A board. rows: (height, panels side by side in equal widths); its uid is made of ``name``, its file's."""
    placed, y = [], 0
    for height, panels in rows:
        width = 24 // len(panels)
        for i, panel in enumerate(panels):
            panel.gridPos = core.GridPos(h=height, w=width, x=i * width, y=y)
            placed.append(panel)
        y += height
    source = core.Template(
        name="datasource", label="data source", type="datasource", query="prometheus", refresh=1
    )
    return core.Dashboard(
        title=f"ExaServe / {title}",
        description=description,
        uid=f"exaserve-{name}",
        tags=[TAG],
        schemaVersion=SCHEMA_VERSION,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        refresh="10s",
        time=core.Time("now-30m", "now"),
        timezone="browser",
        links=[core.DashboardLink(title="ExaServe", tags=[TAG], asDropdown=True, includeVars=True)],
        templating=core.Templating([source, *variables]),
        panels=placed,
    ).auto_panel_ids()


def to_json(board: core.Dashboard) -> str:
    """The board as Grafana's JSON model, the same text for the same board."""
    data = json.loads(json.dumps(board.to_json_data(), cls=DashboardEncoder))
    clean = _without_nothing(data)
    for key in _RETIRED_BOARD:
        clean.pop(key, None)
    clean["editable"] = True
    clean["panels"] = [_panel(p) for p in clean["panels"]]
    clean["templating"] = {"list": [_variable(v) for v in clean["templating"]["list"]]}
    clean["timepicker"] = {"refresh_intervals": clean["timepicker"]["refresh_intervals"]}
    for link in clean["links"]:
        link.setdefault("url", "")
    return json.dumps(clean, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _targets(queries: Queries) -> list[core.Target]:
    return [
        core.Target(expr=expr, legendFormat=legend, refId=chr(65 + i), datasource=DATASOURCE)
        for i, (expr, legend) in enumerate(queries)
    ]


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    for key in _RETIRED_PANEL:
        panel.pop(key, None)
    for key in ("repeat", "repeatDirection", "maxPerRow"):
        if not panel.get("repeat"):
            panel.pop(key, None)
    panel["targets"] = [
        {k: v for k, v in {"range": True, **t}.items() if k in _TARGET_KEYS} for t in panel["targets"]
    ]
    defaults = panel["fieldConfig"]["defaults"]
    steps = defaults["thresholds"]["steps"] or [{"color": "green"}]
    steps[0]["value"] = (
        None  # null is "from the start"; grafanalib writes the word, or it was dropped as nothing
    )
    defaults["thresholds"]["steps"] = steps
    scale = defaults.get("custom", {}).get("scaleDistribution", {})
    if scale.get("type") == "linear":
        scale.pop("log", None)
    return panel


def _variable(variable: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "name",
        "label",
        "type",
        "query",
        "hide",
        "refresh",
        "includeAll",
        "multi",
        "allValue",
        "sort",
        "datasource",
    )
    clean = {key: variable[key] for key in keys if key in variable}
    if variable["type"] == "datasource":
        # No current value: Grafana then takes its default Prometheus.
        return {key: value for key, value in clean.items() if key not in ("sort", "datasource")} | {
            "options": []
        }
    clean["definition"] = clean["query"]
    clean["query"] = {"query": clean["query"], "refId": clean["name"]}
    clean["current"] = {"text": "All", "value": "$__all"}
    return clean | {"options": []}


def _without_nothing(value: Any) -> Any:
    """Without the keys whose value is null, which Grafana doesn't write."""
    if isinstance(value, dict):
        return {k: _without_nothing(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nothing(v) for v in value]
    return value
