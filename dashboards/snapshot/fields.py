"""How a panel wants a series shown: its field defaults with the overrides that match the series' name or query."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboards.snapshot import colours, units


@dataclass(frozen=True)
class State:
    """A value, or what lies between two, as a word."""

    low: float
    high: float
    text: str
    colour: str | None


@dataclass
class Field:
    """One series' (or column's) looks. thresholds: (from which value, colour name), the first from -inf."""

    unit: units.Unit
    decimals: int | None = None
    colour: str | None = None
    by_threshold: bool = False
    dashed: bool = False
    fill: float = 0.0
    width: float = 1.0
    style: str = "line"
    stacked: bool = False
    hidden: bool = False
    name: str | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False
    coloured_text: bool = False
    empty: str = "no data"
    thresholds: list[tuple[float, str]] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)

    def text(self, value: float | None) -> str:
        """The value for people: its word where it is a state, else the number with its unit."""
        if value is None:
            return self.empty
        state = self.state(value)
        return state.text if state else units.text(value, self.unit, self.decimals)

    def state(self, value: float) -> State | None:
        return next((s for s in self.states if s.low <= value <= s.high), None)

    def threshold(self, value: float) -> str:
        """The name of the colour that a value has, by its state or by the thresholds."""
        state = self.state(value)
        if state and state.colour:
            return state.colour
        return next((name for least, name in reversed(self.thresholds) if value >= least), "text")


def of(panel: Mapping[str, Any], name: str, ref: str = "") -> Field:
    """The looks of the series of that name, which the query ``ref`` gave."""
    config = panel.get("fieldConfig", {})
    defaults = config.get("defaults", {})
    flat: dict[str, Any] = {k: v for k, v in defaults.items() if k != "custom"}
    flat |= {f"custom.{k}": v for k, v in defaults.get("custom", {}).items()}
    for override in config.get("overrides", ()):
        if _matches(override["matcher"], name, ref):
            flat |= {p["id"]: p.get("value") for p in override["properties"]}
    return _field(flat)


def _matches(matcher: Mapping[str, Any], name: str, ref: str) -> bool:
    kind, options = matcher["id"], matcher.get("options")
    if kind == "byName":
        return bool(options == name)
    if kind == "byRegexp":
        return _regex(str(options), name)
    if kind == "byFrameRefID":
        return bool(options == ref)
    return kind == "byNames" and name in (options or {}).get("names", ())


def _regex(pattern: str, name: str) -> bool:
    # Grafana: /…/ is a pattern, anything else is one too, anchored at both ends.
    inner = pattern[1:-1] if len(pattern) > 1 and pattern[0] == pattern[-1] == "/" else f"^(?:{pattern})$"
    try:
        return re.search(inner, name) is not None
    except re.error:
        return False


def _field(flat: Mapping[str, Any]) -> Field:
    color = flat.get("color") or {}
    fixed = color.get("fixedColor") if color.get("mode") == "fixed" else None
    dash = (flat.get("custom.lineStyle") or {}).get("fill")
    hide = flat.get("custom.hideFrom") or {}
    return Field(
        unit=units.unit(flat.get("unit") or "none"),
        decimals=flat.get("decimals"),
        colour=colours.css(fixed) if fixed else None,
        by_threshold=color.get("mode") == "thresholds",
        dashed=dash in ("dash", "dot"),
        fill=float(flat.get("custom.fillOpacity") or 0) / 100,
        width=float(flat.get("custom.lineWidth") or 1),
        style=flat.get("custom.drawStyle") or "line",
        stacked=(flat.get("custom.stacking") or {}).get("mode") == "normal",
        hidden=bool(hide.get("viz")),
        name=flat.get("displayName"),
        low=flat.get("min"),
        high=flat.get("max"),
        log=(flat.get("custom.scaleDistribution") or {}).get("type") == "log",
        coloured_text=(flat.get("custom.cellOptions") or {}).get("type")
        in ("color-text", "color-background"),
        empty=str(flat.get("noValue") or "no data"),
        thresholds=_thresholds((flat.get("thresholds") or {}).get("steps") or ()),
        states=_states(flat.get("mappings") or ()),
        links=list(flat.get("links") or ()),
    )


def _thresholds(steps: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    least = float("-inf")
    pairs = [(least if s.get("value") is None else float(s["value"]), str(s["color"])) for s in steps]
    return sorted(pairs, key=lambda pair: pair[0])


def _states(mappings: Sequence[Mapping[str, Any]]) -> list[State]:
    states = []
    for mapping in mappings:
        options = mapping.get("options") or {}
        if mapping["type"] == "value":
            for value, shown in options.items():
                try:
                    number = float(value)
                except ValueError:
                    continue
                states.append(State(number, number, str(shown.get("text", value)), shown.get("color")))
        elif mapping["type"] == "range":
            low, high = options.get("from"), options.get("to")
            shown = options.get("result") or {}
            edges = (float("-inf") if low is None else low, float("inf") if high is None else high)
            states.append(State(*edges, str(shown.get("text", "")), shown.get("color")))
    return states
