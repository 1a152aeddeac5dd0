"""Intent: what users ask about, whether that has moved from the reference, and which pools it is sent to.

The mix and its distance from the reference first, then how it was told (which stage of the classifier decided), then
where the requests went and how they fared. What counts as moved is the exporter's to say (``exporters/collectors/
intent_drift.py``); boards draw its verdict and its threshold.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import variables as of
from dashboards.board import Row, dashboard, firing, runbook, to_board
from dashboards.panels import bar_gauge, stat, state_timeline, table, text, timeseries
from dashboards.rulefile import Links
from dashboards.rules import intent as drift
from dashboards.rules import usage
from dashboards.signals import Source, ratio

_LINES = 12
_INTENT = 'intent=~"$intent"'
_CLASSIFIED = f"{of.CLUSTER}, {_INTENT}"
_NOTHING = "nothing was classified in this time"
_NO_REFERENCE = "no reference is compared with: exaserve intent reference save"
_FEW = "too few requests for a verdict (200 are needed), or no reference"
_WINDOW = "exaserve_intent_drift"

_NOT_SHOWN = """
**Confidence and classification time** are in no metric: they are of one request. The audit files have intent and
confidence of each (`exaserve audit tail`, `exaserve audit show REQUEST_ID`); how sure and how fast the two stages are
on texts of yours says `exaserve intent eval FILE --json` (`p50_ms`, `p99_ms`). What can be seen here is how often the
second stage had to decide, and how often it was too slow to.
"""


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(4, _glance(links)), "Mix", (9, _mix()), "Drift", (8, _drift(links))]
    rows += ["How it was told", (8, _stages()), "Where it goes", (9, _routes(links)), (8, _service(links))]
    rows += [
        (5, [text("Not on this board", "Where confidence and times of single requests are.", _NOT_SHOWN)])
    ]
    return dashboard(
        "intent",
        "Intent",
        "What users ask about, whether the mix has moved, and where it is sent.",
        rows,
        [
            *of.variables(source, "cluster", "model", "pool"),
            of.label_variable("intent", "intent", f"{usage.CLASSIFIED}{{{of.CLUSTER}}}"),
        ],
        annotations=[firing()],
        start="now-6h",
        refresh="30s",
    )


def _share(stage: str) -> str:
    """Share of the classified requests that ended in that stage."""
    part = f'sum({usage.CLASSIFIED}{{{_CLASSIFIED}, stage="{stage}"}})'
    whole = f"sum({usage.CLASSIFIED}{{{_CLASSIFIED}}})"
    return ratio(f"{part} or 0 * {whole}", whole)


def _glance(links: Links) -> list[Any]:
    book = [runbook(drift.ALERT, links)]
    return [
        stat(
            "Classified",
            "Requests classified per second over 5 minutes.",
            "reqps",
            f"sum({usage.CLASSIFIED}{{{_CLASSIFIED}}})",
            [(None, "blue")],
            empty="nothing is classified",
        ),
        stat(
            "Distance from the reference",
            "Jensen-Shannon distance of the last window from the saved reference: 0 the same mix, 1 nothing in "
            "common. Whether it is more than chance is said beside it.",
            "none",
            f"max({drift.DISTANCE}{{{of.CLUSTER}}})",
            [(None, "blue")],
            empty=_FEW,
            decimals=2,
            links=book,
        ),
        stat(
            "PSI against its threshold",
            "Population stability index / its threshold, which grows as samples get fewer. Above 1 it is more than "
            "chance explains; two windows in a row count as moved.",
            "none",
            ratio(
                f"max by (cluster) ({_WINDOW}_psi{{{of.CLUSTER}}})",
                f"max by (cluster) ({_WINDOW}_psi_threshold{{{of.CLUSTER}}})",
            ),
            [(None, "green"), (0.7, "orange"), (1, "red")],
            empty=_FEW,
            decimals=2,
            links=book,
        ),
        stat(
            "Mix has moved",
            "1 if PSI was above its threshold in two windows in a row; what the alert is about.",
            "none",
            f"max({drift.SHIFTED}{{{of.CLUSTER}}})",
            [(None, "green"), (1, "red")],
            empty=_FEW,
            links=book,
        ),
        stat(
            "Second stage decides",
            "Share of requests over 5 minutes in which the first stage was not sure enough and the second decided.",
            "percentunit",
            _share("second"),
            [(None, "blue")],
            empty=_NOTHING,
            decimals=1,
        ),
        stat(
            "Second stage too late",
            "Share of requests over 5 minutes that waited for the second stage and had to go on with the first one's "
            "word: it was too slow, full or dead.",
            "percentunit",
            _share("timeout"),
            [(None, "green"), (0.01, "orange"), (0.05, "red")],
            empty=_NOTHING,
            decimals=1,
        ),
    ]


def _mix() -> list[Any]:
    by_intent = f"sum by (intent) ({usage.CLASSIFIED}{{{_CLASSIFIED}}})"
    at_end = f"sum by (intent) ({usage.CLASSIFIED}{{{_CLASSIFIED}}} @ end())"
    whole = f"sum({usage.CLASSIFIED}{{{of.CLUSTER}}})"
    now, then = (f"max by (intent) ({_WINDOW}_{x}share_ratio{{{_CLASSIFIED}}})" for x in ("", "reference_"))
    return [
        (
            10,
            timeseries(
                "Mix over time",
                f"Share of each intent in what is classified, over 5 minutes; the {_LINES} largest, on top of each "
                "other.",
                "percentunit",
                [
                    (
                        f"{by_intent} / on () group_left () ({whole} > 0) and on (intent) topk({_LINES}, {at_end})",
                        "{{intent}}",
                    )
                ],
                stacked=True,
                top=1,
                empty=_NOTHING,
            ),
        ),
        (
            6,
            bar_gauge(
                "Grown and shrunk",
                "Share in the exporter's window less share in the reference, in percentage points: the 6 that moved "
                "most, in either direction. Only its size is drawn; the table says the direction.",
                "percentunit",
                [(f"topk(6, abs({now} - on (intent) {then}))", "{{intent}}")],
                [(None, "green"), (0.05, "orange"), (0.15, "red")],
                empty=_NO_REFERENCE,
            ),
        ),
        (
            8,
            table(
                "Against the reference",
                "Shares in the exporter's window (an hour unless set otherwise) and in the reference. An intent that "
                "the reference does not have has no second number.",
                [
                    (f"topk(30, {now})", "share now", "percentunit"),
                    (f"topk(30, {then})", "reference", "percentunit"),
                    (
                        f"{now} - on (intent) {then} and on (intent) topk(30, {now})",
                        "difference",
                        "percentunit",
                    ),
                ],
                ["intent"],
                empty=_NO_REFERENCE,
                sort="share now",
            ),
        ),
    ]


def _drift(links: Links) -> list[Any]:
    book = [runbook(drift.ALERT, links)]

    def worst(name: str, function: str = "max") -> str:
        return f"{function} by (cluster) ({_WINDOW}_{name}{{{of.CLUSTER}}})"

    return [
        timeseries(
            "Distance from the reference over time",
            "Jensen-Shannon distance, base 2: 0 the same mix, 1 nothing in common. Steps: a window is judged as a "
            "whole. Nothing is drawn below 200 samples.",
            "none",
            [(worst("distance_ratio"), "distance {{cluster}}")],
            top=1,
            empty=_FEW,
            links=book,
        ),
        timeseries(
            "PSI and its threshold",
            "Population stability index against the reference. The threshold is 0.25, or what chance alone reaches "
            "in one of 20 windows if that is more: few samples raise it.",
            "none",
            [(worst("psi"), "PSI {{cluster}}"), (worst("psi_threshold"), "threshold {{cluster}}")],
            dashed="threshold.*",
            empty=_FEW,
            links=book,
        ),
        timeseries(
            "Samples",
            "Requests with an intent in the exporter's window, and how many the reference was counted from. Fewer "
            "than 200 give no verdict.",
            "none",
            [
                (worst("window_samples"), "window {{cluster}}"),
                (worst("reference_samples"), "reference {{cluster}}"),
            ],
            log=True,
            empty=_NO_REFERENCE,
            links=book,
        ),
        state_timeline(
            "Verdict",
            "Whether two windows in a row were above the threshold. Without a verdict (just started, too few "
            "samples, no reference) nothing is drawn.",
            f"{drift.SHIFTED}{{{of.CLUSTER}}}",
            "mix {{cluster}}",
            [(0, "as the reference", "green"), (1, "moved", "red")],
            empty=_FEW,
            links=book,
        ),
    ]


def _stages() -> list[Any]:
    whole = f"sum({usage.CLASSIFIED}{{{_CLASSIFIED}}})"
    by_stage = f"sum by (stage) ({usage.CLASSIFIED}{{{_CLASSIFIED}}})"
    second = f'sum by (intent) ({usage.CLASSIFIED}{{{_CLASSIFIED}, stage=~"second|timeout"}})'
    return [
        timeseries(
            "Which stage decided",
            "first: the n-gram model was sure enough. second: the encoder decided. timeout: the first one's word "
            "stands because the second was too slow. skipped: a request without text.",
            "percentunit",
            [(f"{by_stage} / on () group_left () ({whole} > 0)", "{{stage}}")],
            stacked=True,
            top=1,
            empty=_NOTHING,
        ),
        timeseries(
            "The first stage was unsure, by intent",
            f"Share of each intent's requests that went to the second stage; the {_LINES} with most such requests. A "
            "rise means texts unlike those the model was trained on.",
            "percentunit",
            [
                (
                    f"{ratio(second, f'sum by (intent) ({usage.CLASSIFIED}{{{_CLASSIFIED}}})')}"
                    f" and on (intent) topk({_LINES}, {second})",
                    "{{intent}}",
                )
            ],
            top=1,
            empty="the second stage was not asked in this time",
        ),
    ]


def _routes(links: Links) -> list[Any]:
    chosen = f'{of.MODEL}, pool=~"$pool", intent=~"$intent|{_escaped(usage.NONE)}"'
    pair = "sum by (intent, pool) (%s{%s}%s)"
    requests, failed = (pair % (s, chosen, "") for s in (usage.INTENT_REQUESTS, usage.INTENT_FAILED))
    most = f"on (intent, pool) topk(30, {requests})"
    at_end = pair % (usage.INTENT_REQUESTS, chosen, " @ end()")
    of_intent = f"sum by (intent) ({usage.INTENT_REQUESTS}{{{chosen}}})"
    return [
        table(
            "Routes",
            "The 30 pairs of intent and pool with most requests over 5 minutes. Share: of that intent's requests. "
            f"An intent in a pool that is not its own came there by fallback or an explicit choice. {usage.NONE}: not "
            "classified.",
            [
                (f"{requests} and {most}", "requests/s", "reqps"),
                (
                    f"{requests} / on (intent) group_left () ({of_intent} > 0) and {most}",
                    "share of intent",
                    "percentunit",
                ),
                (f"{ratio(failed, requests)} and {most}", "errors", "percentunit"),
            ],
            ["intent", "pool"],
            empty="no requests in this time",
            sort="requests/s",
            data_links={"pool": to_board("fleet", "Fleet board", links)},
        ),
        timeseries(
            "Requests by intent and pool",
            f"Requests per second over 5 minutes, the {_LINES} pairs with most, on top of each other.",
            "reqps",
            [(f"{requests} and on (intent, pool) topk({_LINES}, {at_end})", "{{intent}} → {{pool}}")],
            stacked=True,
            empty="no requests in this time",
        ),
    ]


def _service(links: Links) -> list[Any]:
    chosen = f'{of.MODEL}, intent=~"$intent|{_escaped(usage.NONE)}"'
    by = ("cluster", "model", "intent")
    failed, requests = (
        f"sum by (intent) ({s}{{{chosen}}})" for s in (usage.INTENT_FAILED, usage.INTENT_REQUESTS)
    )
    slo = [to_board("slo", "SLO board", links)]
    return [
        timeseries(
            "Time to first token by intent, p95",
            f"Of streams over 5 minutes, all pools together, by intent and model; the {_LINES} slowest.",
            "s",
            [(of.top(_LINES, usage.INTENT_TTFT, chosen, on=by), "{{intent}} {{model}}")],
            empty="no streams in this time",
            links=slo,
        ),
        timeseries(
            "Errors by intent",
            "Share of each intent's requests over 5 minutes that failed for the service's fault, all pools together.",
            "percentunit",
            [(f"topk({_LINES}, {ratio(failed, requests)})", "{{intent}}")],
            empty="no requests in this time",
            links=slo,
        ),
    ]


def _escaped(name: str) -> str:
    """The name as part of a regular expression in a PromQL string."""
    return name.replace("(", r"\\(").replace(")", r"\\)")
