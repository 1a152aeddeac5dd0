"""The Fleet board's lower half: replicas by state, over all, and the worst of them; the KV cache by model.

Never a line for each replica: counts by state and bucket are recorded, and a top N keeps its members all through the
time shown.
"""

from __future__ import annotations

from typing import Any

from dashboards import variables as of
from dashboards.board import REPLICA_OF_ROW, runbook, to_board, to_replica
from dashboards.panels import heat_map, table, timeseries
from dashboards.rulefile import Links
from dashboards.rules import engine_alerts, kv, replica, rotation, slo, spread, thresholds, totals
from dashboards.signals import (
    BUR,
    GENERATION_TOKENS,
    KV_TOTAL,
    KV_USED,
    QUEUE_TIME,
    REPLICA_INTER_TOKEN,
    REPLICA_TTFT,
    RUNNING,
    UP,
    WAITING,
    Source,
)

#: Lines in a top N, rows in a table of replicas.
_FEW, _ROWS = 10, 20
_NO_REPLICAS = "no replica has been read in this time"
_NO_STREAMS = "no streams in this time"

#: Colours of the states that replicas are in; ``up`` only where no router says more.
_COLOURS = {
    "ready": "green", "degraded": "orange", "starting": "blue", "draining": "yellow", "ejected": "semi-dark-red",
    "frozen": "purple", "down": "red", "up": "green",
}  # fmt: skip


