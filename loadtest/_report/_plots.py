"""The sections of a report's page that are plots: distributions, the run over time with the fleet's own word beside
it, groups, replicas, pools."""

from __future__ import annotations

from typing import Any

from loadtest._report import _figures as figures
from loadtest._report import _timelines as timelines
from loadtest._report import _words as words
from loadtest._report._definitions import LATENCIES
from loadtest._report._figures import BLUE, GREEN, GREY, ORANGE, RED, VIOLET
from loadtest._report._gather import Gathered
from loadtest._report._html import esc, section, table
from loadtest._report._sections import busiest
from loadtest._report._timelines import Clock, Line

_UNASKED = (
    "The fleet's own signals are not here: run with <code>--prometheus URL</code>, or report with it while that"
    " Prometheus still has the time."
)


class Plots:
    """Figures of a page, each drawn by its script into a place of its own."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.figures: list[dict[str, Any]] = []

    def place(self, title: str, what: str, figure: figures.Figure | None, empty: str = "no values") -> str:
        """what: HTML under the title."""
        head = f"<figcaption><b>{esc(title)}</b> <small>{what}</small></figcaption>"
        if figure is None:
            return f'<figure class="empty">{head}<p>{esc(empty)}</p></figure>'
        self.figures.append(figure)
        high = int(figure["layout"]["height"])
        timed = ' data-time=""' if figure["layout"].get("xaxis", {}).get("type") == "date" else ""
        return (
            f'<figure>{head}<div class="plot" data-figure="{len(self.figures) - 1}"{timed} style="height:{high}px"'
            f' role="img" aria-label="{esc(title)}"></div></figure>'
        )


def distributions(found: Gathered, plots: Plots) -> str:
    limits = words.objectives(found.summary)
    inside = ""
    for latency, meaning in LATENCIES.items():
        figure = figures.distribution(
            latency, found.exact[latency], found.baseline_exact.get(latency), limits.get(latency)
        )
        inside += plots.place(meaning.title, esc(meaning.formula), figure)
    return section(
        "distributions",
        "How long it took",
        inside,
        "Left: how many took how long. Right: the share that took longer, so p99 is where the line crosses 1 %."
        " Completed requests of the measured phase"
        + ("; dashed: the baseline." if found.baseline else ".")
        + (" Dotted: the objective." if limits else ""),
    )


def over_time(found: Gathered, plots: Plots) -> str:
    """Pairs: what the client saw, and the fleet's own word beside it."""
    times, limits, fleet = found.times, words.objectives(found.summary), found.fleet
    lines = times.lines
    bands = _bands(found, plots.clock)
    beside: list[tuple[str, str]] = []

    def mine(
        title: str, what: str, of: list[Line], unit: str, limit: float | None = None, empty: str = "no values"
    ) -> str:
        figure = timelines.over_time(times.at, of, plots.clock, unit, limit, bands)
        return plots.place(title, what, figure, empty)

    def its(
        title: str,
        what: str,
        keys: dict[str, str],
        unit: str,
        limit: float | None = None,
        total: bool = False,
    ) -> str:
        if not fleet:
            return ""
        count = max((len(s["values"]) for f in fleet["signals"].values() for s in f["series"]), default=0)
        at = [fleet["start"] + i * fleet["step"] for i in range(count)]
        of = timelines.of_fleet(fleet, keys, total)
        figure = timelines.over_time(at, of, plots.clock, unit, limit, bands)
        return plots.place(f"Fleet: {title}", what, figure, "the fleet's Prometheus had no such series")

    load: list[Line] = [
        ("offered", lines["offered"], GREY, "solid"),
        ("completed", lines["completed"], GREEN, "solid"),
        ("failed", lines["failed"], RED, "solid"),
        ("never sent", _if_any(lines["unsent"]), VIOLET, "solid"),
    ]
    beside.append(
        (
            mine("Requests", "offered, completed and failed, per second", load, "reqps"),
            its(
                "requests",
                "all that ended and failed ones, by pool, mean of 1 minute",
                {"requests": "", "failed": "failed"},
                "reqps",
            ),
        )
    )
    for latency, of_fleet, title in (
        ("ttft", "ttft", "TTFT"),
        ("itl", "inter_token", "gaps between tokens"),
        ("e2e", "e2e", "E2E"),
    ):
        beside.append(
            (
                mine(
                    LATENCIES[latency].title,
                    "by when it was known",
                    timelines.of_client(times, latency),
                    "s",
                    limits.get(latency),
                ),
                its(
                    title,
                    "as it measured it, by pool, of 1 minute",
                    {f"{of_fleet}_p99": "p99", f"{of_fleet}_p50": "p50"},
                    "s",
                ),
            )
        )
    flying: list[Line] = [("in flight", lines["in_flight"], BLUE, "solid")]
    beside.append(
        (
            mine("In flight", "sent and not ended, at each window's end", flying, "count"),
            its(
                "running and waiting",
                "in all replicas shown",
                {"running": "running", "waiting": "waiting"},
                "count",
                total=True,
            ),
        )
    )
    lag = [*timelines.of_client(times, "lag"), ("greatest", lines["lag_max"], VIOLET, "dot")]
    beside.append(
        (
            mine(
                "Schedule lag",
                "sent − due",
                lag,
                "s",
                _limit(found, "lag"),
                empty="a closed loop has no schedule",
            ),
            its("KV blocks in use", "by replica", {"kv": ""}, "ratio"),
        )
    )
    cpu: list[Line] = [("busiest process", lines.get("cpu_max", []), BLUE, "solid")]
    delay: list[Line] = [("greatest", lines.get("delay_max", []), ORANGE, "solid")]
    beside.append(
        (
            mine(
                "Client CPU",
                "share of one core",
                cpu,
                "ratio",
                _limit(found, "cpu"),
                "client.jsonl has no samples",
            ),
            its("generated tokens", "by replica, per second", {"tokens": ""}, "tokps"),
        )
    )
    beside.append(
        (
            mine(
                "Client timers",
                "how late they were",
                delay,
                "s",
                _limit(found, "delay"),
                "client.jsonl has no samples",
            ),
            its("preemptions", "by replica, per second", {"preemptions": ""}, "reqps"),
        )
    )
    pairs = "".join(f"{left}{right}" for left, right in beside)
    told = (
        f"The fleet's signals are those of {esc(fleet['prometheus'])}, one value each {fleet['step']} s."
        if fleet
        else _UNASKED
    )
    return section(
        "time",
        "Over time",
        f'{_alerts(found, plots.clock)}<div class="pairs">{pairs}</div>',
        f"Windows of {times.length:g} s, warm-up included (shaded grey); a latency lies where it was known. Drag to zoom all of them, double-click to see all again. {told}",
    )


