"""Capacity: how much more can the fleet take, how much work does it do, and when does it have to grow.

Opens with a day, and draws the last week beside it whatever time is chosen, since load has the rhythm of days. All of it
is recorded by model or cluster, so a week over 3,072 replicas is a few lines. What a GPU does is only where the exporter
reads GPUs; the others see work by replica (``_capacity_work.py``).
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import variables as of
from dashboards.board import Row, dashboard, firing, runbook, to_board
from dashboards.boards import _capacity_work as work
from dashboards.panels import stat, timeseries
from dashboards.rulefile import Links
from dashboards.rules import engine_alerts, kv, slo, spread, totals
from dashboards.signals import (
    KV_LARGEST,
    KV_REPLICAS,
    KV_TOTAL,
    KV_USED,
    LONG,
    Source,
    requests,
)

_WINDOW = "$__rate_interval"
_UNREAD = "no replica was read in this time"
_MODEL = "{{cluster}} {{model}}"
_DAY = 86_400


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(4, _glance(links)), "Headroom", (9, _headroom(links)), (8, _week(links, source))]
    rows += ["When it has to grow", (8, _signals(links, source)), (8, work.spread_out(links))]
    rows += ["Work", (8, work.tokens(links))]
    if source.has_router:
        rows += ["GPUs", (8, work.gpus(links))]
    return dashboard(
        "capacity",
        "Capacity",
        "How much more can the fleet take, how much work does it do, and when does it have to grow.",
        rows,
        of.variables(source, "cluster", "model", "pool"),
        annotations=[firing()],
        start="now-24h",
        refresh="1m",
    )


def _sum(series: str) -> str:
    return f"sum({series}{{{of.MODEL}}})"


def _free() -> str:
    """Share of what a model may use that is free, by cluster and model; below 0 beyond the threshold."""
    return f"1 - {KV_USED}{{{of.MODEL}}} / ({kv.THRESHOLD}{{{of.MODEL}}} > 0)"


def _glance(links: Links) -> list[Any]:
    pressure = [runbook(kv.ALERT, links)]
    left = (
        f"({kv.THRESHOLD}{{{of.MODEL}}} - {KV_USED}{{{of.MODEL}}}) "
        f"/ ({totals.KV_SLOPE}{{{of.MODEL}}} > 0) > 0"
    )
    return [
        stat(
            "KV headroom left",
            "Of what a model's replicas may use so that one of them can die, the share that is still free; the model "
            "that has least.",
            "percentunit",
            f"min({_free()})",
            [(None, "red"), (0, "orange"), (0.2, "green")],
            empty="no replica was read",
            links=pressure,
        ),
        stat(
            "Replicas that may die",
            "How many of a model's largest replicas its KV cache can lose now before it is fuller than 95 %; the model "
            "that can lose fewest.",
            "none",
            f"min(floor(({KV_TOTAL}{{{of.MODEL}}} - {KV_USED}{{{of.MODEL}}} / {kv.FULL}) "
            f"/ on (cluster, model) ({KV_LARGEST}{{{of.MODEL}}} > 0)))",
            [(None, "red"), (1, "orange"), (2, "green")],
            empty="no replica was read",
            links=pressure,
        ),
        stat(
            "Full at this rate in",
            "Until the first model is at its threshold if its KV cache goes on filling as in the last hour.",
            "s",
            f"min({left})",
            [(None, "red"), (1800, "orange"), (21600, "green")],
            empty="it is not filling",
            links=pressure,
        ),
        stat(
            "Replicas read",
            "Replicas of the chosen models whose engine is read.",
            "none",
            _sum(KV_REPLICAS),
            [(None, "blue")],
            empty="none",
        ),
        stat(
            "Running",
            "Requests in the batches of all chosen engines.",
            "none",
            _sum(totals.MODEL_RUNNING),
            [(None, "blue")],
            empty="no replica was read",
        ),
        stat(
            "Waiting now",
            "Requests that wait in the engines for a place in a batch.",
            "none",
            _sum(totals.MODEL_WAITING),
            [(None, "green"), (1, "orange")],
            empty="no replica was read",
            links=pressure,
        ),
        stat(
            "Tokens generated",
            "Tokens per second over a minute, all chosen models.",
            "none",
            _sum(totals.MODEL_GENERATION_TOKENS),
            [(None, "blue")],
            empty="no replica was read",
        ),
        stat(
            "Per replica",
            "Tokens generated per second, the mean of the chosen models' replicas.",
            "none",
            f"{_sum(totals.MODEL_GENERATION_TOKENS)} / ({_sum(KV_REPLICAS)} > 0)",
            [(None, "blue")],
            empty="no replica was read",
            decimals=1,
        ),
    ]


def _headroom(links: Links) -> list[Any]:
    pressure = [runbook(kv.ALERT, links), to_board("fleet", "Fleet board", links)]
    return [
        timeseries(
            "KV cache: used, threshold, all",
            f"Blocks in use by model (replicas' worth where only shares are known), all of them, and where {kv.ALERT} "
            "begins (dashed): 95 % of what is left without the largest replica.",
            "none",
            [
                (f"{KV_USED}{{{of.MODEL}}}", f"{_MODEL} used"),
                (f"{KV_TOTAL}{{{of.MODEL}}}", f"{_MODEL} all"),
                (f"{kv.THRESHOLD}{{{of.MODEL}}}", f"{_MODEL} threshold"),
            ],
            dashed=".* threshold",
            empty=_UNREAD,
            links=pressure,
        ),
        timeseries(
            "KV headroom by model",
            "Share of the threshold that is free. At 0 the loss of one replica makes requests wait; below, they may wait "
            "already.",
            "percentunit",
            [(_free(), _MODEL), ("vector(0)", "none left")],
            dashed="none left",
            signed=True,
            top=1,
            empty=_UNREAD,
            links=pressure,
        ),
        timeseries(
            "KV cache in 24 hours",
            "Where the straight line through the last 6 hours leads in a day, beside what is used now and the threshold "
            "(dashed). It knows no rhythm of the day: in the morning it says too much, in the evening too little.",
            "none",
            [
                (f"{KV_USED}{{{of.MODEL}}}", f"{_MODEL} used"),
                (f"clamp_min(predict_linear({KV_USED}{{{of.MODEL}}}[6h], {_DAY}), 0)", f"{_MODEL} in 24 h"),
                (f"{kv.THRESHOLD}{{{of.MODEL}}}", f"{_MODEL} threshold"),
            ],
            dashed=".* threshold",
            empty=_UNREAD,
            links=pressure,
        ),
    ]


def _week(links: Links, source: Source) -> list[Any]:
    chosen = of.pool(source)
    return [
        timeseries(
            "KV cache used, last 7 days",
            "Highest share of each model's KV blocks in use, whatever time is chosen above.",
            "percentunit",
            [(f"max_over_time({kv.MODEL_BUR}{{{of.MODEL}}}[{_WINDOW}])", _MODEL)],
            top=1,
            empty="no replica was read in the last 7 days",
            timeFrom="7d",
            links=[runbook(kv.ALERT, links)],
        ),
        timeseries(
            "Requests, last 7 days",
            "Most requests per second over 5 minutes that ended, by model, whatever time is chosen above.",
            "reqps",
            [
                (
                    f"sum by (cluster, model) (max_over_time({requests(LONG)}{{{chosen}}}[{_WINDOW}]))",
                    _MODEL,
                )
            ],
            empty="no requests in the last 7 days",
            timeFrom="7d",
        ),
        timeseries(
            "Requests: now and a week ago",
            "Requests per second over 5 minutes of all chosen models, the same time a week ago (dashed), and where the line "
            "through the last 6 hours leads in a day.",
            "reqps",
            [
                (f"sum({requests(LONG)}{{{chosen}}})", "now"),
                (f"sum({requests(LONG)}{{{chosen}}} offset 1w)", "a week ago"),
                (
                    f"clamp_min(sum(predict_linear({requests(LONG)}{{{chosen}}}[6h], {_DAY})), 0)",
                    "in 24 h by the line",
                ),
            ],
            dashed="a week ago",
            empty="no requests in this time",
        ),
    ]


def _signals(links: Links, source: Source) -> list[Any]:
    chosen, pressure = of.pool(source), [runbook(kv.ALERT, links)]
    waiting = [(f"{totals.MODEL_WAITING}{{{of.MODEL}}}", f"{_MODEL} in engines")]
    if source.has_router:
        pools = f'sum by (pool) (exaserve_router_waiting_requests{{{of.CLUSTER}, pool=~"$pool"}})'
        waiting.append((pools, "pool {{pool}} in the router"))
    queued = [(f"{spread.QUEUE_MEDIAN}{{{of.MODEL}}}", f"{_MODEL} median")]
    queued.append((f"{spread.QUEUE_MAX}{{{of.MODEL}}}", f"{_MODEL} longest"))
    panels = [
        timeseries(
            "Waiting",
            "Requests that wait for a place in a batch"
            + (", and those that the router holds back." if source.has_router else ".")
            + " The earliest sign that a model needs another replica.",
            "none",
            waiting,
            empty=_UNREAD,
            links=[runbook(engine_alerts.QUEUE, links), *pressure],
        ),
        timeseries(
            "Time in the engines' queues",
            "Means over 5 minutes by replica: their median, and the longest. The median rising is load; the longest alone "
            "is one replica.",
            "s",
            queued,
            links=[runbook(engine_alerts.QUEUE, links), to_board("fleet", "Fleet board", links)],
        ),
        timeseries(
            "Objectives missed",
            "Share of requests over 5 minutes outside each objective, of all chosen pools, and what it allows (dashed).",
            "percentunit",
            [
                (f"max by (slo) ({slo.error('5m')}{{{chosen}}})", "{{slo}}, worst pool"),
                (f"1 - {slo.OBJECTIVE}", "{{slo}} allows"),
            ],
            dashed=".* allows",
            links=[runbook(slo.ALERT, links), to_board("slo", "SLO board", links)],
        ),
    ]
    if source.has_router:
        panels.append(
            timeseries(
                "Active tokens",
                "Tokens whose keys and values the engines hold: used KV blocks times the tokens of a block. Memory for more "
                "of them is what a new replica brings.",
                "none",
                [(f"{totals.ACTIVE_TOKENS}{{{of.MODEL}}}", _MODEL)],
                empty="no exporter counts KV blocks",
                links=pressure,
            )
        )
    return panels
