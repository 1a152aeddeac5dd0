"""What boards and rules cost at scale: queries of every board, evaluation of every rule group, memory of Prometheus.

    .venv/bin/python -m tests.benchmarks.boards                       (3,072 replicas; about 15 minutes, 8 GB)
    .venv/bin/python -m tests.benchmarks.boards --replicas 192        (a few minutes)
    .venv/bin/python -m tests.benchmarks.boards --only rules --evaluate 15s

A real Prometheus gets half an hour of the fleet's series (``fleet_series.py``), one sample every 15 s, of all metrics
that a rule or board asks for; ``--every-series`` loads the others, too, for the memory. What the rules would have
recorded of it is written by asking each rule once. Then every query of every board is asked as Grafana would for the
last 30 minutes (step 15 s), while nothing else goes on; Fleet's once more with every recorded series replaced by
what it is recorded from. At last the rules run on the fleet, which goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

from tests.benchmarks.boards_report import Asked, markdown
from tests.benchmarks.fleet_series import fleet
from tests.benchmarks.own_prometheus import STEP, Prometheus, TooSlow
from tests.benchmarks.remote_write import Series, Writer, labels
from tests.benchmarks.unrecorded import Unrecorded
from tests.dashboards.queries import FOLDERS, board_queries, boards, metrics_of, panels, rules, substituted

FOLDER = FOLDERS["exaserve"]
SHOWN = 1800.0
#: Rates at the beginning of what is shown need five minutes before it.
BEFORE = 330.0
CHUNK = 40
#: Without recording rules a query is given up after so many seconds.
PATIENCE = 10.0


# --- loading ---------------------------------------------------------------------------------------------


def wanted() -> set[str]:
    """Names of all metrics that a rule or board asks for."""
    names: set[str] = set()
    for rule in rules(FOLDER):
        names |= metrics_of(rule["expr"])
    for _, promql in board_queries(FOLDER):
        names |= metrics_of(promql)
    return names


def write_history(url: str, series: list[Series], times: list[float]) -> int:
    """A chunk of times after the other. Returns the number of samples."""
    writer = Writer(url)
    for i in range(0, len(times), CHUNK):
        writer.write(series, times[i : i + CHUNK])
    return writer.samples


def go_on(url: str, series: list[Series], last: float) -> None:
    """A sample of each series every STEP from ``last`` on, until the process is ended."""
    writer = Writer(url)
    while True:
        last += STEP
        time.sleep(max(0.0, last - time.time()))
        if time.time() - last > STEP:  # too slow for it: leave times out, as a scrape would
            continue
        writer.write(series, [last])


class Rule(NamedTuple):
    """One rule of a generated file. every: seconds between evaluations."""

    group: str
    every: float
    data: dict[str, Any]

    @property
    def record(self) -> str:
        """ "" of an alert."""
        return str(self.data.get("record", ""))


def in_order() -> list[Rule]:
    """Every rule after those that record what it asks for."""
    left = []
    for path in sorted(FOLDER.glob("rules/*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            left += [Rule(group["name"], _seconds(group["interval"]), rule) for rule in group["rules"]]
    asks = {id(rule): metrics_of(rule.data["expr"]) - {rule.record} for rule in left}
    ordered: list[Rule] = []
    while left:
        names = {rule.record for rule in left}
        ready = [rule for rule in left if not asks[id(rule)] & names] or left[:1]
        ordered += ready
        done = {id(rule) for rule in ready}
        left = [rule for rule in left if id(rule) not in done]
    return ordered


def _seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def record_history(prometheus: Prometheus, now: float, shown: float) -> tuple[int, list[dict[str, Any]]]:
    """Ask every rule once; what a recording rule answers is written as what it has recorded all the time.

    Returns the number of series recorded, and what each rule took.
    """
    count, took = 0, []
    for rule in in_order():
        asked = measured(prometheus, rule.record or rule.data["alert"], rule.data["expr"], now, True)
        took.append(asked._asdict() | {"group": rule.group, "every": rule.every})
        if not rule.record:
            continue
        series = []
        for s in prometheus.ask(rule.data["expr"], now):
            pairs = {k: v for k, v in s["metric"].items() if k != "__name__"} | rule.data.get("labels", {})
            series.append(Series(labels(rule.record, pairs), False, float(s["value"][1]), 0, False))
        steps = int(shown / rule.every)
        write_history(prometheus.url, series, [now - rule.every * i for i in range(steps, -1, -1)])
        count += len(series)
    return count, took


# --- asking ----------------------------------------------------------------------------------------------


def board_asks(prometheus: Prometheus, board: dict[str, Any], now: float) -> Iterator[tuple[str, str, bool]]:
    """(name, PromQL, whether at one time only) of a board's queries; a variable that takes one value has its first."""
    variables = [v for v in board["templating"]["list"] if v["type"] != "datasource"]
    names = [v["name"] for v in variables]
    single = {}
    for v in variables:
        if not v.get("includeAll"):
            single[v["name"]] = first_value(prometheus, v, names, now)
    for panel in panels(board):
        for target in panel.get("targets", ()):
            expr = target["expr"]
            for name, value in single.items():
                expr = re.sub(rf"\$\{{?{name}\b\}}?", value, expr)
            yield f"{panel['title']} {target['refId']}", substituted(expr, names), bool(target.get("instant"))


