"""Reads what is generated: the boards' queries with values for Grafana's variables, and the names in PromQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml

#: Values that Grafana would put in; the rate interval is what it makes of a scrape every 5 s, and a bit more.
_VALUES = {
    "$__rate_interval": "1m",
    "$__interval": "15s",
    "$__range": "30m",
    "$model": ".*",
    "$replica": ".*",
}


def board_queries(generated: Path) -> Iterator[tuple[str, str]]:
    """(name, PromQL that a Prometheus takes) of every query of every board: ``fleet: TTFT p99 A``."""
    for path in sorted(generated.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']} {target['refId']}", substituted(target["expr"])


def substituted(expr: str) -> str:
    """The query with a value for each of Grafana's variables. Raises ValueError if one has none here."""
    for variable, value in _VALUES.items():
        expr = re.sub(re.escape(variable) + r"\b", value, expr)
    if "$" in expr:
        raise ValueError(f"a variable without a value: {expr}")
    return expr


def rules(generated: Path) -> Iterator[dict[str, Any]]:
    """Every rule of every generated rule file."""
    for path in sorted(generated.glob("rules/*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def metrics_of(promql: str) -> set[str]:
    """Names of the metrics that a query selects. Raises ValueError if it is no PromQL."""
    found: set[str] = set()

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            found.add(node.name or next(m.value for m in node.matchers.matchers if m.name == "__name__"))
        return True

    promql_parser.walk(promql_parser.parse(promql), visit)
    return found
