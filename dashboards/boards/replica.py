"""Replica: one engine in depth. Does it serve, what is in it, is it slower than its like, and why.

Every latency here is the engine's own word, beside the median of its model: what is wrong with one replica shows as
a distance to the others, what is wrong with all of them is the Fleet board's matter. Its processes and its node, as
the exporter reads them, are ``_replica_node.py``, what stands first ``_replica_state.py``; only ExaServe's fleets have them here, under the same name.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import variables as of
from dashboards.board import Row, annotation, dashboard, firing, runbook, to_board
from dashboards.boards import _replica_node as node
from dashboards.boards import _replica_state as state
from dashboards.panels import heat_map, timeseries
from dashboards.rulefile import Links
from dashboards.rules import engine_alerts, kv, rotation, spread, thresholds
from dashboards.rules import replica as rule
from dashboards.signals import (
    BUR,
    GENERATION_TOKENS,
    PREEMPTIONS,
    PREFIX_HITS,
    PROMPT_TOKENS,
    QUEUE_TIME,
    REPLICA_INTER_TOKEN,
    REPLICA_TTFT,
    RUNNING,
    UP,
    WAITING,
    Source,
    ratio,
)
from dashboards.sources import exaserve, ray, vllm

_WINDOW = "$__rate_interval"
#: Names of vLLM's own metrics in each source.
_ENGINES = {"exaserve": exaserve.ENGINES, "vllm": vllm.NAMES, "ray": ray.NAMES}
_UNREAD = "this replica's engine was not read in this time"
_IDLE = "this replica had no requests in this time"


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(4, state.glance(links, source))]
    rows += [(4, [state.timeline(links, source)]), "What is in it", (8, _requests(links, source))]
    rows += ["Latency, as the engine measured it", (8, _latency(links)), (8, _where(source))]
    rows += ["KV cache and work", (8, _kv(links, source))]
    if source.has_router:
        rows += [(8, _router(links)), "Its processes and its node", *node.rows(links)]
    return dashboard(
        "replica",
        "Replica",
        "One engine in depth: does it serve, what is in it, is it slower than its like, and why.",
        rows,
        of.variables(source, "cluster", "model", "replica", one_replica=True),
        annotations=[firing(), _changes()],
    )


def _changes() -> dict[str, Any]:
    began_or_ended = f"changes({UP}{{{of.REPLICA}}}[1m]) > 0"
    return annotation(
        "Went down or came back", f"max by (replica) ({began_or_ended})", "orange", "{{replica}}"
    )


def _requests(links: Links, source: Source) -> list[Any]:
    counts = [(f"{RUNNING}{{{of.REPLICA}}}", "running"), (f"{WAITING}{{{of.REPLICA}}}", "waiting")]
    in_flight = ("", "")
    if source.has_router:
        in_flight = (
            ", in flight",
            " In flight far above running and waiting: answers don't reach the router, or requests don't reach the engine.",
        )
        counts.append(
            (f"sum(exaserve_replica_in_flight_requests{{{of.REPLICA}}})", "in flight, by the router")
        )
    counts.append((f"{spread.RUNNING_MEDIAN}{{{of.MODEL}}}", "running, {{model}} median"))
    waiting, finished = (
        _engine(source, metric, ours)
        for metric, ours in (
            ("num_requests_waiting_by_reason", "exaserve_engine_requests_waiting_by_reason"),
            ("request_success_total", "exaserve_engine_requests_finished_total"),
        )
    )
    label = "reason" if source.has_router else "finished_reason"
    return [
        timeseries(
            f"Running, waiting{in_flight[0]}",
            "Requests in its batch, those that wait for a place in it, and the median batch of its model (dashed)."
            + in_flight[1],
            "none",
            counts,
            dashed=".* median",
            empty=_UNREAD,
            links=[runbook(engine_alerts.STALLED, links), runbook(kv.ALERT, links)],
        ),
        timeseries(
            "What requests wait for",
            "Waiting requests by what they wait for: capacity (KV blocks, a place in the batch), or deferred until "
            "something else is there (a transfer, a grammar).",
            "none",
            [(f"sum by (reason) ({waiting})", "{{reason}}")],
            stacked=True,
            empty="this engine does not say what requests wait for",
        ),
        timeseries(
            "Requests that ended",
            "Per second, by how they ended in the engine: stop and length are whole answers, abort is a client that went "
            "away, error the engine's failure.",
            "reqps",
            [(f"sum by ({label}) (rate({finished}[{_WINDOW}]))", f"{{{{{label}}}}}")],
            stacked=True,
            empty=_UNREAD,
            links=[runbook(engine_alerts.ERRORS, links)],
        ),
    ]


def _engine(source: Source, metric: str, ours: str) -> str:
    """Selector of the replica's own metric: the exporter's name for it, or vLLM's where there is no exporter."""
    return f"{ours}{{{of.REPLICA}}}" if source.has_router else _own(source, metric)


