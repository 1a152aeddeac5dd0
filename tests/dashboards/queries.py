"""Reads what is generated: the boards' queries with values for Grafana's variables, and the names in PromQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from dashboards import build
from dashboards.sources import SOURCES

#: Where each source's files are.
FOLDERS = {name: build.GENERATED / ("" if name == build.FIRST else name) for name in SOURCES}

#: Values that Grafana would put in; the rate interval is what it makes of a scrape every 5 s, and a bit more.
_BUILTIN = {"$__rate_interval": "1m", "$__interval": "15s", "$__range_s": "1800", "$__range": "30m"}


def boards(generated: Path) -> dict[str, dict[str, Any]]:
    """Every board of one source by its file's name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(generated.glob("*.json"))}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel, those of folded rows and the rows themselves too."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(``TTFT p99 A``, PromQL that a Prometheus takes) of every query of the board's panels."""
    variables = [v["name"] for v in board["templating"]["list"] if v["type"] != "datasource"]
    for panel in panels(board):
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", substituted(target["expr"], variables)


def board_queries(generated: Path) -> Iterator[tuple[str, str]]:
    """(name, PromQL) of every query of every board: ``fleet: TTFT p99 A``."""
    for name, board in boards(generated).items():
        for query, promql in queries(board):
            yield f"{name}: {query}", promql


def substituted(expr: str, variables: list[str]) -> str:
    """The query with a value for each of Grafana's variables. Raises ValueError if one has none here."""
    # A variable of which one value is chosen is matched by =; metrics in tests have the value "x" where none matters.
    expr = re.sub(r'="\$\{?(\w+)\}?"', lambda m: '="x"' if m[1] in variables else m[0], expr)
    for variable, value in (_BUILTIN | {f"${name}": ".*" for name in variables}).items():
        expr = re.sub(re.escape(variable) + r"\b", value, expr)
        expr = expr.replace("${" + variable[1:] + "}", value)
    if "$" in expr:
        raise ValueError(f"a variable without a value: {expr}")
    return expr


def rules(generated: Path) -> Iterator[dict[str, Any]]:
    """Every rule of every generated rule file of one source."""
    for path in sorted(generated.glob("rules/*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def selectors_of(promql: str) -> list[tuple[str, set[str]]]:
    """(metric, labels that are matched) of every selector of a query. Raises ValueError if it is no PromQL."""
    found = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            matchers = {m.name: m.value for m in node.matchers.matchers}
            found.append((node.name or matchers["__name__"], set(matchers)))
        return True

    promql_parser.walk(promql_parser.parse(promql), visit)
    return found


def metrics_of(promql: str) -> set[str]:
    """Names of the metrics that a query selects. Raises ValueError if it is no PromQL."""
    return {name for name, _ in selectors_of(promql)}


def label_values(generated: Path) -> dict[str, set[str]]:
    """Values of labels that the boards' queries ask for by name: ``a="b"``, ``a=~"b|c"``."""
    found: dict[str, set[str]] = {}
    for _, promql in board_queries(generated):
        for label, value in re.findall(r'(\w+)=~?"((?:[\w.]+\|)*[\w.]+)"', promql):
            found.setdefault(label, set()).update(value.split("|"))
    return found
