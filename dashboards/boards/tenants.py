"""Tenants: who uses the fleet how much, who is slowed down by its limits, and who is served badly.

Usage first (requests, tokens, shares), then limits and refusals, then what each tenant gets: errors and latencies.
Panels show the tenants with most of what they are about; recorded series are by tenant and model (``rules/usage.py``).
No metric carries prices: money is the ledger's, ``exaserve audit``.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import variables as of
from dashboards.board import Row, dashboard, firing, runbook, to_board
from dashboards.panels import stat, table, text, timeseries
from dashboards.rulefile import Links
from dashboards.rules import admission, usage
from dashboards.signals import Source, ratio

_ROWS, _LINES = 30, 10
_CHOSEN = f'{of.MODEL}, tenant=~"$tenant"'
#: What was refused before it had a model.
_REFUSED = f'{of.CLUSTER}, tenant=~"$tenant"'
_NOBODY = "no requests in this time"
_NO_LIMIT = "no tenant met a limit in this time"

_COST = """
**Cost** is not on this board: no metric carries prices. The router's audit files have every request with its tenant,
model and tokens; with `prices:` in the tenants file (per million tokens)

    exaserve audit --since 30d --by tenant --by model

prints requests, tokens and cost of each. Tokens here are the same ones, as engines reported them; a request whose
answer broke off has none.
"""


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(4, _glance(links)), (10, [_table(links)]), "Usage", (8, _usage()), (8, _tokens())]
    rows += ["Limits and refusals", (8, _limits(links)), "What they get", (8, _service(links))]
    rows += [(5, [text("Cost", "Where money is: prices are in no metric.", _COST)])]
    return dashboard(
        "tenants",
        "Tenants",
        "Who uses the fleet how much, who meets limits, and who is served badly.",
        rows,
        [
            *of.variables(source, "cluster", "model"),
            of.label_variable("tenant", "tenant", f"{usage.TENANT_REQUESTS}{{{of.MODEL}}}"),
        ],
        annotations=[firing()],
        start="now-6h",
        refresh="30s",
    )


def _sum(series: str, matchers: str = _CHOSEN, at_end: bool = False) -> str:
    """By tenant, over models and clusters."""
    return f"sum by (tenant) ({series}{{{matchers}}}{' @ end()' if at_end else ''})"


def _kind(kind: str) -> str:
    return f'{_CHOSEN}, kind="{kind}"'


def _most(n: int, by: str) -> str:
    """The n tenants with most of ``by`` at the end of the time shown; right side of an ``and``."""
    return f"on (tenant) topk({n}, {by})"


def _busiest(n: int) -> str:
    return _most(n, _sum(usage.TENANT_REQUESTS, at_end=True))


def _errors() -> str:
    return ratio(_sum(usage.TENANT_FAILED), _sum(usage.TENANT_REQUESTS))


def _glance(links: Links) -> list[Any]:
    tokens = usage.TENANT_TOKENS
    everything = f"sum({tokens}{{{of.MODEL}}})"
    limited = f"sum({usage.TENANT_LIMITED}{{{_REFUSED}}})"
    return [
        stat(
            "Tenants with requests",
            "Tenants of the chosen that sent something in the last 5 minutes.",
            "none",
            f"count({_sum(usage.TENANT_REQUESTS)} > 0)",
            [(None, "blue")],
            empty="nobody",
        ),
        stat(
            "Requests",
            "Requests of the chosen tenants that ended, per second over 5 minutes, refused ones included.",
            "reqps",
            f"sum({usage.TENANT_REQUESTS}{{{_CHOSEN}}})",
            [(None, "blue")],
            empty=_NOBODY,
        ),
        stat(
            "Tokens",
            "Input and output tokens per second over 5 minutes, as engines reported them.",
            "none",
            f"sum({tokens}{{{_CHOSEN}}})",
            [(None, "blue")],
            empty="no tokens",
            decimals=0,
        ),
        stat(
            "Largest share",
            "Share of all tokens over 5 minutes that the largest of the chosen tenants took.",
            "percentunit",
            ratio(f"max({_sum(tokens)})", everything),
            [(None, "green"), (0.5, "orange"), (0.9, "red")],
            empty="no tokens",
            decimals=0,
        ),
        stat(
            "Refused by limits",
            "Requests per second over 5 minutes that were refused because their tenant was over a limit of its own.",
            "reqps",
            f"{limited} or 0 * max(exaserve_router_build_info{{{of.CLUSTER}}})",
            [(None, "green"), (0.001, "orange")],
            empty="no router known",
            links=[runbook(admission.LIMITED, links)],
        ),
        stat(
            "Worst error share",
            "Of the chosen tenants, the one with the largest share of its requests failed for the service's fault "
            "over 5 minutes.",
            "percentunit",
            f"max({_errors()})",
            [(None, "green"), (0.001, "orange"), (0.01, "red")],
            empty=_NOBODY,
            decimals=2,
            links=[to_board("slo", "SLO board", links)],
        ),
    ]


def _table(links: Links) -> Any:
    rows = _busiest(_ROWS)
    everything = f"sum({usage.TENANT_REQUESTS}{{{of.MODEL}}})"
    limited = f"sum by (tenant) ({usage.TENANT_LIMITED}{{{_REFUSED}}})"

    def used(kind: str) -> str:
        # The router's own series have the label empty where the recorded ones have a name.
        chosen = f'{of.MODEL}, tenant=~"$tenant|", kind="{kind}"'
        spent = f"sum by (tenant) (increase(exaserve_router_tokens_total{{{chosen}}}[$__range]))"
        return f'label_replace({spent}, "tenant", "{usage.NONE}", "tenant", "")'

    def worst(series: str) -> str:
        return f"max by (tenant) ({series}{{{_CHOSEN}}}) and {rows}"

    return table(
        f"Tenants, the {_ROWS} with most requests",
        "Rates and latencies over 5 minutes, tokens over the whole time shown. Latencies are p95 of the tenant's "
        "slowest model. Share: of all requests of the chosen models. Limited: refused for a limit of the tenant; empty: "
        "never.",
        [
            (f"{_sum(usage.TENANT_REQUESTS)} and {rows}", "requests/s", "reqps"),
            (
                f"{_sum(usage.TENANT_REQUESTS)} / on () group_left () ({everything} > 0) and {rows}",
                "share",
                "percentunit",
            ),
            (f"{used('input')} and {rows}", "tokens in", "short"),
            (f"{used('output')} and {rows}", "tokens out", "short"),
            (f"{_errors()} and {rows}", "errors", "percentunit"),
            (worst(usage.TENANT_TTFT), "TTFT p95", "s"),
            (worst(usage.TENANT_E2E), "answer p95", "s"),
            (f"{limited} and {rows}", "limited/s", "reqps"),
        ],
        ["tenant"],
        empty=_NOBODY,
        sort="requests/s",
        steps={"errors": [(None, "green"), (0.001, "orange"), (0.01, "red")]},
        data_links={"errors": to_board("slo", "SLO board", links)},
    )


def _usage() -> list[Any]:
    everything = f"sum({usage.TENANT_REQUESTS}{{{of.MODEL}}})"
    return [
        timeseries(
            "Requests by tenant",
            f"Requests that ended per second, the {_LINES} tenants with most, on top of each other.",
            "reqps",
            [(f"{_sum(usage.TENANT_REQUESTS)} and {_busiest(_LINES)}", "{{tenant}}")],
            stacked=True,
            empty=_NOBODY,
        ),
        timeseries(
            "Share of the fleet's requests",
            f"Of all requests of the chosen models, what each of the {_LINES} largest tenants sent. One that climbs "
            "while the others fall crowds them out.",
            "percentunit",
            [
                (
                    f"{_sum(usage.TENANT_REQUESTS)} / on () group_left () ({everything} > 0)"
                    f" and {_busiest(_LINES)}",
                    "{{tenant}}",
                )
            ],
            top=1,
            empty=_NOBODY,
        ),
    ]


def _tokens() -> list[Any]:
    def panel(kind: str, title: str, what: str) -> Any:
        most = _most(_LINES, _sum(usage.TENANT_TOKENS, _kind(kind), at_end=True))
        return timeseries(
            title,
            f"{what} per second, as engines reported them, the {_LINES} tenants with most.",
            "none",
            [(f"{_sum(usage.TENANT_TOKENS, _kind(kind))} and {most}", "{{tenant}}")],
            stacked=True,
            empty="no tokens were reported in this time",
        )

    return [
        panel("input", "Tokens in, by tenant", "Prompt tokens: they cost prefill"),
        panel("output", "Tokens out, by tenant", "Generated tokens: they cost decode steps and KV blocks"),
    ]


def _limits(links: Links) -> list[Any]:
    def most(series: str, label: str) -> str:
        return of.top(_LINES, series, _REFUSED, on=("cluster", "tenant", label))

    return [
        timeseries(
            "Over their own limits",
            "Requests per second over 5 minutes refused with 429 for a limit of the tenant (requests, tokens, "
            f"in_flight, max_tokens), the {_LINES} most. The client is told when to come back.",
            "reqps",
            [(most(usage.TENANT_LIMITED, "limit"), "{{tenant}}: {{limit}}")],
            empty=_NO_LIMIT,
            links=[runbook(admission.LIMITED, links)],
        ),
        timeseries(
            "Refused by the router, by reason",
            f"Requests per second over 5 minutes that the router refused itself, the {_LINES} largest pairs of tenant "
            "and reason. Reasons of capacity are the fleet's matter, the others the client's.",
            "reqps",
            [(most(usage.TENANT_REFUSED, "reason"), "{{tenant}} {{reason}}")],
            empty="nothing was refused in this time",
            links=[runbook(admission.REFUSED, links), runbook(admission.SCHEMA, links)],
        ),
    ]


def _service(links: Links) -> list[Any]:
    slo = [to_board("slo", "SLO board", links)]

    def slowest(series: str) -> str:
        return of.top(_LINES, series, _CHOSEN, on=("cluster", "model", "tenant"))

    return [
        timeseries(
            "Errors by tenant",
            f"Share of each tenant's requests over 5 minutes that failed for the service's fault; the {_LINES} with "
            "most requests.",
            "percentunit",
            [(f"{_errors()} and {_busiest(_LINES)}", "{{tenant}}")],
            empty=_NOBODY,
            links=slo,
        ),
        timeseries(
            "Time to first token by tenant, p95",
            f"Of streams over 5 minutes, by tenant and model; the {_LINES} slowest. A tenant with long prompts is "
            "slower without anything being wrong.",
            "s",
            [(slowest(usage.TENANT_TTFT), "{{tenant}} {{model}}")],
            empty="no streams in this time",
            links=slo,
        ),
        timeseries(
            "Whole answer by tenant, p95",
            f"From the whole request to the end of its answer over 5 minutes, by tenant and model; the {_LINES} "
            "slowest. It follows the length of answers.",
            "s",
            [(slowest(usage.TENANT_E2E), "{{tenant}} {{model}}")],
            empty=_NOBODY,
            links=slo,
        ),
    ]
