"""Fleet: are users fine, and which pool, model or replica is not; from top to bottom as on-call asks.

What users feel stands first, by pool, with what was promised to them drawn beside it. Then the replicas: never a line
for each, but counts, heat maps over all of them, and the few that are worst, from where a link leads to the replica's
own board (those panels: ``_fleet_replicas.py``). Every panel draws recorded series, so the board costs about the same
at 3,072 replicas as at 12.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import signals
from dashboards import variables as of
from dashboards.board import Row, dashboard, firing, runbook, to_board
from dashboards.boards import _fleet_replicas as replicas
from dashboards.panels import stat, table, timeseries
from dashboards.rulefile import Links
from dashboards.rules import bands, kv, nodes, replica, slo, slo_budget, totals, users, watchdog
from dashboards.signals import KV_USED, LONG, SHORT, UP, Source

#: Alerts that fire for other reasons than trouble: to prove that alerts arrive, and to silence others.
_HELPERS = f"{watchdog.ALERT}|{nodes.ON_DOWN}"
_NO_STREAMS = "no streams in this time"


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(4, _glance(links, source)), "Users"]
    rows += [(9, _tables(links, source)), (8, _latencies(links, source)), (8, _requests(links, source))]
    rows += [
        (8, _usual(links, source)),
        "Replicas",
        (9, replicas.states(links, source)),
        (8, replicas.heat_maps(links, source)),
        (9, replicas.worst(links)),
    ]
    rows += ["KV cache", (8, replicas.kv_cache(links))]
    return dashboard(
        "fleet",
        "Fleet",
        "Are users fine, and which pool, model or replica is not.",
        rows,
        of.variables(source, "cluster", "model", "pool", "replica"),
        annotations=[firing()],
    )


def _glance(links: Links, source: Source) -> list[Any]:
    chosen, burn = of.pool(source), [runbook(slo.ALERT, links), to_board("slo", "SLO board", links)]
    requests, failed = (f"sum({rate(LONG)}{{{chosen}}})" for rate in (signals.requests, signals.failed))
    return [
        stat(
            "Requests",
            "Requests that ended per second over 5 minutes; those whose client went away are left out.",
            "reqps",
            requests,
            [(None, "blue")],
            empty="no requests seen",
        ),
        stat(
            "Errors",
            "Share of requests over 5 minutes that failed for the service's fault: 5xx, or broken off after they had "
            "begun. Bad requests (4xx) and clients that went away don't count.",
            "percentunit",
            signals.ratio(failed, requests),
            [(None, "green"), (0.001, "orange"), (0.01, "red")],
            empty="no traffic",
            decimals=2,
            links=burn,
        ),
        stat(
            "TTFT p99",
            "99 % of streams over 5 minutes had their first token within this time after the whole request had "
            "come in, over all chosen pools.",
            "s",
            signals.quantile(0.99, "ttft", LONG, (), chosen),
            [(None, "green"), (2.5, "orange"), (10, "red")],
            empty="no streams",
            links=burn,
        ),
        stat(
            "Least error budget left",
            "Of all objectives of the chosen pools, the one that has the least of its error budget left. 0: spent; "
            "below: overspent.",
            "percentunit",
            f"min({slo_budget.BUDGET_LEFT}{{{chosen}}})",
            [(None, "red"), (0.0001, "orange"), (0.25, "green")],
            empty="no traffic yet",
            links=burn,
        ),
        stat(
            "Replicas serving",
            "Share of the replicas that serve now. Those that an operator drains count in neither part. How many, "
            "and in which state, is below.",
            "percentunit",
            f"avg({UP}{{{of.REPLICA}}})",
            [(None, "red"), (0.9, "orange"), (1, "green")],
            empty="no replica known",
            decimals=1,
            links=[runbook(replica.ALERT, links)],
        ),
        stat(
            "KV headroom left",
            "Of what a model's replicas may use so that one of them can die, the share that is still free; the model "
            "that has least. Below 0: the loss of one replica makes requests wait.",
            "percentunit",
            _headroom(),
            [(None, "red"), (0, "orange"), (0.2, "green")],
            empty="no replica was read",
            links=[runbook(kv.ALERT, links), to_board("capacity", "Capacity board", links)],
        ),
        stat(
            "Alerts firing",
            "Alerts of the chosen clusters that page or warn. Which: the table below.",
            "none",
            f'count(ALERTS{{alertname=~"ExaServe.+", alertstate="firing", severity=~"critical|warning", {of.CLUSTER}}})'
            " or vector(0)",
            [(None, "green"), (1, "red")],
        ),
        stat(
            "Requests waiting",
            "Requests that wait in the engines for a place in their batch.",
            "none",
            f"sum({totals.MODEL_WAITING}{{{of.MODEL}}})",
            [(None, "green"), (1, "orange")],
            empty="no engine was read",
            links=[runbook(kv.ALERT, links)],
        ),
    ]


def _headroom() -> str:
    return f"min(1 - {KV_USED}{{{of.MODEL}}} / ({kv.THRESHOLD}{{{of.MODEL}}} > 0))"


def _tables(links: Links, source: Source) -> list[Any]:
    by = ", ".join(_pools(source))
    chosen = of.pool(source)
    burning = f"max by ({by}) ({slo.error('1h')}{{{chosen}}} / on (slo) group_left () ((1 - max by (slo) ({slo.OBJECTIVE})) > 0))"
    pools = table(
        "Pools" if source.has_router else "Models",
        "Each pool's traffic, failures and latencies over 5 minutes, the fastest burn of its objectives over the last "
        "hour (1: as fast as promised allows; 14.4 pages), and the least error budget left."
        + ("" if source.has_router else " Plain engines have no pools: a row is a model."),
        [
            (f"sum by ({by}) ({signals.requests(LONG)}{{{chosen}}})", "requests", "reqps"),
            (f"max by ({by}) ({users.POOL_ERRORS}{{{chosen}}})", "errors", "percentunit"),
            (f"max by ({by}) ({users.pool_quantile('ttft', 0.99)}{{{chosen}}})", "TTFT p99", "s"),
            (f"max by ({by}) ({users.pool_quantile('inter_token', 0.99)}{{{chosen}}})", "ITL p99", "s"),
            (f"max by ({by}) ({users.pool_quantile('e2e', 0.95)}{{{chosen}}})", "e2e p95", "s"),
            (burning, "burn", "none"),
            (f"min by ({by}) ({slo_budget.BUDGET_LEFT}{{{chosen}}})", "budget left", "percentunit"),
        ],
        _pools(source),
        empty="no requests have been counted",
        sort="burn",
        steps={
            "errors": [(None, "text"), (0.001, "orange"), (0.01, "red")],
            "burn": [(None, "green"), (1, "orange"), (14.4, "red")],
            "budget left": [(None, "red"), (0.0001, "orange"), (0.25, "green")],
        },
        data_links={"burn": to_board("slo", "SLO board", links)},
    )
    runbooks = {
        "title": "Runbook: ${__data.fields.alertname}",
        "url": links.runbook("${__data.fields.alertname}"),
        "targetBlank": True,
    }
    alerts = table(
        "Alerts firing now",
        "Each alert of the chosen clusters that fires, by severity and model, and for how many series (replicas, links, "
        "objectives). The name leads to its runbook.",
        [
            (
                "count by (alertname, severity, model) "
                f'(ALERTS{{alertname=~"ExaServe.+", alertname!~"{_HELPERS}", alertstate="firing", {of.CLUSTER}}})',
                "series",
                "none",
            )
        ],
        ("alertname", "severity", "model"),
        empty="no alert fires",
        sort="severity",
        ascending=True,
        data_links={"alertname": runbooks},
    )
    return [(15, pools), (9, alerts)]


def _pools(source: Source) -> tuple[str, ...]:
    return ("cluster", "model", "pool") if source.has_router else ("cluster", "model")


def _latencies(links: Links, source: Source) -> list[Any]:
    burn = [runbook(slo.ALERT, links), to_board("slo", "SLO board", links)]
    ttft, itl, e2e = (
        [
            (f"{users.pool_quantile(kind, q, SHORT)}{{{of.pool(source)}}}", _legend(source)),
            (f'{slo.THRESHOLD}{{kind="{kind}"}}', "{{slo}} objective"),
        ]
        for kind, q in (("ttft", 0.99), ("inter_token", 0.99), ("e2e", 0.95))
    )
    return [
        timeseries(
            "Time to first token, p99",
            "From the whole request to a stream's first token, each pool's summed buckets over a minute. It rises first "
            "when prompts queue. Dashed: within this time an objective wants its share of requests.",
            "s",
            ttft,
            dashed=".* objective",
            empty=_NO_STREAMS,
            links=burn,
        ),
        timeseries(
            "Between tokens, p99",
            "Between two pieces of a stream, each pool's summed buckets over a minute. It rises when batches are large "
            "or requests are put back. Dashed: the objective.",
            "s",
            itl,
            dashed=".* objective",
            empty=_NO_STREAMS,
            links=burn,
        ),
        timeseries(
            "End to end, p95",
            "From the whole request to the end of its answer. It follows the length of answers; judge slowness by the "
            "other two. Dashed: the objective.",
            "s",
            e2e,
            dashed=".* objective",
            links=burn,
        ),
    ]


def _legend(source: Source) -> str:
    return "{{cluster}} {{model}} {{pool}}" if source.has_router else "{{cluster}} {{model}}"


def _requests(links: Links, source: Source) -> list[Any]:
    chosen, by = of.pool(source), ", ".join(_pools(source))
    panels = [
        timeseries(
            "Errors by pool" if source.has_router else "Errors by model",
            "Share of each pool's requests over 5 minutes that failed for the service's fault. Dashed: what the "
            "strictest objective allows on the whole.",
            "percentunit",
            [
                (f"{users.POOL_ERRORS}{{{chosen}}}", _legend(source)),
                (f"min(1 - {slo.OBJECTIVE})", "allowed by the strictest objective"),
            ],
            dashed="allowed .*",
            links=[runbook(slo.ALERT, links)],
        ),
        timeseries(
            "Requests by pool" if source.has_router else "Requests by model",
            "Requests that ended per second over a minute, those that failed too.",
            "reqps",
            [(f"sum by ({by}) ({signals.requests(SHORT)}{{{chosen}}})", _legend(source))],
            stacked=True,
            empty="no requests have been counted",
        ),
    ]
    if source.has_router:
        window = "$__rate_interval"
        refused = f'rate(exaserve_router_rejected_requests_total{{{of.CLUSTER}, pool=~"$pool"}}[{window}])'
        codes = f'rate(exaserve_router_requests_total{{{chosen}, code=~"4..|5.."}}[{window}])'
        panels.append(
            timeseries(
                "Failures and refusals",
                "Per second: answers by 4xx and 5xx, and requests that the router refused itself, by reason. 5xx are the "
                "service's failures, 4xx its clients' mistakes, limits of tenants, or clients that went away (499).",
                "reqps",
                [
                    (f"sum by (code) ({codes})", "{{code}}"),
                    (f"sum by (reason) ({refused})", "refused: {{reason}}"),
                ],
                empty="nothing failed and nothing was refused",
                links=[to_board("router", "Router board", links)],
            )
        )
    return panels


def _usual(links: Links, source: Source) -> list[Any]:
    chosen, unusual = of.pool(source), [runbook(bands.ALERT, links), to_board("slo", "SLO board", links)]

    def beside(series: str, signal: str) -> list[tuple[str, str]]:
        low, high = bands.band(signal, "lower"), bands.band(signal, "upper")
        return [
            (f"{series}{{{chosen}}}", _legend(source)),
            (f"{low}{{{chosen}}}", f"{_legend(source)} usually at least"),
            (f"{high}{{{chosen}}}", f"{_legend(source)} usually at most"),
        ]

    return [
        timeseries(
            "TTFT p95 and what is usual",
            "Over 5 minutes, and the band of the last day: its median and four times its spread around it (dashed, from an "
            "hour of history on).",
            "s",
            beside(users.pool_quantile("ttft", 0.95), "ttft"),
            dashed=".* usually .*",
            empty=_NO_STREAMS,
            links=unusual,
        ),
        timeseries(
            "Between tokens p95 and what is usual",
            "Over 5 minutes, and the band of the last day (dashed).",
            "s",
            beside(users.pool_quantile("inter_token", 0.95), "inter_token"),
            dashed=".* usually .*",
            empty=_NO_STREAMS,
            links=unusual,
        ),
        timeseries(
            "Requests and what is usual",
            "Requests per second over 5 minutes, and the band of the last day (dashed). Far below: something in front of the "
            "fleet fails, or clients gave up.",
            "reqps",
            beside(signals.requests(LONG), "requests"),
            dashed=".* usually .*",
            links=[to_board("capacity", "Capacity board", links)],
        ),
    ]
