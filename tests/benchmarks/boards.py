"""What boards and rules cost at scale: queries of every board, evaluation of every rule group, memory of Prometheus.

    .venv/bin/python -m tests.benchmarks.boards                       (3,072 replicas; about 15 minutes, 8 GB)
    .venv/bin/python -m tests.benchmarks.boards --replicas 192        (a minute or two)

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
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import psutil
import yaml

from tests.benchmarks.fleet_series import fleet
from tests.benchmarks.remote_write import Series, Writer, labels
from tests.benchmarks.report import Goal, table
from tests.dashboards.queries import FOLDERS, board_queries, boards, metrics_of, panels, rules, substituted

FOLDER = FOLDERS["exaserve"]
STEP = 15.0
SHOWN = 1800.0
#: Rates at the beginning of what is shown need five minutes before it.
BEFORE = 330.0
CHUNK = 40
FLEET_SECONDS = 1.0
#: Without recording rules a query is given up after so many seconds.
PATIENCE = 10.0


class Asked(NamedTuple):
    """One query of a board. seconds: until the answer, cpu: of Prometheus meanwhile. series: of the answer."""

    name: str
    seconds: float
    cpu: float
    series: int


class TooSlow(Exception):
    """A query was given up."""


class Prometheus:
    """A running one, with the receiver of remote write."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._config = folder / "prometheus.yml"
        self.use([])
        argv = ["prometheus", f"--config.file={self._config}", f"--storage.tsdb.path={folder / 'data'}"]
        argv += [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver"]
        argv += ["--web.enable-lifecycle", "--query.timeout=5m", "--log.level=warn"]
        self._process = subprocess.Popen(argv, stdout=(folder / "log").open("wb"), stderr=subprocess.STDOUT)
        self.process = psutil.Process(self._process.pid)
        self._client = httpx.Client(base_url=self.url, timeout=400)
        for _ in range(200):
            with contextlib.suppress(httpx.HTTPError):
                if self._client.get("/-/ready").status_code == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError("Prometheus did not start")

    def use(self, rule_files: list[str]) -> None:
        config: dict[str, Any] = {"global": {"evaluation_interval": "15s"}, "rule_files": rule_files}
        self._config.write_text(yaml.dump(config))

    def reload(self) -> None:
        self._client.post("/-/reload").raise_for_status()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def ask(
        self, promql: str, at: float, shown: float | None = None, limit: float = 300
    ) -> list[dict[str, Any]]:
        """The answer's series, at one time or over the ``shown`` seconds before it.

        Raises TooSlow after ``limit`` seconds, RuntimeError if the query is refused.
        """
        data = {"query": promql, "timeout": f"{limit:g}s"}
        if shown is None:
            answer = self._client.post("/api/v1/query", data={**data, "time": f"{at:.3f}"})
        else:
            times = {"start": f"{at - shown:.3f}", "end": f"{at:.3f}", "step": f"{STEP:g}"}
            answer = self._client.post("/api/v1/query_range", data={**data, **times})
        said = answer.json()
        if said.get("errorType") == "timeout":
            raise TooSlow
        if said["status"] != "success":
            raise RuntimeError(f"{said.get('error')}: {promql}")
        return list(said["data"]["result"])

    def cpu(self) -> float:
        return float(sum(self.process.cpu_times()[:2]))

    def metric(self, name: str) -> dict[str, float]:
        """Samples of Prometheus' own page by their rule group, "" without one."""
        found = {}
        for line in self._client.get("/metrics").text.splitlines():
            if line.startswith((f"{name} ", f"{name}{{")):
                group = re.search(r"exaserve-[a-z0-9_]+", line)
                found[group[0] if group else ""] = float(line.rpartition(" ")[2])
        return found


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
    ordered: list[Rule] = []
    while left:
        names = {rule.record for rule in left}
        ready = [r for r in left if not (metrics_of(r.data["expr"]) - {r.record}) & names] or left[:1]
        ordered += ready
        left = [r for r in left if r not in ready]
    return ordered


def _seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def record_history(prometheus: Prometheus, now: float) -> tuple[int, list[dict[str, Any]]]:
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
        steps = int(SHOWN / rule.every)
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


class Unrecorded:
    """Queries as they would be without recording rules."""

    _SELECTOR = re.compile(r"([a-z_]+:[a-zA-Z0-9_:]+)(\{[^}]*\})?(\s*@ end\(\))?(\s*\[|\s*offset\b)?")

    def __init__(self) -> None:
        self._rules: dict[str, list[dict[str, Any]]] = {}
        for rule in rules(FOLDER):
            if "record" in rule:
                self._rules.setdefault(rule["record"], []).append(rule)

    def of(self, promql: str) -> str:
        """Each recorded series by the expression that it is recorded from, down to what was scraped.

        Over windows (a day's band) and offsets the recorded series stays: nobody would ask for that anew. Matchers are
        left out: they choose everything here, but for an edge or an objective, which costs the same.
        """
        return self._SELECTOR.sub(self._expanded, promql)

    def _expanded(self, found: re.Match[str]) -> str:
        name, _, at_end, window = found.groups()
        if window or name not in self._rules:
            return found[0]
        wholes = []
        for rule in self._rules[name]:
            expr = re.sub(r"(?m)#.*$", "", rule["expr"])
            if name in metrics_of(expr):  # one that goes on from itself
                return found[0]
            whole = f"({self.of(expr)})"
            for label, value in rule.get("labels", {}).items():
                whole = f'label_replace({whole}, "{label}", "{value}", "", "")'
            wholes.append(whole)
        expanded = f"({' or '.join(wholes)})"
        return _at_end(expanded) if at_end else expanded


def _at_end(promql: str) -> str:
    """``@ end()`` after every selector."""
    names = "|".join(sorted(map(re.escape, metrics_of(promql)), key=len, reverse=True))
    return re.sub(rf"(?<![\w:])((?:{names})(?![\w:])(?:\{{[^}}]*\}})?(?:\[\w+\])?)", r"\1 @ end()", promql)


# --- the whole -------------------------------------------------------------------------------------------


def run(replicas: int, every_series: bool, times: int, minutes: float) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="boards-"))
    prometheus = Prometheus(folder)
    live: Any = None
    try:
        asked = wanted()
        raw = list(fleet(replicas, lambda name: every_series or name in asked))
        now = time.time() // STEP * STEP
        began = time.monotonic()
        steps = int((SHOWN + BEFORE) / STEP)
        samples = write_history(prometheus.url, raw, [now - STEP * i for i in range(steps, -1, -1)])
        _say(f"{len(raw):,} series, {samples:,} samples written in {time.monotonic() - began:.0f} s")
        recorded, took = record_history(prometheus, now)
        _say(f"{recorded:,} recorded series written, {time.monotonic() - began:.0f} s")
        result: dict[str, Any] = {
            "replicas": replicas,
            "series": len(raw),
            "recorded": recorded,
            "rules": took,
            "boards": {},
        }
        for name, board in boards(FOLDER).items():
            result["boards"][name] = [
                measured(prometheus, query, promql, now, instant, times)
                for query, promql, instant in board_asks(prometheus, board, now)
            ]
            slowest = max(result["boards"][name], key=lambda a: a.cpu)
            _say(f"{name}: slowest {slowest.name}: {slowest.cpu:.2f} s of CPU, {slowest.seconds:.2f} s")
        result["without"] = _without(prometheus, now)
        given_up = sum(1 for a in result["without"] if a.seconds >= PATIENCE)
        _say(f"without recording rules: {given_up} queries of Fleet given up after {PATIENCE:g} s")
        live = _going_on(prometheus, raw, now)
        result |= _under_rules(prometheus, minutes)
        return result
    finally:
        if live is not None:
            live.kill()
            live.join()
        prometheus.stop()
        shutil.rmtree(folder, ignore_errors=True)


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


