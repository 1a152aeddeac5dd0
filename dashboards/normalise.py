"""Turns grafanalib's output into what Grafana writes today: the same text for the same board.

grafanalib's last release is older than the schema that we declare; ``to_json`` drops the keys that Grafana has
dropped and repairs the values that it would refuse. What is left decodes whole in Grafana's own SDK types. Which
panels there are and what they look like is ``panels.py``.
"""

from __future__ import annotations

import json
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

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
_TARGET_KEYS = ("refId", "expr", "legendFormat", "instant", "range", "format", "datasource")
_ROW_KEYS = ("type", "title", "collapsed", "panels", "gridPos", "id")
_TEXT_KEYS = ("type", "title", "description", "options", "gridPos", "id", "transparent", "links")
_VARIABLE_KEYS = (
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


def to_json(board: core.Dashboard) -> str:
    """The board as Grafana's JSON model."""
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


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    if panel["type"] in ("row", "text"):
        keys = _ROW_KEYS if panel["type"] == "row" else _TEXT_KEYS
        return {key: panel[key] for key in keys if key in panel}
    for key in _RETIRED_PANEL:
        panel.pop(key, None)
    for key in ("repeat", "repeatDirection", "maxPerRow"):
        if not panel.get("repeat"):
            panel.pop(key, None)
    panel["targets"] = [_target(t) for t in panel["targets"]]
    defaults = panel["fieldConfig"]["defaults"]
    steps = defaults["thresholds"]["steps"] or [{"color": "green"}]
    # null is "from the start"; grafanalib writes the word, or it was dropped as nothing.
    steps[0]["value"] = None
    defaults["thresholds"]["steps"] = steps
    scale = defaults.get("custom", {}).get("scaleDistribution", {})
    if scale.get("type") == "linear":
        scale.pop("log", None)
    return panel


def _target(target: dict[str, Any]) -> dict[str, Any]:
    clean = {key: value for key, value in target.items() if key in _TARGET_KEYS}
    if clean.get("format") == "time_series":
        del clean["format"]  # Grafana's default
    return clean | {"range": not clean.get("instant", False)}


def _variable(variable: dict[str, Any]) -> dict[str, Any]:
    clean = {key: variable[key] for key in _VARIABLE_KEYS if key in variable}
    if variable["type"] == "datasource":
        # No current value: Grafana then takes its default Prometheus.
        return {key: value for key, value in clean.items() if key not in ("sort", "datasource")} | {
            "options": []
        }
    clean["definition"] = clean["query"]
    clean["query"] = {"query": clean["query"], "refId": clean["name"]}
    # With "All", everything is chosen at first; without it, Grafana takes the first value that there is.
    if clean["includeAll"]:
        clean["current"] = {"text": "All", "value": "$__all"}
    return clean | {"options": []}


def _without_nothing(value: Any) -> Any:
    """Without the keys whose value is null, which Grafana doesn't write."""
    if isinstance(value, dict):
        return {k: _without_nothing(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nothing(v) for v in value]
    return value
