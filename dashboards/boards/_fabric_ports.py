"""InfiniBand and RoCE ports: state, traffic against the link's rate, congestion, retries, errors."""

from __future__ import annotations

from typing import Any

from dashboards import variables as of
from dashboards.board import Row, runbook
from dashboards.panels import Queries, state_timeline, table, timeseries
from dashboards.rulefile import Links
from dashboards.rules import fabric
from dashboards.rules import links as full

#: Matchers of what one node says.
NODE = f'{of.CLUSTER}, instance=~"$node"'
#: What one port is told apart by.
PORT = ("cluster", "instance", "device", "port")

_LINES, _ROWS = 8, 25
_NAME = "{{instance}} {{device}}/{{port}}"
_NONE = "no InfiniBand or RoCE port in this time"
_UNTOLD = "no port that tells it: which counters there are depends on the driver"
_WINDOW = "$__rate_interval"
_COUNTERS = "exaserve_infiniband_port"


def rows(links: Links) -> list[Row]:
    return [
        (8, _traffic()),
        (8, _congestion(links)),
        (8, _retries(links)),
        (8, _state(links)),
        (9, _ports(links)),
    ]


def _worst(
    title: str, description: str, unit: str, series: str, book: Any, more: Queries = (), **rest: Any
) -> Any:
    """The ports with most of a recorded series."""
    lines = [(of.top(_LINES, series, NODE, on=PORT), _NAME), *more]
    said = f"{description} The {_LINES} ports with most."
    return timeseries(title, said, unit, lines, links=book, **({"empty": _UNTOLD} | rest))


def _traffic() -> list[Any]:
    of_link = "As a share of what the link can carry in that direction; a link that is near 100 % for long is too small."
    total = (fabric.SENT_BYTES, fabric.RECEIVED_BYTES)
    sent, received = (f"sum by (cluster) ({series}{{{NODE}}})" for series in total)
    return [
        _worst("Sent, of the link's rate", of_link, "percentunit", full.SENT, [], empty=_NONE),
        _worst("Received, of the link's rate", of_link, "percentunit", full.RECEIVED, [], empty=_NONE),
        timeseries(
            "All ports together",
            "Bytes per second that the chosen ports send and receive. What replicas send each other counts in both.",
            "Bps",
            [(sent, "sent {{cluster}}"), (received, "received {{cluster}}")],
            empty=_NONE,
        ),
    ]


def _congestion(links: Links) -> list[Any]:
    book = [runbook(fabric.CONGESTED, links)]
    return [
        _worst(
            "Stalled",
            "Share of time in which there was data and no credit to send it; dashed: from where the alert speaks. An "
            "estimate; nothing is drawn while the port's counter is full.",
            "percentunit",
            fabric.STALL,
            book,
            [(f"{full.STALL_LIMIT}{{{of.CLUSTER}}}", "alert's threshold {{cluster}}")],
            dashed=".*threshold.*",
        ),
        _worst(
            "Congestion notifications",
            "RoCE: notifications that the port had to obey, per million packets sent. Above 0 somebody on the way "
            "is full; it is normal in moderation.",
            "none",
            fabric.CNP,
            book,
        ),
        _worst(
            "Receivers without a buffer",
            "Packets per second for which the port's own side had no buffer ready: the program there is too slow.",
            "none",
            fabric.STARVED,
            book,
        ),
    ]


def _retries(links: Links) -> list[Any]:
    gave_up = [runbook(fabric.GAVE_UP, links)]
    return [
        _worst(
            "Sent again",
            "Transport retries per second: time-outs, packets out of order, receivers not ready. Each costs a round "
            "trip; a few after a start are normal.",
            "none",
            fabric.RETRIES,
            gave_up,
        ),
        _worst(
            "The other side had no buffer",
            "Times per second in which the receiver of what this port sent was not ready. Look there, not here.",
            "none",
            fabric.PEER_STARVED,
            gave_up,
        ),
        _worst(
            "Connections given up",
            "Connections that were closed in 5 minutes because retries were used up; whatever used them has failed.",
            "none",
            fabric.EXCEEDED,
            gave_up,
        ),
    ]