def first_value(prometheus: Prometheus, variable: dict[str, Any], names: list[str], now: float) -> str:
    """The first of a ``label_values`` variable's values, "none" without any."""
    query = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
    selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(",")
    answer = prometheus.ask(f"group by ({label}) ({substituted(selector, names)})", now)
    return min((s["metric"].get(label.strip(), "none") for s in answer), default="none")


def measured(
    prometheus: Prometheus,
    name: str,
    promql: str,
    now: float,
    instant: bool,
    times: int = 1,
    limit: float = 300,
) -> Asked:
    """Medians of several times; one that is given up took its limit, or more."""
    seconds, cpus, series = [], [], 0
    for _ in range(times):
        began, before = time.monotonic(), prometheus.cpu()
        with contextlib.suppress(TooSlow):
            series = len(prometheus.ask(promql, now, None if instant else SHOWN, limit))
        seconds.append(time.monotonic() - began)
        cpus.append(prometheus.cpu() - before)
        if seconds[0] > 5:
            break
    return Asked(name, median(seconds), median(cpus), series)


# --- the whole -------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> dict[str, Any]:
    shown = SHOWN if "boards" in options.parts else 0.0
    folder = Path(tempfile.mkdtemp(prefix="boards-"))
    prometheus = Prometheus(folder)
    live: Any = None
    try:
        asked = wanted()
        raw = list(fleet(options.replicas, lambda name: options.every_series or name in asked))
        now = time.time() // STEP * STEP
        began = time.monotonic()
        steps = int((shown + BEFORE) / STEP)
        samples = write_history(prometheus.url, raw, [now - STEP * i for i in range(steps, -1, -1)])
        _say(f"{len(raw):,} series, {samples:,} samples written in {time.monotonic() - began:.0f} s")
        recorded, took = record_history(prometheus, now, shown)
        _say(f"{recorded:,} recorded series written, {time.monotonic() - began:.0f} s")
        result: dict[str, Any] = {
            "replicas": options.replicas,
            "series": len(raw),
            "recorded": recorded,
            "rules": took,
            "patience": PATIENCE,
        }
        if "boards" in options.parts:
            result |= _boards(prometheus, now, options.times)
        if "rules" not in options.parts:
            return result
        live = _going_on(prometheus, raw, now)
        result |= _under_rules(prometheus, folder, options)
        return result
    finally:
        if live is not None:
            live.kill()
            live.join()
        prometheus.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _boards(prometheus: Prometheus, now: float, times: int) -> dict[str, Any]:
    found = {}
    for name, board in boards(FOLDER).items():
        found[name] = [
            measured(prometheus, query, promql, now, instant, times)
            for query, promql, instant in board_asks(prometheus, board, now)
        ]
        slowest = max(found[name], key=lambda a: a.cpu)
        _say(f"{name}: slowest {slowest.name}: {slowest.cpu:.2f} s of CPU, {slowest.seconds:.2f} s")
    without = _without(prometheus, now)
    given_up = sum(1 for a in without if a.seconds >= PATIENCE)
    _say(f"without recording rules: {given_up} queries of Fleet given up after {PATIENCE:g} s")
    return {"boards": found, "without": without}


