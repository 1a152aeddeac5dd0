"""The Replica board's first rows: its state now and over time, and the numbers that are looked at first."""

from __future__ import annotations

from typing import Any

from dashboards import variables as of
from dashboards.board import runbook, to_board
from dashboards.panels import stat, state_timeline
from dashboards.rulefile import Links
from dashboards.rules import kv
from dashboards.rules import replica as rule
from dashboards.signals import BUR, REPLICA_TTFT, RUNNING, UP, WAITING, Source

#: (value, state, colour); the value is only for drawing, the better state has the higher one.
_STATES = (
    (1, "down", "red"), (2, "frozen", "purple"), (3, "ejected", "semi-dark-red"), (4, "draining", "yellow"),
    (5, "starting", "blue"), (6, "degraded", "orange"), (7, "ready", "green"),
)  # fmt: skip
_UP = ((0, "down", "red"), (1, "up", "green"))


def glance(links: Links, source: Source) -> list[Any]:
    down, pressure = [runbook(rule.ALERT, links)], [runbook(kv.ALERT, links)]
    plain: list[tuple[float | None, str]] = [(None, "blue")]
    known = [
        stat(
            "State",
            "As the router's one-token inference probes, its requests and its silence show it."
            if source.has_router
            else "Up while its metrics can be read.",
            "none",
            _state(source),
            [(None, "text")],
            empty="no such replica",
            states=_STATES if source.has_router else _UP,
            links=down,
        ),
        stat(
            "Running",
            "Requests in its batch, computed at every step.",
            "none",
            f"{RUNNING}{{{of.REPLICA}}}",
            plain,
            empty="not read",
        ),
        stat(
            "Waiting",
            "Requests that wait in it for a place in its batch. Above 0 for long: it is full.",
            "none",
            f"{WAITING}{{{of.REPLICA}}}",
            [(None, "green"), (1, "orange")],
            empty="not read",
            links=pressure,
        ),
        stat(
            "KV cache used",
            "Share of its KV blocks in use (BUR). Near 1, requests wait or are put back.",
            "percentunit",
            f"{BUR}{{{of.REPLICA}}}",
            [(None, "green"), (0.7, "orange"), (0.95, "red")],
            empty="not read",
            links=pressure,
        ),
        stat(
            "TTFT",
            "Mean over 5 minutes from a request's arrival in the engine to its first token.",
            "s",
            f"{REPLICA_TTFT}{{{of.REPLICA}}}",
            [(None, "green"), (2.5, "orange"), (10, "red")],
            empty="no requests",
        ),
        stat(
            "Alerts on it",
            "Alerts that page or warn and name this replica.",
            "none",
            f'count(ALERTS{{alertname=~"ExaServe.+", alertstate="firing", severity=~"critical|warning", {of.NODE_REPLICA}}}) or vector(0)',
            [(None, "green"), (1, "red")],
            links=[to_board("fleet", "Fleet board", links)],
        ),
    ]
    if not source.has_router:
        return known
    of_router = [
        stat(
            "Last probe took",
            "The last one-token inference probe that passed. Above degraded_after the replica counts as degraded.",
            "s",
            f"max(exaserve_replica_probe_duration_seconds{{{of.REPLICA}}})",
            plain,
            empty="none passed yet",
            links=down,
        ),
        stat(
            "In flight",
            "Requests that the routers have open on it.",
            "none",
            f"sum(exaserve_replica_in_flight_requests{{{of.REPLICA}}})",
            plain,
            empty="no such replica",
        ),
    ]
    return [known[0], *of_router, *known[1:]]


def _state(source: Source) -> str:
    if not source.has_router:
        return f"{UP}{{{of.REPLICA}}}"
    values = " or ".join(
        f'{value} * exaserve_replica_state{{state="{state}", {of.REPLICA}}}' for value, state, _ in _STATES
    )
    return f"max by (replica) ({values})"


def timeline(links: Links, source: Source) -> Any:
    return state_timeline(
        "State over time",
        "Ready and degraded (slow probe) replicas get requests; the others don't. Two routers that disagree: the better "
        "state is drawn."
        if source.has_router
        else "Up while its metrics can be read; a hang is not seen by that.",
        _state(source),
        "{{replica}}",
        _STATES if source.has_router else _UP,
        empty="no such replica in this time",
        links=[runbook(rule.ALERT, links)],
    )