def _state(links: Links) -> list[Any]:
    down, unstable = [runbook(fabric.PORT_DOWN, links)], [runbook(fabric.UNSTABLE, links)]
    states = [
        (1, "down", "red"),
        (2, "initialising", "orange"),
        (3, "armed", "orange"),
        (4, "active", "green"),
        (5, "deferred", "purple"),
    ]
    errors = (
        "symbol_errors",
        "receive_errors",
        "transmit_discards",
        "receive_discards",
        "receive_remote_physical_errors",
        "buffer_overrun_errors",
    )
    rates = [
        (
            f"sum by (cluster) (rate({_COUNTERS}_{name}_total{{{NODE}}}[{_WINDOW}]))",
            f"{name.replace('_', ' ')} {{{{cluster}}}}",
        )
        for name in errors
    ]
    state = f"{fabric.STATE}{{{NODE}}}"
    return [
        timeseries(
            "Ports by state",
            "How many ports are in each state, whole clusters. Only active ones carry anything; armed and "
            "initialising ones wait for the subnet manager.",
            "none",
            [(f"{full.PORTS}{{{of.CLUSTER}}}", "{{state}} {{cluster}}")],
            empty=_NONE,
            links=down,
        ),
        state_timeline(
            "Ports that are not active at the end",
            "Up to 20 of the ports whose state is not active at the end of the time shown, and what they were before.",
            f"{state} and on ({', '.join(PORT)}) topk(20, {state} @ end() != 4)",
            _NAME,
            states,
            empty="every port is active, or there is none",
            links=down,
        ),
        timeseries(
            "Links that went down or retrained",
            f"Times in 15 minutes, the {_LINES} ports with most: cable or transceiver, unless somebody restarted the "
            "other side.",
            "none",
            [
                (of.top(_LINES, fabric.DOWNED, NODE, on=PORT), f"{_NAME} down"),
                (of.top(_LINES, fabric.ERRORS, NODE, on=PORT), f"{_NAME} retrained"),
            ],
            empty=_UNTOLD,
            links=unstable,
        ),
        timeseries(
            "Errors and discards by kind",
            "Per second, all chosen ports together. Symbol errors are small and usual on long cables; discards and "
            "receive errors are lost packets.",
            "none",
            rates,
            empty=_UNTOLD,
            links=unstable,
        ),
    ]


def _ports(links: Links) -> list[Any]:
    rate = f"max by ({', '.join(PORT)}) ({_COUNTERS}_rate_bytes_per_second{{{NODE}}})"

    def column(series: str, of_worst: str) -> str:
        return f"{series}{{{NODE}}} and {_on(of_worst)}"

    def _on(of_worst: str) -> str:
        return f"on ({', '.join(PORT)}) topk({_ROWS}, {of_worst}{{{NODE}}})"

    return [
        (
            16,
            table(
                f"Ports, the {_ROWS} that send most",
                "Rate: what the link can carry in each direction. Shares are of it. Stalled: share of time without "
                "credit. Again: transport retries per second. Down: times in 15 minutes.",
                [
                    (f"{rate} and {_on(full.SENT)}", "rate", "Bps"),
                    (column(full.SENT, full.SENT), "sent", "percentunit"),
                    (column(full.RECEIVED, full.SENT), "received", "percentunit"),
                    (column(fabric.STALL, full.SENT), "stalled", "percentunit"),
                    (column(fabric.CNP, full.SENT), "CNPs per million", "none"),
                    (column(fabric.RETRIES, full.SENT), "again/s", "none"),
                    (column(fabric.DOWNED, full.SENT), "down", "none"),
                ],
                PORT,
                empty=_NONE,
                sort="sent",
                steps={"stalled": [(None, "green"), (fabric.STALLED / 2, "orange"), (fabric.STALLED, "red")]},
                data_links={"stalled": runbook(fabric.CONGESTED, links)},
            ),
        ),
        (
            8,
            table(
                "Counters that are full",
                "Ports with counters that have reached their end and count no more: their rates are 0 whatever "
                "happens. perfquery -R clears them.",
                [(f"topk({_ROWS}, {fabric.SATURATED}{{{NODE}}})", "counters", "none")],
                PORT,
                empty="no counter is full",
                sort="counters",
                data_links={"counters": runbook(fabric.FULL, links)},
            ),
        ),
    ]
