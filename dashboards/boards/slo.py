"""SLO: how much of each error budget is left, how fast it burns, and which pool, model or tenant burns it.

From top to bottom: which objective needs a look now, the table with the worst of them, then burn rates over the four
pairs of windows with the limit of their alert, then what stands behind them: errors, requests, latencies. A burn
rate of 1 spends exactly the whole budget in its window. What an objective is stands in ``slos`` of exaserve.yaml, the
series come from ``rules/slo.py`` and ``rules/slo_budget.py``.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import signals
from dashboards import variables as of
from dashboards.board import Row, dashboard, firing, runbook, to_board
from dashboards.panels import stat, table, timeseries
from dashboards.rulefile import Links
from dashboards.rules import slo, slo_budget, usage, users
from dashboards.signals import Source

#: Rows of the table, lines of a panel.
_ROWS, _LINES = 40, 8
_QUIET = "no requests that an objective judges"
_SLO = 'slo=~"$slo"'

#: Columns of the worst come first.
_BURNT = [(None, "green"), (1, "orange"), (6, "red")]
_LEFT = [(None, "red"), (0.0001, "orange"), (0.25, "green")]


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(4, _glance(links, source)), (10, [_objectives(links, source)]), "Burn rate"]
    rows += [(8, [_burn(*windows, links, source) for windows in slo.BURNS])]
    rows += [
        "Budget",
        (8, _budget(links, source)),
        "Behind it",
        (8, _behind(source)),
        (8, _latencies(source)),
    ]
    if source.has_router:
        rows += ["By tenant", (9, _tenants(links))]
    return dashboard(
        "slo",
        "SLO",
        "How much of each error budget is left, how fast it burns, and who burns it.",
        rows,
        [
            *of.variables(source, "cluster", "model", "pool"),
            of.label_variable("slo", "slo", slo.OBJECTIVE),
        ],
        annotations=[firing()],
        start="now-6h",
        refresh="30s",
    )


def _chosen(source: Source) -> str:
    return f"{_SLO}, {of.pool(source)}"


def _by(source: Source) -> list[str]:
    return ["slo", "cluster", "model", *(["pool"] if source.has_router else [])]


def _legend(source: Source, more: str = "") -> str:
    return f"{{{{slo}}}}: {{{{model}}}}{' {{pool}}' if source.has_router else ''}{more}"


def _rate_of(series: str, matchers: str, at_end: bool = False) -> str:
    """A share of bad requests as a burn rate: 1 is what the objective allows."""
    at = " @ end()" if at_end else ""
    allowed = f"((1 - max by (slo) ({slo.OBJECTIVE}{{{_SLO}}}{at})) > 0)"
    return f"{series}{{{matchers}}}{at} / on (slo) group_left () {allowed}"


def _fastest(n: int, window: str, source: Source) -> str:
    """The n that burn fastest over ``window`` at the end of the time shown; right side of an ``and``."""
    return f"on ({', '.join(_by(source))}) topk({n}, {_rate_of(slo.error(window), _chosen(source), at_end=True)})"


def _glance(links: Links, source: Source) -> list[Any]:
    chosen, book = _chosen(source), [runbook(slo.ALERT, links)]
    return [
        stat(
            "Least budget left",
            "Of all chosen objectives and pools, the one that has the least of its error budget left. 0: spent; "
            "below: overspent.",
            "percentunit",
            f"min({slo_budget.BUDGET_LEFT}{{{chosen}}})",
            _LEFT,
            empty=_QUIET,
            decimals=1,
            links=book,
        ),
        stat(
            "First budget spent in",
            "When the first budget is spent if the errors of the last hour go on. Nothing is said while every "
            "objective is held.",
            "s",
            f"min({slo_budget.EXHAUSTED_IN}{{{chosen}}})",
            [(None, "red"), (86_400, "orange"), (604_800, "green")],
            empty="not at this rate",
            links=book,
        ),
        stat(
            "Fastest burn, 1 h",
            "How many times as fast as allowed the worst objective lost its budget in the last hour. The alert that "
            "pages speaks from 14.4 on for a budget of 30 days.",
            "none",
            f"max({_rate_of(slo.error('1h'), chosen)})",
            [(None, "green"), (1, "orange"), (14.4, "red")],
            empty=_QUIET,
            decimals=1,
            links=book,
        ),
        stat(
            "Budgets overspent",
            "Objectives of a pool that have nothing left of their budget.",
            "none",
            f"count({slo_budget.BUDGET_LEFT}{{{chosen}}} <= 0) or 0 * count({slo_budget.BUDGET_LEFT}{{{chosen}}})",
            [(None, "green"), (1, "red")],
            empty=_QUIET,
        ),
        stat(
            "Burn alerts",
            "Burn-rate alerts that fire now, those that page and those that only warn.",
            "none",
            f'count(ALERTS{{alertname="{slo.ALERT}", alertstate="firing", {chosen}}}) or vector(0)',
            [(None, "green"), (1, "red")],
            links=book,
        ),
        stat(
            "Requests failed",
            "Share of requests of the chosen pools over 5 minutes that failed for the service's fault; what the "
            "objective of kind availability counts.",
            "percentunit",
            signals.ratio(
                f"sum({signals.failed(signals.LONG)}{{{of.pool(source)}}})",
                f"sum({signals.requests(signals.LONG)}{{{of.pool(source)}}})",
            ),
            [(None, "green"), (0.001, "orange"), (0.01, "red")],
            empty="no requests in 5 minutes",
            decimals=2,
            links=[to_board("fleet", "Fleet board", links)],
        ),
    ]


def _objectives(links: Links, source: Source) -> Any:
    chosen, by = _chosen(source), _by(source)
    worst = f"and on ({', '.join(by)}) bottomk({_ROWS}, {slo_budget.BUDGET_LEFT}{{{chosen}}})"

    def row(series: str) -> str:
        return f"{series}{{{chosen}}} {worst}"

    burns = [
        (f"{_rate_of(slo.error(w), chosen)} {worst}", f"burn {w}", "none") for w in ("5m", "1h", "6h", "3d")
    ]
    return table(
        f"Objectives, the {_ROWS} with the least budget left",
        "One row for each objective, model and pool. Burn: how many times as fast as allowed the budget was lost in "
        "that time. Spent in: if the last hour goes on; empty while the objective is held. A pool without requests "
        "has no row.",
        [
            (
                f"max by (slo) ({slo.OBJECTIVE}{{{_SLO}}}) + on (slo) group_right () 0 * ({row(slo_budget.BUDGET_LEFT)})",
                "objective",
                "percentunit",
            ),
            (row(slo_budget.BUDGET_LEFT), "budget left", "percentunit"),
            (row(slo_budget.EXHAUSTED_IN), "spent in", "s"),
            *burns,
            (row(slo.error("1h")), "bad 1h", "percentunit"),
            (row(slo.COUNTED), "requests/s", "reqps"),
        ],
        by,
        empty=_QUIET,
        sort="budget left",
        ascending=True,
        steps={"budget left": _LEFT, **{name: _BURNT for _, name, _ in burns}},
        data_links={"model": to_board("fleet", "Fleet board", links)},
    )


def _burn(
    long: str, short: str, factor: float, severity: str, wait: str, links: Links, source: Source
) -> Any:
    chosen, fastest = _chosen(source), _fastest(_LINES // 2, long, source)
    does = "pages" if severity == "critical" else "warns"
    return timeseries(
        f"Burn over {long} and {short}",
        f"How many times as fast as allowed budgets were lost: the {_LINES // 2} that burn fastest. The alert {does} "
        f"after {wait} with both windows above the dashed limit of its objective ({factor:g} for 30 days), if there "
        "were enough requests. Falls below 1: the objective is held again.",
        "none",
        [
            (f"{_rate_of(slo.error(long), chosen)} and {fastest}", _legend(source, f" {long}")),
            (f"{_rate_of(slo.error(short), chosen)} and {fastest}", _legend(source, f" {short}")),
            (_rate_of(slo.LIMIT, f'{_SLO}, long_window="{long}"'), "{{slo}} limit"),
        ],
        dashed=".* limit$",
        empty=_QUIET,
        links=[runbook(slo.ALERT, links)],
    )


def _budget(links: Links, source: Source) -> list[Any]:
    chosen, by = _chosen(source), _by(source)
    return [
        timeseries(
            "Budget left",
            f"Share of the error budget that is left in the objective's window: the {_LINES} with least. It comes "
            "back as bad hours fall out of the window. Below 0 it is overspent.",
            "percentunit",
            [(of.top(_LINES, slo_budget.BUDGET_LEFT, chosen, bottom=True, on=by), _legend(source))],
            signed=True,
            empty=_QUIET,
            links=[runbook(slo.ALERT, links)],
        ),
        timeseries(
            "Time until the budget is spent",
            f"If the errors of the last hour went on, the {_LINES} that would be first. Drawn only while more fails "
            "than the objective allows.",
            "s",
            [(of.top(_LINES, slo_budget.EXHAUSTED_IN, chosen, bottom=True, on=by), _legend(source))],
            empty="every objective is held",
            log=True,
            links=[runbook(slo.ALERT, links)],
        ),
    ]


def _behind(source: Source) -> list[Any]:
    chosen, by = _chosen(source), _by(source)
    fastest = _fastest(_LINES, "1h", source)
    return [
        timeseries(
            "Bad share over 5 minutes",
            f"Share of what each objective judges that was bad, of the {_LINES} that burn fastest over an hour. An "
            "objective about gaps between tokens judges gaps, the others requests.",
            "percentunit",
            [(f"{slo.error('5m')}{{{chosen}}} and {fastest}", _legend(source))],
            empty=_QUIET,
        ),
        timeseries(
            "Requests judged",
            f"Requests per second behind each objective, the {_LINES} with most. Below min_requests in its window an "
            "alert keeps quiet.",
            "reqps",
            [(of.top(_LINES, slo.COUNTED, chosen, on=by), _legend(source))],
            empty=_QUIET,
        ),
        timeseries(
            "Bad ones",
            f"What was bad, per second, of the {_LINES} with most: requests, or gaps between tokens where the objective "
            "is about gaps.",
            "none",
            [(of.top(_LINES, slo.BAD, chosen, on=by), _legend(source))],
            empty=_QUIET,
        ),
    ]


def _latencies(source: Source) -> list[Any]:
    chosen = of.pool(source)
    by = [label for label in _by(source) if label != "slo"]
    shown = "{{model}}" + (" {{pool}}" if source.has_router else "")

    def panel(latency: str, title: str, q: float, what: str) -> Any:
        series = users.pool_quantile(latency, q)
        return timeseries(
            f"{title} p{q * 100:g}",
            f"{what}, over 5 minutes, of the {_LINES} slowest pools; dashed: the threshold of each objective of this "
            "kind. The objective's own share need not be this quantile.",
            "s",
            [
                (of.top(_LINES, series, chosen, on=by), shown),
                (f'{slo.THRESHOLD}{{kind="{latency}", {_SLO}}}', "{{slo}} threshold"),
            ],
            dashed=".* threshold",
            empty="no streams in this time" if latency != "e2e" else "no requests in this time",
        )

    return [
        panel("ttft", "Time to first token", 0.99, "99 % of streams had their first token within this time"),
        panel(
            "inter_token", "Between tokens", 0.99, "99 % of gaps between two pieces of a stream were shorter"
        ),
        panel("e2e", "Whole answer", 0.95, "95 % of requests were answered whole within this time"),
    ]


def _tenants(links: Links) -> list[Any]:
    chosen, by = f"{_SLO}, {of.MODEL}", ["slo", "cluster", "model", "tenant"]
    burn = _rate_of(usage.TENANT_ERROR, chosen)
    worst = f"on ({', '.join(by)}) topk(%d, {_rate_of(usage.TENANT_ERROR, chosen, at_end=True)})"
    return [
        table(
            "Tenants that are served worst",
            "The 20 tenants whose requests burn an objective fastest, over an hour. All tenants share a pool's "
            "budget; this says who feels it. Pools are not told apart.",
            [
                (f"{burn} and {worst % 20}", "burn 1h", "none"),
                (f"{usage.TENANT_ERROR}{{{chosen}}} and {worst % 20}", "bad 1h", "percentunit"),
                (f"{usage.TENANT_TOTAL}{{{chosen}}} and {worst % 20}", "judged/s", "none"),
            ],
            by,
            empty="no requests of a tenant in an hour",
            sort="burn 1h",
            steps={"burn 1h": _BURNT},
            data_links={"tenant": to_board("tenants", "Tenants board", links)},
        ),
        timeseries(
            "Burn by tenant, 1 h",
            f"How many times as fast as allowed each tenant's requests would lose a budget of their own: the {_LINES} "
            "that are served worst.",
            "none",
            [(f"{burn} and {worst % _LINES}", "{{slo}}: {{tenant}} {{model}}")],
            empty="no requests of a tenant in an hour",
        ),
    ]