def _if_any(values: list[float | None]) -> list[float | None]:
    return values if any(values) else []


def _limit(found: Gathered, key: str) -> float | None:
    value = (found.run.run.get("limits") or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def _bands(found: Gathered, clock: Clock) -> list[timelines.Band]:
    bands: list[timelines.Band] = []
    until = found.run.run.get("warmup_until")
    if isinstance(until, int | float) and clock.start < until:
        bands.append((clock.start, min(float(until), clock.end), GREY, "warm-up"))
    alerts = (found.fleet or {}).get("alerts") or ()
    bands += [(one["from"], one["to"], RED, one["alert"].removeprefix("ExaServe")) for one in alerts[:6]]
    return bands


def _alerts(found: Gathered, clock: Clock) -> str:
    if not found.fleet:
        return ""
    rows = [
        (
            esc(one["alert"]),
            esc(one["severity"]),
            esc(", ".join(f"{k}={v}" for k, v in one["labels"].items())),
            esc(clock.moment(one["from"])[11:19]),
            esc(clock.moment(one["to"])[11:19]),
        )
        for one in found.fleet.get("alerts") or ()
    ]
    if not rows:
        return "<p>No alert of the fleet fired meanwhile.</p>"
    return table(["alert that fired", "severity", "of", "from", "to"], rows, kind="left")


def groups(found: Gathered, key: str, plots: Plots) -> str:
    """Ranges of TTFT and E2E of the groups of one kind."""
    there = busiest(found.summary.get(key) or {})
    its = (found.baseline.summary.get(key) or {}) if found.baseline else {}
    inside = "".join(
        plots.place(LATENCIES[latency].title, "", figures.ranges(there, its, latency))
        for latency in ("ttft", "itl", "e2e")
        if any(((group.get("latency") or {}).get(latency) or {}).get("count") for group in there.values())
    )
    return f'<div class="pairs">{inside}</div>'


def balance(found: Gathered, plots: Plots) -> str:
    """How requests, tokens and TTFT were spread over the replicas."""
    there = busiest(found.summary.get("replicas") or {})
    its = (found.baseline.summary.get("replicas") or {}) if found.baseline else {}
    inside = plots.place("Requests", "completed", figures.bars(there, "completed", "requests completed"))
    inside += plots.place(
        "Output tokens", "of completed requests", figures.bars(there, "output_tokens", "tokens")
    )
    inside += plots.place("TTFT", "as the client saw it", figures.ranges(there, its, "ttft"))
    inside += plots.place("E2E", "as the client saw it", figures.ranges(there, its, "e2e"))
    return f'<div class="pairs">{inside}</div>'


def spread(found: Gathered) -> str:
    """How uneven the replicas were, in one sentence; "" with fewer than two."""
    numbers = [int(group.get("completed") or 0) for group in (found.summary.get("replicas") or {}).values()]
    if len(numbers) < 2 or not sum(numbers):
        return ""
    mean = sum(numbers) / len(numbers)
    return f" Requests: {min(numbers):,} to {max(numbers):,} a replica, the busiest {max(numbers) / mean:.2f} × the mean."


def pools(found: Gathered) -> str:
    """What the fleet says of its pools over the whole run, refused requests included."""
    there = (found.fleet or {}).get("pools") or []
    if not there:
        inside = (
            "<p>The fleet's Prometheus had no pools in this time.</p>"
            if found.fleet
            else f"<p>{_UNASKED}</p>"
        )
        return section("pools", "By pool, in the fleet's words", inside)
    columns = {
        "requests": ("requests/s", "/s"),
        "failed": ("failed/s", "/s"),
        "ttft_p50": ("TTFT p50", "s"),
        "ttft_p99": ("TTFT p99", "s"),
        "inter_token_p50": ("gap p50", "s"),
        "inter_token_p99": ("gap p99", "s"),
        "e2e_p50": ("E2E p50", "s"),
        "e2e_p99": ("E2E p99", "s"),
    }
    rows = [
        (
            esc(timelines.label(one["labels"])),
            esc(one["labels"].get("model", "–")),
            *(esc(words.number(one.get(key), unit)) for key, (_, unit) in columns.items()),
        )
        for one in there
    ]
    heads = ["pool", "model", *(title for title, _ in columns.values())]
    return section(
        "pools",
        "By pool, in the fleet's words",
        table(heads, rows),
        "The fleet's own word, from its Prometheus: means and buckets' quantiles over the run, whoever sent the requests.",
    )