def _under_rules(prometheus: Prometheus, minutes: float) -> dict[str, Any]:
    prometheus.use([str(FOLDER / "rules" / "*.yaml")])
    prometheus.reload()
    slowest: dict[str, list[float]] = {}
    end, began, before = time.monotonic() + 60 * minutes, time.monotonic(), prometheus.cpu()
    while time.monotonic() < end:
        time.sleep(5)
        for group, seconds in prometheus.metric("prometheus_rule_group_last_duration_seconds").items():
            if seconds:  # 0 before the first one
                slowest.setdefault(group, []).append(seconds)
    wall = time.monotonic() - began
    return {
        "groups": {group: [median(s), max(s)] for group, s in slowest.items()},
        "intervals": prometheus.metric("prometheus_rule_group_interval_seconds"),
        "counts": prometheus.metric("prometheus_rule_group_rules"),
        "missed": sum(prometheus.metric("prometheus_rule_group_iterations_missed_total").values()),
        "failed": sum(prometheus.metric("prometheus_rule_evaluation_failures_total").values()),
        "cores": (prometheus.cpu() - before) / wall,
        "rss_gib": prometheus.process.memory_info().rss / 2**30,
        "head_series": sum(prometheus.metric("prometheus_tsdb_head_series").values()),
    }


def _say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


