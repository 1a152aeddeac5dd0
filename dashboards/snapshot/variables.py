"""Values for a board's variables, and what queries and titles become with them.

In a query a value is a regular expression inside a PromQL string, as Grafana writes it: several values are
``(a|b)``, All is the variable's own ``allValue``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from dashboards.snapshot.prometheus import Prometheus, QueryError
from dashboards.snapshot.span import Span

ALL = "All"
_USE = re.compile(r"\$(\w+)|\$\{(\w+)(?::\w+)?\}|\[\[(\w+)\]\]")
_LABEL_VALUES = re.compile(r"\s*label_values\((?:(.*),)?\s*([a-zA-Z_]\w*)\s*\)\s*", re.DOTALL)
#: What is special in a regular expression of Prometheus.
_SPECIAL = re.compile(r"[\\^$*+?.()|\[\]{}]")


@dataclass(frozen=True)
class Value:
    """A variable's value. query: for PromQL; text: for people; note: what the reader should know of it, or "".

    chosen: the values themselves, for addresses; none for All.
    """

    query: str
    text: str
    note: str = ""
    chosen: tuple[str, ...] = ()


def chosen(
    board: Mapping[str, Any], given: Mapping[str, Sequence[str]], prometheus: Prometheus, span: Span
) -> dict[str, Value]:
    """The value of each variable of the board: the given ones, else All, else the first that there is.

    A given variable that the board does not have is left out. Raises ValueError for several values where one is
    meant; QueryError if Prometheus does not say which values there are.
    """
    values: dict[str, Value] = {}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            name = variable["name"]
            values[name] = _one(variable, list(given.get(name, ())), values, prometheus, span)
    return values


def names(board: Mapping[str, Any]) -> set[str]:
    """The variables that ``chosen`` gives values."""
    return {v["name"] for v in board["templating"]["list"] if v["type"] == "query"}


def in_query(expr: str, values: Mapping[str, Value], span: Span) -> str:
    """The query as Prometheus takes it; what is no variable (``$1`` of label_replace) stays."""
    own = {name: value.query for name, value in values.items()}
    return _put(expr, own | span.grafana())


def in_text(text: str, values: Mapping[str, Value], span: Span) -> str:
    """A title or a text with the values for people."""
    own = {name: value.text for name, value in values.items()}
    return _put(text, own | span.grafana())


def in_address(url: str, values: Mapping[str, Value], span: Span) -> str:
    """A link's address for Grafana: ``${__url_time_range}`` and ``${name:queryparam}`` with what is shown here."""

    def part(match: re.Match[str]) -> str:
        if match[1] == "__url_time_range":
            return f"from={span.start * 1000:.0f}&to={span.end * 1000:.0f}"
        if match[1] not in values:
            return ""
        chosen = values[match[1]].chosen or ("$__all",)
        return "&".join(f"var-{match[1]}={quote(value, safe='')}" for value in chosen)

    return re.sub("&+", "&", re.sub(r"\$\{([\w.]+)(?::queryparam)?\}", part, url)).rstrip("&?")


def regex(values: Sequence[str]) -> str:
    """A regular expression for exactly these values, escaped for a PromQL string in double quotes."""
    whole = "|".join(_SPECIAL.sub(r"\\\g<0>", value) for value in values)
    whole = f"({whole})" if len(values) > 1 else whole
    return whole.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _one(
    variable: Mapping[str, Any],
    given: list[str],
    before: Mapping[str, Value],
    prometheus: Prometheus,
    span: Span,
) -> Value:
    name, several = variable["name"], bool(variable.get("multi"))
    wants_all = variable.get("includeAll", False) and (not given or given in ([ALL], ["$__all"]))
    if wants_all and variable.get("allValue"):
        return Value(variable["allValue"], ALL)
    if len(given) > 1 and not several:
        raise ValueError(f"--var {name}: this board shows one {name} at a time")
    there = _there(variable, before, prometheus, span)
    if wants_all:
        return Value(regex(there) if there else ".*", ALL)
    if given:
        missing = [value for value in given if value not in there]
        note = f"no series with {name} {', '.join(missing)} in this time" if missing else ""
        return Value(regex(given), " + ".join(given), note, tuple(given))
    if not there:
        return Value("", "none", f"there is no {name} in this time")
    note = f"the first of {len(there)}; choose with --var {name}=…" if len(there) > 1 else ""
    return Value(regex(there[:1]), there[0], note, (there[0],))


def _there(
    variable: Mapping[str, Any], before: Mapping[str, Value], prometheus: Prometheus, span: Span
) -> list[str]:
    query = variable["query"]
    match = _LABEL_VALUES.fullmatch(query["query"] if isinstance(query, dict) else query)
    if not match:
        raise QueryError(f"the variable {variable['name']} asks for something else than label_values")
    selector = in_query(match[1].strip(), before, span) if match[1] else f'{{{match[2]}!=""}}'
    return prometheus.values(match[2], selector, span)


def _put(text: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2] or match[3], match[0])

    return _USE.sub(value, text)
