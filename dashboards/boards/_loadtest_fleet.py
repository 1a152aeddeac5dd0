"""What the fleet itself says while a load test runs; there without one too."""

from __future__ import annotations

from typing import Any

from dashboards import signals
from dashboards import variables as of
from dashboards.board import runbook, to_board
from dashboards.panels import timeseries
from dashboards.rulefile import Links
from dashboards.rules import kv, totals
from dashboards.rules.slo import ALERT as BURN
from dashboards.signals import KV_USED, SHORT, Source

_NO_TRAFFIC = "the fleet had no requests in this time"
_UNREAD = "no engine was read in this time"


def panels(links: Links, source: Source) -> list[Any]:
    chosen = of.pool(source)
    requests, failed = (f"sum({rate(SHORT)}{{{chosen}}})" for rate in (signals.requests, signals.failed))
    to_fleet = [to_board("fleet", "Fleet board", links)]
    return [
        timeseries(
            "What users of the fleet see",
            "Requests per second over 1 minute, and failed ones, whoever sent them. More than the run offers means that "
            "it was not alone.",
            "reqps",
            [(requests, "requests"), (failed, "failed")],
            empty=_NO_TRAFFIC,
            links=[runbook(BURN, links), *to_fleet],
        ),
        timeseries(
            "TTFT, as the fleet measures it",
            "Over 1 minute, all chosen pools. Less than the client's by the way between them, and by what waited in the "
            "client.",
            "s",
            [(signals.quantile(q, "ttft", SHORT, (), chosen), f"p{q * 100:g}") for q in (0.5, 0.99)],
            empty="no streams in this time",
            links=to_fleet,
        ),
        timeseries(
            "Running and waiting",
            "Requests in the engines' batches, and those that wait for a place, by model. Waiting that grows: the "
            "capacity is reached.",
            "none",
            [
                (f"{totals.MODEL_RUNNING}{{{of.MODEL}}}", "{{model}} running"),
                (f"{totals.MODEL_WAITING}{{{of.MODEL}}}", "{{model}} waiting"),
            ],
            empty=_UNREAD,
            links=to_fleet,
        ),
        timeseries(
            "KV cache used, and its limit",
            f"In use by model ({source.kv_unit.removeprefix('%.0f ')}), and the threshold of the alert; with preemptions a "
            "run measures recomputation.",
            "none",
            [
                (f"{KV_USED}{{{of.MODEL}}}", "{{model}} used"),
                (f"{kv.THRESHOLD}{{{of.MODEL}}}", "{{model}} threshold"),
            ],
            dashed=".* threshold",
            empty=_UNREAD,
            links=[runbook(kv.ALERT, links), to_board("capacity", "Capacity board", links)],
        ),
        timeseries(
            "Preemptions",
            "Requests per second that engines put back because their KV cache ran out, by model.",
            "reqps",
            [(f"{totals.MODEL_PREEMPTIONS}{{{of.MODEL}}}", "{{model}}")],
            empty=_UNREAD,
            links=[runbook(kv.ALERT, links)],
        ),
    ]