def _own(source: Source, metric: str) -> str:
    names = _ENGINES[source.name]
    return f'{names.name(metric)}{{{of.CLUSTER}, model_name=~"$model", {names.replica}=~"$replica"}}'


def _latency(links: Links) -> list[Any]:
    def beside(series: str, median: str, outlier: str = "") -> list[tuple[str, str]]:
        lines = [
            (f"{series}{{{of.REPLICA}}}", "{{replica}}"),
            (f"{median}{{{of.MODEL}}}", "{{model}} median"),
        ]
        return lines + ([(f"{outlier}{{{of.MODEL}}}", "{{model}} outlier threshold")] if outlier else [])

    shares = (
        (REPLICA_TTFT, thresholds.median("ttft"), "TTFT"),
        (REPLICA_INTER_TOKEN, thresholds.median("inter_token"), "between tokens"),
        (QUEUE_TIME, spread.QUEUE_MEDIAN, "queue"),
        (BUR, spread.BUR_MEDIAN, "KV cache used"),
        (RUNNING, spread.RUNNING_MEDIAN, "running"),
        (GENERATION_TOKENS, spread.GENERATION_MEDIAN, "tokens generated"),
    )
    against = [
        (f"{series}{{{of.REPLICA}}} / on (cluster, model) group_left () ({median}{{{of.MODEL}}} > 0)", name)
        for series, median, name in shares
    ]
    dashed = ".* (median|threshold)"
    return [
        timeseries(
            "Time to first token",
            "Mean over 5 minutes. Dashed: the median of its model's replicas, and from where it counts as an outlier (with "
            "four replicas or more).",
            "s",
            beside(REPLICA_TTFT, thresholds.median("ttft"), thresholds.outlier("ttft")),
            dashed=dashed,
            empty=_IDLE,
            links=[runbook(thresholds.SLOW, links)],
        ),
        timeseries(
            "Between tokens",
            "Mean over 5 minutes between two tokens of a request. Dashed: the median of its model's replicas, and from "
            "where it counts as an outlier.",
            "s",
            beside(REPLICA_INTER_TOKEN, thresholds.median("inter_token"), thresholds.outlier("inter_token")),
            dashed=dashed,
            empty=_IDLE,
            links=[runbook(thresholds.SLOW, links)],
        ),
        timeseries(
            "Time in the queue",
            "Mean over 5 minutes that requests waited in the engine before they were computed. Dashed: the median.",
            "s",
            beside(QUEUE_TIME, spread.QUEUE_MEDIAN),
            dashed=dashed,
            empty=_IDLE,
            links=[runbook(engine_alerts.QUEUE, links)],
        ),
        timeseries(
            "Against its model's median",
            "This replica over the median of its model: 1 is like the others. Slow with as much work as the others: the "
            "fault is its own. Slow with more work: the choice of replicas is skewed. Nothing where the median is 0.",
            "none",
            [*against, ("vector(1)", "the median")],
            dashed="the median",
            empty="nothing to compare with in this time",
            links=[runbook(thresholds.SLOW, links), to_board("fleet", "Fleet board", links)],
        ),
    ]


