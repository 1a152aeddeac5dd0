"""What panels are made of: queries, thresholds, words for states, and a panel in the shape that Grafana writes today.

``panels.py`` makes the panels of our boards out of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attr
from grafanalib import core

from dashboards.variables import DATASOURCE

#: Thresholds: (value from which, colour); the first value is None, "from the start".
Steps = Sequence[tuple[float | None, str]]
#: Queries: (PromQL, legend).
Queries = Sequence[tuple[str, str]]
#: (value, name, colour) of a quantity that is a state.
States = Sequence[tuple[int, str, str]]


@attr.s
class Modern(core.Panel):
    """A panel in the shape that Grafana writes today. kind: its plugin. defaults, overrides: ``fieldConfig``."""

    kind: str = attr.ib(default="")
    options: dict[str, Any] = attr.ib(factory=dict)
    defaults: dict[str, Any] = attr.ib(factory=dict)
    overrides: list[dict[str, Any]] = attr.ib(factory=list)

    def to_json_data(self) -> Any:
        shape = {
            "type": self.kind,
            "options": self.options,
            "fieldConfig": {"defaults": self.defaults, "overrides": self.overrides},
        }
        return self.panel_json(shape)


def modern(**fields: Any) -> core.Panel:
    """A Modern, whose fields are those of core.Panel too."""
    return Modern(**fields)


def to_targets(queries: Queries) -> list[core.Target]:
    """Range queries with the refIds A, B, …; the datasource is the variable."""
    return [
        core.Target(expr=expr, legendFormat=legend, refId=chr(65 + i), datasource=DATASOURCE)
        for i, (expr, legend) in enumerate(queries)
    ]


def to_steps(steps: Steps) -> list[dict[str, Any]]:
    """Thresholds as Grafana writes them."""
    return [{"value": value, "color": color} for value, color in steps]


def to_mappings(states: States) -> list[dict[str, Any]]:
    """Words and colours for values."""
    options = {
        str(value): {"text": name, "color": color, "index": i}
        for i, (value, name, color) in enumerate(states)
    }
    return [{"type": "value", "options": options}]


def to_column(name: str, properties: list[dict[str, Any]]) -> dict[str, Any]:
    """An override for the column of that name."""
    return {"matcher": {"id": "byName", "options": name}, "properties": properties}
