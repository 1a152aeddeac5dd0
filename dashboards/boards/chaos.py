"""Chaos: which faults were in when, how fast the fleet noticed, went around them and was itself again.

Faults are marks on every panel of the board. The figures of each run stand in tables, beside what the experiment
allows; below is what users and the fleet felt. The series of the experiments are declared in
``exporters/catalog/chaos.py``; ``exaserve chaos run`` exports them while it lasts.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import signals
from dashboards import variables as of
from dashboards.board import Row, annotation, dashboard, firing, runbook, to_board
from dashboards.panels import stat, state_timeline, table, text, timeseries
from dashboards.rulefile import Links
from dashboards.rules import replica, slo, totals, users
from dashboards.signals import SHORT, UP, Source
from exporters.catalog.chaos import FIGURES

_METRIC = "exaserve_chaos_"
#: What experiments say of themselves may come from outside of every cluster.
_CHOSEN = 'cluster=~"$cluster|", experiment=~"$experiment"'
_NONE = "no experiment has run in this time"
_NO_TRAFFIC = "no requests in this time"
_RUN, _FAULT = "experiment, run", "experiment, run, fault, target"

_HOW = """
**Faults** are the shaded marks on every panel; alerts that fire are the red ones. All figures count from the moment of
injection. A figure that is missing in a row never came, or not within the run. Choose the time so that the runs you
want are in it: tables show the runs of the time shown.
"""

_NAMES = {
    "detection": "noticed",
    "reroute": "rerouted",
    "slo_recovery": "objective back",
    "capacity_recovery": "capacity back",
}


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(3, [text("How to read it", "What is shown, and where from.", _HOW)]), (4, _glance())]
    rows += [
        (5, [_faults()]),
        "Detection and recovery",
        (9, [(15, _runs()), (9, _losses())]),
        (8, [_against_goals()]),
    ]
    rows += ["What users felt", (8, _users(links, source)), "What the fleet did", (8, _fleet(links, source))]
    return dashboard(
        "chaos",
        "Chaos",
        "Which faults were in when, how fast the fleet noticed, went around them and was itself again.",
        rows,
        [
            *of.variables(source, "cluster", "model", "pool"),
            of.label_variable("experiment", "experiment", f"{_METRIC}run_state"),
        ],
        annotations=[_marks(), firing()],
        start="now-1h",
    )


def _marks() -> dict[str, Any]:
    active = f"max by (experiment, fault, target) ({_METRIC}fault_active{{{_CHOSEN}}}) == 1"
    return annotation("Faults", active, "purple", "{{fault}} on {{target}}", "{{experiment}}")


def _last(metric: str, more: str = "") -> str:
    """The last word of each run in the time shown."""
    return f"last_over_time({_METRIC}{metric}{{{_CHOSEN}{more}}}[$__range])"


def _glance() -> list[Any]:
    def runs(state: str) -> str:
        known = f"count(count by ({_RUN}) ({_last('run_state')}))"
        chosen = f', state="{state}"'
        return f"count(max by ({_RUN}) ({_last('run_state', chosen)}) == 1) or 0 * {known}"

    return [
        stat(
            "Faults in now",
            "Faults that are in at this moment, by their own proof.",
            "none",
            f"sum({_METRIC}fault_active{{{_CHOSEN}}})",
            [(None, "green"), (1, "purple")],
            empty="no experiment runs",
        ),
        stat(
            "Not undone",
            "Faults whose undoing is still due. Above 0 while no experiment runs, something is left behind: exaserve "
            "chaos recover.",
            "none",
            f"sum({_METRIC}undo_pending{{{_CHOSEN}}})",
            [(None, "green"), (1, "red")],
            empty="no experiment runs",
        ),
        stat(
            "Runs passed",
            "Runs in the time shown that held what their experiment expects.",
            "none",
            runs("passed"),
            [(None, "green")],
            empty=_NONE,
        ),
        stat(
            "Runs failed",
            "Runs in the time shown that did not.",
            "none",
            runs("failed"),
            [(None, "green"), (1, "red")],
            empty=_NONE,
        ),
        stat(
            "Runs void",
            "Runs in the time shown that say nothing: the fleet was not healthy before, or the fault was not proven.",
            "none",
            runs("void"),
            [(None, "green"), (1, "orange")],
            empty=_NONE,
        ),
        stat(
            "Slowest return to the objective",
            "Longest time from an injection until users had their objective again, of the runs in the time shown.",
            "s",
            f"max({_last('slo_recovery_seconds')})",
            [(None, "blue")],
            empty=_NONE,
        ),
        stat(
            "Requests lost",
            "Requests of the load that failed before anything of their answer had come, all runs of the time shown.",
            "none",
            f"sum(max by ({_RUN}) ({_last('lost_requests_total')}))",
            [(None, "green"), (1, "red")],
            empty=_NONE,
        ),
    ]


def _faults() -> Any:
    return state_timeline(
        "Faults",
        "Each fault while its run lasts: when it was in, by its own proof.",
        f"max by (experiment, fault, target) ({_METRIC}fault_active{{{_CHOSEN}}})",
        "{{experiment}}: {{fault}} on {{target}}",
        [(0, "out", "green"), (1, "in", "purple")],
        empty=_NONE,
    )


def _runs() -> Any:
    def column(metric: str) -> str:
        return f"max by ({_FAULT}) ({_last(metric)})"

    return table(
        "Runs",
        "When the fault was injected, and how long after it: the first sign of it (a state, an alert), the "
        "last request to the victim, the objective held again, and throughput back at 95 %.",
        [
            # Grafana's dates are in milliseconds.
            (f"1000 * {column('fault_injected_timestamp_seconds')}", "injected", "dateTimeAsIso"),
            *((column(f"{figure}_seconds"), _NAMES[figure], "s") for figure in FIGURES),
        ],
        ["experiment", "run", "fault", "target"],
        empty=_NONE,
        sort="injected",
    )


def _losses() -> Any:
    def column(metric: str) -> str:
        return f"max by ({_RUN}) ({_last(metric)})"

    state = _last("run_state", ', state="failed"')
    return table(
        "What was lost",
        "Of each run in the time shown: lost before any answer, cut in the middle of one, and prompt tokens computed once "
        "more. Exact to: the longest of the run's windows and probe intervals.",
        [
            (f"max by ({_RUN}) ({state})", "failed", "none"),
            (column("lost_requests_total"), "lost", "none"),
            (column("cut_streams_total"), "cut", "none"),
            (column("recomputed_tokens_total"), "recomputed", "short"),
            (column("resolution_seconds"), "exact to", "s"),
        ],
        ["experiment", "run"],
        empty=_NONE,
        sort="lost",
        steps={"lost": [(None, "green"), (1, "red")]},
        states={"failed": [(0, "no", "green"), (1, "yes", "red")]},
    )


def _against_goals() -> Any:
    columns = []
    for figure in FIGURES:
        seen = f"max by ({_FAULT}) ({_last(f'{figure}_seconds')})"
        allowed = _last("goal_seconds", f', figure="{figure}"')
        columns += [
            (f"quantile by (experiment) (0.5, {seen})", f"{_NAMES[figure]}, median", "s"),
            (f"max by (experiment) ({seen})", f"{_NAMES[figure]}, worst", "s"),
            (f"min by (experiment) ({allowed})", f"{_NAMES[figure]}, goal", "s"),
        ]
    runs = f"count by (experiment) (count by ({_RUN}) ({_last('run_state')}))"
    return table(
        "Experiments against their goals",
        "Median and worst of each figure over the runs of the time shown, beside what the experiment allows. Five "
        "injections are the least that a median says something of.",
        [(runs, "runs", "none"), *columns],
        ["experiment"],
        empty=_NONE,
        sort="experiment",
        ascending=True,
    )


def _users(links: Links, source: Source) -> list[Any]:
    chosen = of.pool(source)
    burn = [runbook(slo.ALERT, links), to_board("slo", "SLO board", links)]
    by = ("cluster", "model", *(("pool",) if source.has_router else ()))
    name = "{{model}}" + (" {{pool}}" if source.has_router else "")
    ttft = users.pool_quantile("ttft", 0.99, SHORT)
    return [
        timeseries(
            "Requests and failures",
            "Per second over 1 minute. A replica that dies should cost its open streams and nothing else.",
            "reqps",
            [
                (f"sum({signals.requests(SHORT)}{{{chosen}}})", "requests"),
                (f"sum({signals.failed(SHORT)}{{{chosen}}})", "failed"),
            ],
            empty=_NO_TRAFFIC,
            links=burn,
        ),
        timeseries(
            "Time to first token p99",
            "Over 1 minute, the 6 slowest pools; dashed: the objectives. It rises while what the victim had is done "
            "elsewhere.",
            "s",
            [
                (of.top(6, ttft, chosen, on=by), name),
                (f'{slo.THRESHOLD}{{kind="ttft"}}', "{{slo}} threshold"),
            ],
            dashed=".* threshold",
            empty="no streams in this time",
            links=burn,
        ),
        timeseries(
            "Share of failed requests",
            "Over 5 minutes, the 6 worst pools; dashed: from where the alert that pages first speaks.",
            "percentunit",
            [
                (of.top(6, users.POOL_ERRORS, chosen, on=by), name),
                (f'max({slo.LIMIT}{{slo="availability", long_window="1h"}})', "burn alert's threshold"),
            ],
            dashed=".*threshold",
            empty=_NO_TRAFFIC,
            links=burn,
        ),
    ]


def _fleet(links: Links, source: Source) -> list[Any]:
    down = [runbook(replica.ALERT, links), to_board("fleet", "Fleet board", links)]
    out = f"count({UP}{{{of.MODEL}}} == 0) or 0 * count({UP}{{{of.MODEL}}})"
    panels = [
        timeseries(
            "Replicas by state",
            "How many replicas are in each state, all chosen models. The fault's victim should leave the ready ones "
            "within the goal, and come back.",
            "none",
            [
                (f"sum by (state) ({totals.STATES}{{{of.MODEL}}})", "{{state}}"),
                (out, "not serving"),
            ],
            empty="no replica known in this time",
            links=down,
        ),
        timeseries(
            "Running and waiting",
            "Requests in the engines' batches, and those that wait for a place, by model.",
            "none",
            [
                (f"{totals.MODEL_RUNNING}{{{of.MODEL}}}", "{{model}} running"),
                (f"{totals.MODEL_WAITING}{{{of.MODEL}}}", "{{model}} waiting"),
            ],
            empty="no engine was read in this time",
            links=down,
        ),
        timeseries(
            "Throughput",
            "Tokens per second that the engines generate, by model. Back at 95 % of before, the capacity is back.",
            "none",
            [(f"{totals.MODEL_GENERATION_TOKENS}{{{of.MODEL}}}", "{{model}}")],
            empty="no engine was read in this time",
            links=down,
        ),
    ]
    if source.has_router:
        panels.append(_retries(links))
    return panels


def _retries(links: Links) -> Any:
    retried = f"rate(exaserve_router_retries_total{{{of.CLUSTER}}}[$__rate_interval])"
    chosen = f'{of.MODEL}, pool=~"$pool"'
    cut = f"rate(exaserve_router_cut_answers_total{{{chosen}}}[$__rate_interval])"
    there = f"0 * max(exaserve_router_build_info{{{of.CLUSTER}}})"
    return timeseries(
        "Retried and cut",
        "Per second: requests sent once more before anything was sent to their client, by reason, and answers that "
        "broke off.",
        "reqps",
        [
            (f"sum by (reason) ({retried}) or on () {there}", "retried {{reason}}"),
            (f"sum({cut}) or on () {there}", "cut"),
        ],
        empty="no router known in this time",
        links=[to_board("router", "Router board", links)],
    )