def _where(source: Source) -> list[Any]:
    def mean(metric: str) -> str:
        total, count = (
            f"sum(rate({_own(source, f'{metric}_{part}')}[{_WINDOW}]))" for part in ("sum", "count")
        )
        return ratio(total, count)

    phases = (("queue", "request_queue_time_seconds"), ("prefill", "request_prefill_time_seconds"),
              ("decode", "request_decode_time_seconds"))  # fmt: skip
    buckets = _own(source, "time_to_first_token_seconds_bucket")
    return [
        timeseries(
            "Where requests spend their time",
            "Means of the requests that ended: waiting, computing the prompt, writing the answer. Decode follows the "
            "length of answers.",
            "s",
            [(mean(metric), name) for name, metric in phases],
            stacked=True,
            empty=_IDLE,
        ),
        heat_map(
            "Times to first token",
            "How many requests per second had which time to their first token. Two bands: two kinds of prompts, or some "
            "that hit the prefix cache.",
            "s",
            f"sum by (le) (rate({buckets}[{_WINDOW}]))",
            counts="reqps",
            empty=_IDLE,
        ),
    ]


def _kv(links: Links, source: Source) -> list[Any]:
    pressure = [runbook(kv.ALERT, links)]
    panels = [
        timeseries(
            "KV block utilisation",
            "Share of its KV blocks in use (BUR), and the median of its model (dashed).",
            "percentunit",
            [
                (f"{BUR}{{{of.REPLICA}}}", "{{replica}}"),
                (f"{spread.BUR_MEDIAN}{{{of.MODEL}}}", "{{model}} median"),
            ],
            dashed=".* median",
            top=1,
            empty=_UNREAD,
            links=pressure,
        ),
        timeseries(
            "Preemptions",
            "Requests per second that it put back because its KV cache ran out; their work is done twice.",
            "reqps",
            [(f"{PREEMPTIONS}{{{of.REPLICA}}}", "{{replica}}")],
            empty=_UNREAD,
            links=[runbook(engine_alerts.STORM, links), *pressure],
        ),
        timeseries(
            "Prefix cache hits",
            "Share of prompt tokens found in the prefix cache over 5 minutes. It falls when sessions move to other "
            "replicas, or when the cache is too small for them.",
            "percentunit",
            [(f"{PREFIX_HITS}{{{of.REPLICA}}}", "{{replica}}")],
            top=1,
            empty=_IDLE,
        ),
        timeseries(
            "Tokens",
            "Prompt tokens computed (cached ones too) and tokens generated per second, and the median of its model "
            "(dashed).",
            "none",
            [
                (f"{PROMPT_TOKENS}{{{of.REPLICA}}}", "prompt"),
                (f"{GENERATION_TOKENS}{{{of.REPLICA}}}", "generated"),
                (f"{spread.GENERATION_MEDIAN}{{{of.MODEL}}}", "generated, {{model}} median"),
            ],
            dashed=".* median",
            empty=_UNREAD,
        ),
    ]
    return [*panels, node.transfers(links)] if source.has_router else panels


def _router(links: Links) -> list[Any]:
    down = [runbook(rule.ALERT, links)]
    return [
        timeseries(
            "Attempts by outcome",
            "The routers' attempts on it per second: ok, error (5xx), failed (nothing was sent yet), cut (in the middle of "
            "an answer), aborted (the client went away).",
            "reqps",
            [
                (
                    f"sum by (outcome) (rate(exaserve_replica_requests_total{{{of.REPLICA}}}[{_WINDOW}]))",
                    "{{outcome}}",
                )
            ],
            stacked=True,
            empty="no router sent it anything in this time",
            links=down,
        ),
        timeseries(
            "Probes by result",
            "The routers' inference probes per second. busy: it answered, but its queue is long; slow: above "
            "degraded_after.",
            "reqps",
            [
                (
                    f"sum by (result) (rate(exaserve_replica_probes_total{{{of.REPLICA}}}[{_WINDOW}]))",
                    "{{result}}",
                )
            ],
            stacked=True,
            empty="no router probed it in this time",
            links=[runbook(rotation.FROZEN, links), *down],
        ),
        timeseries(
            "Weight and ejections",
            "Its share of traffic against other replicas, which grows back after a restart or an ejection, and how often "
            "it was taken out in a minute for what its answers showed.",
            "none",
            [
                (f"min(exaserve_replica_weight{{{of.REPLICA}}})", "weight"),
                (
                    f"60 * sum(rate(exaserve_replica_ejections_total{{{of.REPLICA}}}[{_WINDOW}]))",
                    "ejections a minute",
                ),
            ],
            empty="no router knows it",
            links=[runbook(rotation.EJECTED, links), *down],
        ),
    ]