def _without(prometheus: Prometheus, now: float) -> list[Asked]:
    unrecorded, found = Unrecorded(), []
    for query, promql, instant in board_asks(prometheus, boards(FOLDER)["fleet"], now):
        whole = unrecorded.of(promql)
        if whole != promql:
            found.append(measured(prometheus, query, whole, now, instant, limit=PATIENCE))
    return found


def _going_on(prometheus: Prometheus, raw: list[Series], now: float) -> multiprocessing.Process:
    """The fleet goes on in a process of its own; the queries' minutes are written first."""
    gap = [now + STEP * i for i in range(1, int((time.time() - now) / STEP) + 1)]
    write_history(prometheus.url, raw, gap)
    last = gap[-1] if gap else now
    context = multiprocessing.get_context("fork")
    live = context.Process(target=go_on, args=(prometheus.url, raw, last), daemon=True)
    live.start()
    return live  # type: ignore[return-value]


def _under_rules(prometheus: Prometheus, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    (folder / "rules").mkdir()
    for path in FOLDER.glob("rules/*.yaml"):
        text = path.read_text()
        if options.evaluate:
            text = re.sub(r"(?m)^  interval: 5s$", f"  interval: {options.evaluate}", text)
        (folder / "rules" / path.name).write_text(text)
    prometheus.use([f"{folder / 'rules'}/*.yaml"])
    prometheus.reload()
    slowest: dict[str, list[float]] = {}
    end, began, before = time.monotonic() + 60 * options.minutes, time.monotonic(), prometheus.cpu()
    while time.monotonic() < end:
        time.sleep(5)
        for group, seconds in prometheus.metric("prometheus_rule_group_last_duration_seconds").items():
            if seconds:  # 0 before the first one
                slowest.setdefault(group, []).append(seconds)
    wall = time.monotonic() - began
    return {
        "groups": {group: [median(s), max(s)] for group, s in slowest.items()},
        "intervals": prometheus.metric("prometheus_rule_group_interval_seconds"),
        "missed": sum(prometheus.metric("prometheus_rule_group_iterations_missed_total").values()),
        "failed": sum(prometheus.metric("prometheus_rule_evaluation_failures_total").values()),
        "cores": (prometheus.cpu() - before) / wall,
        "rss_gib": prometheus.process.memory_info().rss / 2**30,
        "head_series": sum(prometheus.metric("prometheus_tsdb_head_series").values()),
    }


def _say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=3072, metavar="N", help="in the fleet [3072]")
    parser.add_argument("--every-series", action="store_true", help="load what nothing asks for, too")
    parser.add_argument("--times", type=int, default=3, metavar="N", help="each query [3]")
    parser.add_argument("--minutes", type=float, default=3, metavar="N", help="of the rules [3]")
    parser.add_argument("--only", default="boards,rules", metavar="PARTS", help="boards or rules")
    parser.add_argument("--evaluate", metavar="TIME", help="rules of every 5s this often, e.g. 15s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there, too")
    a = parser.parse_args()
    if shutil.which("prometheus") is None:
        parser.error("prometheus is not installed (Debian: prometheus)")
    a.parts = a.only.split(",")
    for part in a.parts:
        if part not in ("boards", "rules"):
            parser.error(f"--only: there is no {part}; known: boards, rules")
    result = run(a)
    print(markdown(result))
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
