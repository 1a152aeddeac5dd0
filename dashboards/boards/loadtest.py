"""Load test: one run beside its baseline and the fleet's own signals, and whether its client can be believed.

The verdict and the numbers of the whole run first, exact and beside the baseline's, then the run over time from the
client's side (dashed: what the baseline had as a whole, and the run's own objectives), then what the fleet said
meanwhile (``_loadtest_fleet.py``). The series of the run are declared in ``exporters/catalog/loadtest.py``; a run with
``--metrics-port`` exports them. Without one, panels of them say that no load test has run.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import signals
from dashboards import variables as of
from dashboards.board import Row, dashboard, firing
from dashboards.boards import _loadtest_fleet as fleet
from dashboards.panels import stat, table, text, timeseries
from dashboards.rulefile import Links
from dashboards.signals import Source

_WINDOW = "$__rate_interval"
#: Runs are compared with older ones; series of a run are few and short.
_LONG_AGO = "[30d]"
_NO_RUN = "no load test has run"
_METRIC = "exaserve_loadtest_"
#: A load test may well run outside of every cluster.
_ANYWHERE = 'cluster=~"$cluster|"'
_RUN = f'{_ANYWHERE}, run="$run"'
_PROFILE = f'{_RUN}, profile=~"$profile"'

_HOW = """
**No load test has run** in this time where panels say so; one is seen here with `locust … --metrics-port 0`. Those of a run come from the client's side and begin with it;
the last row is the fleet's own word and always there. A run is chosen by its name; the baseline is the one that it was
started with. If the client was too slow itself (`void`), none of its numbers means anything.
"""

#: (latency, title, metric, what it is).
_LATENCIES = (
    (
        "ttft",
        "TTFT",
        "time_to_first_token_seconds",
        "From when a request was due to its first token of any kind.",
    ),
    (
        "itl",
        "Gaps between tokens",
        "inter_token_seconds",
        "Each gap between two chunks with content, as it was.",
    ),
    (
        "tpot",
        "Time per output token",
        "time_per_output_token_seconds",
        "Of each stream, (last - first token) / (tokens - 1).",
    ),
    ("e2e", "Whole answer", "request_duration_seconds", "From when a request was due to its last token."),
)


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(3, [text("How to read it", "What is shown, and where from.", _HOW)])]
    rows += [(4, _glance()), (10, [(14, _compared()), (10, _outcome())])]
    rows += [
        "The run, from the client's side",
        (8, _load()),
        (8, [_latency(*of_one) for of_one in _LATENCIES]),
    ]
    rows += [
        "Can its client be believed",
        (7, _client()),
        "The fleet meanwhile",
        (8, fleet.panels(links, source)),
    ]
    return dashboard(
        "loadtest",
        "Load test",
        "One run beside its baseline and the fleet's own signals, and whether its client can be believed.",
        rows,
        [
            *of.variables(source, "cluster", "model", "pool"),
            of.label_variable("run", "run", f"{_METRIC}run_info{{{_ANYWHERE}}}", several=False),
            of.label_variable("baseline", "baseline", f"{_METRIC}run_info{{{_RUN}}}", several=False),
            of.label_variable("profile", "profile", f"{_METRIC}offered_requests_total{{{_RUN}}}"),
        ],
        annotations=[firing()],
        start="now-1h",
    )


def _last(metric: str, run: str, matchers: str = "", at_end: bool = False) -> str:
    """The last word of a run, however long ago. run: "run" or "baseline", the variable."""
    chosen = f'{_ANYWHERE}, run="${run}"' + (f", {matchers}" if matchers else "")
    return f"last_over_time({_METRIC}{metric}{{{chosen}}}{_LONG_AGO}{' @ end()' if at_end else ''})"


def _total(metric: str, run: str, matchers: str = 'phase="measured"') -> str:
    return f"sum({_last(metric, run, matchers)})"


def _rate(metric: str, by: str = "", matchers: str = _PROFILE) -> str:
    return f"sum {f'by ({by}) ' if by else ''}(rate({_METRIC}{metric}{{{matchers}}}[{_WINDOW}]))"


def _glance() -> list[Any]:
    offered = _total("offered_requests_total", "run")

    def attained(run: str) -> str:
        return f"min({_last('slo_attainment_ratio', run, _ALL)})"

    def both(run: str) -> str:
        return f"max({_last('run_void', run)})"

    return [
        stat(
            "Void",
            "1: the client itself was too slow (schedule lag, CPU, event loop), so the run says nothing about the "
            "fleet. Nothing else on the board counts then.",
            "none",
            both("run"),
            [(None, "green"), (1, "red")],
            empty=_NO_RUN,
        ),
        stat(
            "Inside the objectives",
            "Good requests / offered ones, measured phase. Failed and never sent requests are bad.",
            "percentunit",
            attained("run"),
            [(None, "red"), (0.95, "orange"), (0.99, "green")],
            empty=_NO_RUN,
            decimals=2,
        ),
        stat(
            "Baseline inside the objectives",
            "The same of the baseline, by its own objectives.",
            "percentunit",
            attained("baseline"),
            [(None, "blue")],
            empty="no baseline",
            decimals=2,
        ),
        stat(
            "Goodput now",
            "Requests per second that met every objective of the run.",
            "reqps",
            _rate("good_requests_total"),
            [(None, "blue")],
            empty=_NO_RUN,
        ),
        stat(
            "Offered",
            "Requests that were due so far, measured phase.",
            "short",
            offered,
            [(None, "blue")],
            empty=_NO_RUN,
        ),
        stat(
            "Failed",
            "Share of the offered requests that failed, measured phase.",
            "percentunit",
            signals.ratio(f"{_total('failed_requests_total', 'run')} or 0 * {offered}", offered),
            [(None, "green"), (0.001, "orange"), (0.01, "red")],
            empty=_NO_RUN,
            decimals=2,
        ),
    ]


_ALL = 'profile="all"'


def _compared() -> Any:
    by = "latency, q"

    def exact(run: str) -> str:
        return f"max by ({by}) ({_last('latency_quantile_seconds', run, _ALL)})"

    return table(
        "The run and its baseline",
        "Exact quantiles over every request (itl: every gap) of the measured phase, all profiles together. Ratio: run / "
        "baseline. One run against one says little: the gate compares several.",
        [
            (exact("run"), "run", "s"),
            (exact("baseline"), "baseline", "s"),
            (f"{exact('run')} / ({exact('baseline')} > 0)", "ratio", "none"),
        ],
        ["latency", "q"],
        empty=_NO_RUN,
        sort="latency",
        steps={"ratio": [(None, "green"), (1.05, "orange"), (1.2, "red")]},
    )


def _outcome() -> Any:
    """Two rows would be two runs; a row is a profile here, so that a mixed run is told apart."""

    def by_profile(metric: str, run: str, more: str = "") -> str:
        chosen = f'phase="measured"{more}'
        return f"sum by (profile) ({_last(metric, run, chosen)})"

    def share(part: str, run: str) -> str:
        offered = by_profile("offered_requests_total", run)
        return signals.ratio(f"{by_profile(part, run)} or 0 * {offered}", offered)

    chunks = by_profile("chunks_total", "run")
    output = by_profile("tokens_total", "run", ', kind="output"')
    return table(
        "By profile",
        "Of the offered requests of the measured phase: how many met every objective, in the run and in the baseline, "
        "and how many failed. Tokens a chunk: above 1, gaps are those between bundles.",
        [
            (by_profile("offered_requests_total", "run"), "offered", "short"),
            (share("good_requests_total", "run"), "good", "percentunit"),
            (share("good_requests_total", "baseline"), "good, baseline", "percentunit"),
            (share("failed_requests_total", "run"), "failed", "percentunit"),
            (signals.ratio(output, chunks), "tokens a chunk", "none"),
        ],
        ["profile"],
        empty=_NO_RUN,
        sort="offered",
    )


def _load() -> list[Any]:
    failed = "failed_requests_total"  # every reason has a series from the beginning on

    def level(metric: str) -> str:
        return f"sum({_METRIC}{metric}{{{_PROFILE}}})"

    return [
        timeseries(
            "Offered, sent, answered",
            "Requests per second. Sent below offered: the client or its connections did not keep up. Completed below "
            "sent: they pile up or fail. Good: met every objective.",
            "reqps",
            [
                (_rate("offered_requests_total"), "offered"),
                (_rate("started_requests_total"), "sent"),
                (_rate("completed_requests_total"), "completed"),
                (_rate("good_requests_total"), "good"),
            ],
            empty=_NO_RUN,
        ),
        timeseries(
            "Failures by reason",
            "Sent requests per second that did not complete, warm-up included.",
            "reqps",
            [
                (
                    f"{_rate(failed, 'reason')} and on (reason) (sum by (reason) ({_METRIC}{failed}{{{_PROFILE}}}) > 0)",
                    "{{reason}}",
                )
            ],
            empty="nothing failed, or no load test has run",
        ),
        timeseries(
            "In flight",
            "Requests sent whose answer has not ended, and users of a closed loop. In an open loop, in flight grows "
            "without end once the fleet is over its capacity.",
            "none",
            [(level("in_flight_requests"), "in flight"), (level("users"), "users")],
            empty=_NO_RUN,
        ),
        timeseries(
            "Tokens",
            "Tokens per second of completed requests, as the engine reported them.",
            "none",
            [(_rate("tokens_total", "kind"), "{{kind}}")],
            empty=_NO_RUN,
        ),
    ]


def _latency(latency: str, title: str, metric: str, what: str) -> Any:
    buckets = _rate(f"{metric}_bucket", "le")
    everything = _rate(f"{metric}_bucket", matchers=f'{_PROFILE}, le="+Inf"')
    exact = f'{_ALL}, latency="{latency}", q="0.99"'
    lines = [
        (f"histogram_quantile({q}, {buckets}) and on () ({everything} > 0)", f"p{q * 100:g}")
        for q in (0.5, 0.99)
    ]
    lines += [
        (
            f"max({_last('latency_quantile_seconds', 'baseline', exact, at_end=True)})",
            "baseline p99, whole run",
        ),
        (
            f'min by (profile) ({_METRIC}slo_threshold_seconds{{{_RUN}, latency="{latency}"}})',
            "{{profile}} threshold",
        ),
    ]
    return timeseries(
        title,
        f"{what} From buckets, warm-up included; dashed: the baseline's exact p99 and the run's objectives.",
        "s",
        lines,
        dashed="baseline.*|.* threshold",
        empty=_NO_RUN,
    )


def _client() -> list[Any]:
    def p99(metric: str, matchers: str) -> str:
        everything = _rate(f"{metric}_bucket", matchers=f'{matchers}, le="+Inf"')
        buckets = _rate(f"{metric}_bucket", "le", matchers)
        return f"histogram_quantile(0.99, {buckets}) and on () ({everything} > 0)"

    return [
        timeseries(
            "Schedule lag p99",
            "How much later than due requests were sent. Above a few milliseconds the run is about the client. Nothing "
            "is drawn in a closed loop.",
            "s",
            [(p99("schedule_lag_seconds", _PROFILE), "lag p99")],
            empty="a closed loop, or no load test has run",
        ),
        timeseries(
            "Client CPU",
            "Share of one core that each process of the load test uses, the 8 busiest. Near 1, its times are its own.",
            "percentunit",
            [(f"topk(8, max by (worker) ({_METRIC}client_cpu_ratio{{{_RUN}}}))", "worker {{worker}}")],
            empty=_NO_RUN,
        ),
        timeseries(
            "Event loop delay p99",
            "How late a timer of the load test's processes was; what they timed may be wrong by as much.",
            "s",
            [(p99("event_loop_delay_seconds", _RUN), "delay p99")],
            empty=_NO_RUN,
        ),
    ]