def states(links: Links, source: Source) -> list[Any]:
    down = [runbook(replica.ALERT, links)]
    if source.has_router:
        down += [runbook(rotation.OUT, links), runbook(rotation.MANY, links)]
    order = [
        {
            "matcher": {"id": "byName", "options": state},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for state, colour in _COLOURS.items()
    ]
    counts = timeseries(
        "Replicas by state",
        "How many replicas are in each state, as the router's probes see them. Ready and degraded (slow probe) ones get "
        "requests. Two routers that disagree show a replica twice."
        if source.has_router
        else "How many replicas are up and down.",
        "none",
        [(f"sum by (state) ({totals.STATES}{{{of.MODEL}}} > 0)", "{{state}}")],
        stacked=True,
        empty="no replica is known",
        links=down,
    )
    counts.overrides.extend(order)
    bad = (
        f'max by (cluster, model, replica, state) (exaserve_replica_state{{state!~"ready|degraded", {of.REPLICA}}} == 1)'
        if source.has_router
        else f"{UP}{{{of.REPLICA}}} == 0"
    )
    labels = ["replica", "state", "model"] if source.has_router else ["replica", "model"]
    out = table(
        "Replicas that don't serve",
        f"Which replicas get no requests now ({_ROWS} at most). The name leads to the replica's board.",
        [(f"topk({_ROWS}, {bad})", "now", "none")],
        labels,
        empty="every replica serves",
        data_links={"replica": to_replica(links, REPLICA_OF_ROW)},
    )
    columns = [(of.top(_ROWS, REPLICA_TTFT, of.REPLICA), "TTFT", "s")]
    columns += [
        (of.beside(series, _ROWS, REPLICA_TTFT, of.REPLICA), name, unit)
        for series, name, unit in (
            (QUEUE_TIME, "queued", "s"),
            (REPLICA_INTER_TOKEN, "ITL", "s"),
            (RUNNING, "running", "none"),
            (WAITING, "waiting", "none"),
            (BUR, "BUR", "percentunit"),
        )
    ]
    slowest = table(
        "Slowest replicas",
        f"The {_ROWS} replicas that were slowest to the first token, by their engines' own means over 5 minutes, and "
        "what else they do. The name leads to the replica's board.",
        columns,
        ("replica", "model"),
        empty="no streams in the last 5 minutes",
        sort="TTFT",
        steps={
            "BUR": [(None, "text"), (0.7, "orange"), (0.95, "red")],
            "waiting": [(None, "text"), (1, "orange")],
        },
        data_links={"replica": to_replica(links, REPLICA_OF_ROW)},
        links=[runbook(thresholds.SLOW, links)],
    )
    return [(7, counts), (6, out), (11, slowest)]


def heat_maps(links: Links, source: Source) -> list[Any]:
    pressure = [runbook(kv.ALERT, links)]
    return [
        heat_map(
            "KV block utilisation of all replicas",
            "How many replicas use how much of their KV cache (BUR). One band: load is spread evenly; two: some replicas "
            "are full while others idle."
            + (" The router gives nothing new to one above kv_cache_watermark." if source.has_router else ""),
            "percentunit",
            f"sum by (le) ({spread.BUR_BUCKETS}{{{of.MODEL}}})",
            empty=_NO_REPLICAS,
            links=pressure,
        ),
        heat_map(
            "Requests running on all replicas",
            "How many replicas have how many requests in their batch; the lowest band is idle.",
            "none",
            f"sum by (le) ({spread.RUNNING_BUCKETS}{{{of.MODEL}}})",
            empty=_NO_REPLICAS,
            links=pressure,
        ),
        heat_map(
            "Time to first token of all replicas",
            "How many replicas had which mean over 5 minutes, as their engines measured it. A few far above the band "
            "are slow replicas; the whole band rising is load.",
            "s",
            f"sum by (le) ({spread.TTFT_BUCKETS}{{{of.MODEL}}})",
            empty=_NO_STREAMS,
            links=[runbook(slo.ALERT, links)],
        ),
    ]


def worst(links: Links) -> list[Any]:
    at = [to_replica(links)]
    return [
        timeseries(
            "Slowest to the first token",
            f"The {_FEW} replicas that are slowest at the end of the time shown, all through it. Dashed: the "
            "model's median, and from where a replica counts as an outlier (with four replicas or more). Means over 5 "
            "minutes by their engines.",
            "s",
            [
                (of.top(_FEW, REPLICA_TTFT, of.REPLICA), "{{replica}}"),
                (f"{thresholds.median('ttft')}{{{of.MODEL}}}", "{{model}} median"),
                (f"{thresholds.outlier('ttft')}{{{of.MODEL}}}", "{{model}} outlier threshold"),
            ],
            dashed=".* (median|threshold)",
            empty=_NO_STREAMS,
            data_links=at,
            links=[runbook(thresholds.SLOW, links)],
        ),
        timeseries(
            "Longest queues",
            f"The {_FEW} replicas whose requests waited longest in the engine, and the model's median (dashed).",
            "s",
            [
                (of.top(_FEW, QUEUE_TIME, of.REPLICA), "{{replica}}"),
                (f"{spread.QUEUE_MEDIAN}{{{of.MODEL}}}", "{{model}} median"),
            ],
            dashed=".* (median|threshold)",
            data_links=at,
            links=[runbook(engine_alerts.QUEUE, links)],
        ),
        timeseries(
            "Fullest KV caches",
            f"The {_FEW} replicas whose KV cache is fullest at the end of the time shown, and the model's median (dashed).",
            "percentunit",
            [
                (of.top(_FEW, BUR, of.REPLICA), "{{replica}}"),
                (f"{spread.BUR_MEDIAN}{{{of.MODEL}}}", "{{model}} median"),
            ],
            dashed=".* (median|threshold)",
            top=1,
            empty=_NO_REPLICAS,
            links=[runbook(kv.ALERT, links)],
            data_links=at,
        ),
        timeseries(
            "Least work",
            f"The {_FEW} replicas that generate the fewest tokens per second at the end of the time shown, and the "
            "model's median (dashed). One at 0 while the median works gets nothing, or hangs.",
            "none",
            [
                (of.top(_FEW, GENERATION_TOKENS, of.REPLICA, bottom=True), "{{replica}}"),
                (f"{spread.GENERATION_MEDIAN}{{{of.MODEL}}}", "{{model}} median"),
            ],
            dashed=".* (median|threshold)",
            empty=_NO_REPLICAS,
            links=[runbook(engine_alerts.STALLED, links), runbook(replica.ALERT, links)],
            data_links=at,
        ),
    ]


def kv_cache(links: Links) -> list[Any]:
    pressure = [runbook(kv.ALERT, links), to_board("capacity", "Capacity board", links)]
    return [
        timeseries(
            "KV cache used by model",
            f"Blocks in use (replicas' worth where only shares are known), and the threshold of {kv.ALERT}: 95 % of what "
            "is left without the largest replica (of all where there is one).",
            "none",
            [
                (f"{KV_USED}{{{of.MODEL}}}", "{{cluster}} {{model}} used"),
                (f"{kv.THRESHOLD}{{{of.MODEL}}}", "{{cluster}} {{model}} threshold"),
                (f"{KV_TOTAL}{{{of.MODEL}}}", "{{cluster}} {{model}} total"),
            ],
            dashed=".* threshold",
            empty=_NO_REPLICAS,
            links=pressure,
        ),
        timeseries(
            "Preemptions by model",
            "Requests per second that engines put back because their KV cache ran out; their work is done twice. Anything "
            "above 0 slows users.",
            "reqps",
            [(f"{totals.MODEL_PREEMPTIONS}{{{of.MODEL}}}", "{{cluster}} {{model}}")],
            empty=_NO_REPLICAS,
            links=[runbook(engine_alerts.STORM, links), *pressure],
        ),
        timeseries(
            "Running and waiting by model",
            "Requests in the engines' batches, and those that wait for a place in one. Waiting above 0 for long: the "
            "model's replicas are full.",
            "none",
            [
                (f"{totals.MODEL_RUNNING}{{{of.MODEL}}}", "{{cluster}} {{model}} running"),
                (f"{totals.MODEL_WAITING}{{{of.MODEL}}}", "{{cluster}} {{model}} waiting"),
            ],
            empty=_NO_REPLICAS,
            links=[runbook(engine_alerts.QUEUE, links), *pressure],
        ),
    ]
