"""Which routes of an Alertmanager's configuration take an alert, and how long each waits before it sends.

Alertmanager tells the receivers of an alert it holds, but no waits; these follow from its routing tree, as its
documentation describes it: depth first, the first child that matches, and its later siblings where it says continue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Alertmanager's defaults, in seconds.
_WAIT, _INTERVAL = 30.0, 300.0
_MATCHER = re.compile(r'\s*"?([^\s"=!~]+)"?\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*"|[^,]*)\s*(?:,|$)')
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}


@dataclass(frozen=True, slots=True)
class Route:
    """Where an alert ends. wait: seconds before a new group's first message; interval: before what joins it later.

    intervals: names of time intervals by which the route is muted or only active.
    """

    receiver: str
    wait: float
    interval: float
    intervals: tuple[str, ...]


def routes(config: Mapping[str, Any], labels: Mapping[str, str]) -> list[Route]:
    """Every route that takes an alert with these labels. config: Alertmanager's, as YAML has it."""
    return list(_below(config.get("route") or {}, labels, {}))


def _below(
    route: Mapping[str, Any], labels: Mapping[str, str], inherited: Mapping[str, Any]
) -> Iterator[Route]:
    own = {key: route[key] for key in ("receiver", "group_wait", "group_interval") if route.get(key)}
    settings = {**inherited, **own}
    taken = False
    for child in route.get("routes") or []:
        if _matches(child, labels):
            taken = True
            yield from _below(child, labels, settings)
            if not child.get("continue"):
                break
    if not taken:
        names = [*(route.get("mute_time_intervals") or []), *(route.get("active_time_intervals") or [])]
        wait, interval = settings.get("group_wait"), settings.get("group_interval")
        yield Route(
            str(settings.get("receiver", "")),
            _WAIT if wait is None else seconds(str(wait)),
            _INTERVAL if interval is None else seconds(str(interval)),
            tuple(names),
        )


def _matches(route: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = [(name, "=", str(value)) for name, value in (route.get("match") or {}).items()]
    wanted += [(name, "=~", str(value)) for name, value in (route.get("match_re") or {}).items()]
    for text in route.get("matchers") or []:
        wanted += [
            (name, op, _unquoted(value)) for name, op, value in _MATCHER.findall(text.strip().strip("{}"))
        ]
    return all(_holds(labels.get(name, ""), op, value) for name, op, value in wanted)


def _holds(label: str, op: str, value: str) -> bool:
    if op in ("=", "!="):
        return (label == value) == (op == "=")
    try:
        return bool(re.fullmatch(value, label)) == (op == "=~")
    except re.error:  # Go's expressions are nearly ours
        return False


def _unquoted(value: str) -> str:
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1].replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
    return value


def seconds(duration: str) -> float:
    """A duration as Prometheus writes it: 90s, 1m30s, 1h. 0.0 for what is none."""
    return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)(ms|[smhdwy])", duration))