def goals(result: dict[str, Any]) -> list[Goal]:
    fleet_ = result["boards"]["fleet"]
    slowest = max(fleet_, key=lambda a: a.cpu)
    late = {g: s[0] for g, s in result["groups"].items() if s[0] > result["intervals"].get(g, 15)}
    return [
        Goal(
            f"Fleet's slowest query < {FLEET_SECONDS:g} s of CPU",
            f"{slowest.cpu:.2f} s ({slowest.name}; {slowest.seconds:.2f} s until the answer)",
            slowest.cpu < FLEET_SECONDS,
        ),
        Goal("every rule group within its interval", ", ".join(late) or "all", not late),
        Goal("no rule fails", f"{result['failed']:.0f} failures", not result["failed"]),
    ]


def markdown(result: dict[str, Any]) -> str:
    parts = [
        f"# Boards and rules at {result['replicas']:,} replicas",
        f"{result['series']:,} series scraped every {STEP:g} s, {result['recorded']:,} recorded;"
        f" {result['head_series']:,.0f} in the head. Prometheus: {result['rss_gib']:.1f} GiB,"
        f" {result['cores']:.2f} cores while all are written and all rules run;"
        f" {result['missed']:.0f} evaluations left out.",
    ]
    rows = []
    for name, asked in [*result["boards"].items(), ("fleet, unrecorded", result["without"])]:
        if asked:
            slow = max(asked, key=lambda a: a.cpu)
            rows.append(
                [
                    name,
                    str(len(asked)),
                    str(sum(1 for a in asked if a.series)),
                    f"{slow.seconds:.2f}",
                    f"{slow.cpu:.2f}",
                    slow.name,
                    f"{sum(a.seconds for a in asked):.1f}",
                    f"{sum(a.cpu for a in asked):.1f}",
                ]
            )
    given_up = sum(1 for a in result["without"] if a.seconds >= PATIENCE)
    unrecorded = (
        f"Without recording rules {given_up} of {len(result['without'])} queries of Fleet were given up"
        f" after {PATIENCE:g} s."
    )
    head = ["board", "queries", "with series", "slowest, s", "its CPU, s", "which", "all, s", "all, CPU s"]
    parts += [table(head, rows), unrecorded]
    slow_ones = sorted(result["boards"]["fleet"], key=lambda a: -a.cpu)[:8]
    rows = [[a.name, f"{a.seconds:.2f}", f"{a.cpu:.2f}", str(a.series)] for a in slow_ones]
    parts.append(table(["slowest of Fleet", "s", "CPU, s", "series"], rows))
    costs: dict[str, float] = {}
    for r in result["rules"]:
        costs[r["group"]] = costs.get(r["group"], 0.0) + r["cpu"]
    rows = [
        [
            group,
            f"{result['counts'].get(group, 0):.0f}",
            f"{(every := result['intervals'].get(group, 15)):g}",
            f"{cpu:.2f}",
            f"{1000 * cpu / every:.0f}",
            *([f"{s:.2f}" for s in result["groups"].get(group, ())] or ["–", "–"]),
        ]
        for group, cpu in sorted(costs.items(), key=lambda item: -item[1])
    ]
    head = ["rule group", "rules", "every, s", "CPU, s", "CPU, ms/s", "evaluation, s", "slowest, s"]
    parts.append(table(head, rows))
    dear = sorted(result["rules"], key=lambda r: -r["cpu"])[:20]
    rows = [[r["name"], r["group"], f"{r['cpu']:.2f}", f"{r['seconds']:.2f}", str(r["series"])] for r in dear]
    parts.append(table(["dearest rules", "group", "CPU, s", "took, s", "series"], rows))
    parts.append(
        table(["goal", "measured", "verdict"], [[g.name, g.measured, g.verdict] for g in goals(result)])
    )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=3072, metavar="N", help="in the fleet [3072]")
    parser.add_argument("--every-series", action="store_true", help="load what nothing asks for, too")
    parser.add_argument("--times", type=int, default=3, metavar="N", help="each query [3]")
    parser.add_argument("--minutes", type=float, default=3, metavar="N", help="of the rules [3]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there, too")
    a = parser.parse_args()
    if shutil.which("prometheus") is None:
        parser.error("prometheus is not installed (Debian: prometheus)")
    result = run(a.replicas, a.every_series, a.times, a.minutes)
    print(markdown(result))
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
