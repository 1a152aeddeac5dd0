"""What makes panels a board: places, uid, variables, annotations, and the links that keep time and variables.

A link between boards keeps the time range and every variable; the list of all boards is at the top right of each.
Panels are ``panels.py``, what they ask for is each board's own (``boards/``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafanalib import core

from dashboards.rulefile import Links
from dashboards.variables import CLUSTER, DATASOURCE, datasource

SCHEMA_VERSION = 41
TAG = "exaserve"
#: Width of Grafana's grid.
_GRID = 24
#: What a link to another board hands on; a variable that a board does not have is ignored there.
_KEEP = "${__url_time_range}&${__all_variables}"
#: The same where the link itself chooses the replica, which must not stand there twice.
_KEEP_FLEET = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"

#: A row of a board: its title, or its height and panels side by side, each in an equal share or (width, panel).
Row = str | tuple[int, Sequence[Any]]


def dashboard(
    name: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    variables: Sequence[core.Template],
    *,
    annotations: Sequence[dict[str, Any]] = (),
    start: str = "now-30m",
    refresh: str = "10s",
) -> core.Dashboard:
    """A board; its uid is made of ``name``, its file's. start: beginning of the time range that it opens with."""
    return core.Dashboard(
        title=f"ExaServe / {title}",
        description=description,
        uid=f"exaserve-{name}",
        tags=[TAG],
        schemaVersion=SCHEMA_VERSION,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        refresh=refresh,
        time=core.Time(start, "now"),
        timezone="browser",
        links=[
            core.DashboardLink(title="ExaServe", tags=[TAG], asDropdown=True, includeVars=True, keepTime=True)
        ],
        templating=core.Templating([datasource(), *variables]),
        annotations=core.Annotations(list(annotations)),
        panels=_placed(rows),
    ).auto_panel_ids()


def runbook(alert: str, links: Links) -> dict[str, Any]:
    """A panel's link to the runbook of that alert."""
    return {"title": f"Runbook: {alert}", "url": links.runbook(alert), "targetBlank": True}


def to_board(name: str, title: str, links: Links) -> dict[str, Any]:
    """A panel's link to another board, with the time range and the variables of this one."""
    return {"title": title, "url": f"{links.dashboard(name)}?{_KEEP}", "targetBlank": False}


def to_replica(links: Links, replica: str = "${__field.labels.replica}") -> dict[str, Any]:
    """A link from a line (or, with ``REPLICA_OF_ROW``, a table's row) to that replica's board.

    Keeps the time range, data source and cluster; the board needs the variable ``cluster``.
    """
    url = f"{links.dashboard('replica')}?{_KEEP_FLEET}&var-replica={replica}"
    return {"title": "Open the replica's board", "url": url, "targetBlank": False}


#: ``to_replica``'s replica where the link stands in a table that has a column ``replica``.
REPLICA_OF_ROW = "${__data.fields.replica}"


def annotation(name: str, query: str, colour: str, title: str, text: str = "") -> dict[str, Any]:
    """Marks on every panel's time axis where the query has a value. title and text may have {{label}}s.

    The query should be grouped: each series is a mark of its own.
    """
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": query,
        "titleFormat": title,
        "textFormat": text,
        "step": "15s",
    }


def firing() -> dict[str, Any]:
    """Marks while one of our alerts fires that pages or warns, one for each alert however many series it has."""
    chosen = f'alertname=~"ExaServe.+", alertstate="firing", severity=~"critical|warning", {CLUSTER}'
    return annotation(
        "Alerts",
        f"count by (alertname, severity) (ALERTS{{{chosen}}})",
        "red",
        "{{alertname}} ({{severity}})",
    )


def _placed(rows: Sequence[Row]) -> list[Any]:
    placed, y = [], 0
    for row in rows:
        if isinstance(row, str):
            placed.append(core.RowPanel(title=row, gridPos=core.GridPos(h=1, w=_GRID, x=0, y=y)))
            y += 1
            continue
        height, panels = row
        x = 0
        for item in panels:
            width, panel = item if isinstance(item, tuple) else (_GRID // len(panels), item)
            panel.gridPos = core.GridPos(h=height, w=width, x=x, y=y)
            placed.append(panel)
            x += width
        y += height
    return placed
