"""Every query of every board and rule, asked of a live Prometheus: what answers, what doesn't, and why that may be.

Where nothing answers, a reason must stand in REASONS: hardware that is not here, a feature that is off, or something
that has not happened. A query without series and without a reason is a fault of the board or rule.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.report import table
from tests.dashboards.queries import boards, metrics_of, panels, rules, substituted

#: (pattern of scraped metrics, why they may be absent). The first that matches one of a query's counts.
REASONS: tuple[tuple[str, str], ...] = (
    (r"exaserve_gpu_.*", "no GPU"),
    (r"exaserve_infiniband_.*", "no InfiniBand or RoCE port"),
    (r"exaserve_loadtest_.*", "no load test"),
    (r"exaserve_chaos_.*", "no chaos run"),
    (r"exaserve_intent_drift_.*", "intents are off, or too few were seen for a drift"),
    (r"exaserve_router_classifications_total", "intents are off"),
    (r"exaserve_router_(audit|spans)_.*", "audit or tracing is off"),
    (r"exaserve_router_tls_.*", "TLS is off"),
    (r"exaserve_router_(retries|retries_denied|hedges|fallbacks|rejected_requests|cut_answers|tunnels)_total", "none yet"),
    (r"exaserve_router_(rate_limited_requests|client_disconnects|worker_restarts)_total", "none yet"),
    (r"exaserve_replica_ejections_total", "none yet"),
    (r"exaserve_network_.*", "no peers are configured"),
    (r"exaserve_storage_.*", "no mounts are configured"),
    (r"exaserve_numa_.*", "a kernel without NUMA, or nothing measured yet"),
    (r"exaserve_kv_transfer.*", "no KV transfers"),
    (r"exaserve_engine_(admission_rejections|requests_waiting_by_reason).*", "the engine does not say"),
    (r"ALERTS", "no alert fires"),
)  # fmt: skip
#: The same for recorded series: what a young or healthy fleet does not have.
HEALTHY: tuple[tuple[str, str], ...] = (
    (r"pool:\w+:band_(lower|median|upper)", "an hour of history"),
    (r"slo:\S+_sampled2m", "two minutes of history"),
    (r"replica:\w+:fit30m", "half an hour of history"),
    (r"mount:exaserve_storage_available_bytes:predicted_1d", "hours of history"),
    (r"slo:exaserve_error_budget_left:.*", "a longer history"),
    (r"slo:exaserve_error_budget_exhausted_in:seconds", "nothing spends the budget"),
    (r"model:\w+:(mad5m|outlier_threshold)", "four replicas"),
    (r"route:exaserve_router_bad_requests:ratio_rate5m", "no bad requests"),
    (r"replica:exaserve_numa_remote:count", "no replica on a wrong node"),
    (r"cluster:exaserve_node_software_partial:count", "all nodes have the same versions"),
    (r"router:exaserve_overhead_seconds:p99_5m", "100 requests in 5 minutes"),
)
#: Queries (parts of their text) whose answer is empty where all is well or the fleet is young.
QUERIES = (
    (r"offset 1w", "a week of history"),
    (r'exaserve_replica_state\{state!~"ready\|degraded"', "every replica serves"),
    (r'exaserve_router_requests_total\{.*code=~"4\.\.\|5\.\."', "no failures"),
    (r"exaserve_node_software_info", "all nodes have the same versions"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One query. series: of its answer. why: the reason for none, "" without any."""

    where: str
    panel: str
    query: str
    series: int
    why: str


class Live:
    """Asks one Prometheus about the files of one source."""

    def __init__(
        self,
        url: str,
        folder: Path,
        reasons: tuple[tuple[str, str], ...] = REASONS,
        queries: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """reasons: metrics that may be absent here, beside HEALTHY. queries: as QUERIES, beside them."""
        self._client = httpx.Client(base_url=url, timeout=60)
        self._folder = folder
        self._reasons = (*HEALTHY, *reasons)
        self._queries = (*QUERIES, *queries)
        self._expr: dict[str, list[str]] = {}
        for rule in rules(folder):
            if "record" in rule:
                self._expr.setdefault(rule["record"], []).append(rule["expr"])

    def ask(self, promql: str) -> int:
        """Number of series. Raises AssertionError if Prometheus refuses the query."""
        answer = self._client.post("/api/v1/query", data={"query": promql}).json()
        assert answer["status"] == "success", f"{answer.get('error')}: {promql}"
        return len(answer["data"]["result"])

    def again(self, before: Answer) -> Answer:
        """The same query now."""
        return self._answer(before.where, before.panel, before.query)

    def board_answers(self) -> list[Answer]:
        """Every query of every board."""
        found = []
        for name, board in boards(self._folder).items():
            variables = [v["name"] for v in board["templating"]["list"] if v["type"] != "datasource"]
            for panel in panels(board):
                for target in panel.get("targets", ()):
                    promql = substituted(target["expr"], variables)
                    found.append(self._answer(name, panel["title"], promql))
        return found

    def rule_answers(self) -> list[Answer]:
        """Every recording rule's series; and of every alert each metric that it asks for, since none may fire."""
        found = []
        for rule in rules(self._folder):
            if "record" in rule:
                found.append(self._answer("rules", rule["record"], rule["record"]))
            else:
                found += [
                    self._answer("rules", rule["alert"], f'{{__name__="{metric}"}}')
                    for metric in sorted(metrics_of(rule["expr"]))
                ]
        return found

    def variable_answers(self) -> list[Answer]:
        """Every variable of every board that takes its values from a label."""
        found = []
        for name, board in boards(self._folder).items():
            listed = [v for v in board["templating"]["list"] if v["type"] == "query"]
            names = [v["name"] for v in listed]
            for variable in listed:
                selector, label = selector_and_label(variable)
                promql = f"group by ({label}) ({substituted(selector, names)})"
                found.append(self._answer(name, f"${variable['name']}", promql))
        return found

    def _answer(self, where: str, panel: str, promql: str) -> Answer:
        series = self.ask(promql)
        return Answer(where, panel, promql, series, "" if series else self.why(promql))

    def why(self, promql: str) -> str:
        """The reason for which a query may have no series; "" if there is none.

        What is there is no reason, however it is called.
        """
        names = self._roots(promql)
        for pattern, reason in self._reasons:
            if any(re.fullmatch(pattern, name) and not self._there(name) for name in names):
                return reason
        return next((reason for part, reason in self._queries if re.search(part, promql)), "")

    def _there(self, metric: str) -> bool:
        """Whether it has series now; the histogram's name stands for its parts."""
        if metric == "ALERTS":  # the watchdog always fires
            return False
        return self.ask(f'{{__name__="{metric}"}}') > 0

    def _roots(self, promql: str) -> list[str]:
        """All that a query needs: recorded series, directly or not, and what those are recorded from."""
        names = list(metrics_of(promql))
        for name in names:
            more = {metric for expr in self._expr.get(name, ()) for metric in metrics_of(expr)}
            names += sorted(more - set(names))
        return names


def selector_and_label(variable: dict[str, Any]) -> tuple[str, str]:
    """Of a variable's ``label_values(selector, label)``."""
    query = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
    selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(",")
    return selector, label.strip()


def by_board(answers: list[Answer]) -> str:
    """A table: each board's panels, how many have data, how many don't, and why."""
    rows = []
    for where in dict.fromkeys(a.where for a in answers):
        here = [a for a in answers if a.where == where]
        titles = list(dict.fromkeys(a.panel for a in here))
        lacking = [t for t in titles if not any(a.series for a in here if a.panel == t)]
        whys: dict[str, int] = {}
        for title in lacking:
            why = next((a.why for a in here if a.panel == title and a.why), "?")
            whys[why] = whys.get(why, 0) + 1
        said = ", ".join(f"{why} ({n})" for why, n in sorted(whys.items(), key=lambda item: -item[1]))
        silent = sum(1 for a in here if not a.series)
        rows.append([where, *map(str, (len(titles), len(titles) - len(lacking), len(lacking), len(here), silent)), said or "–"])  # fmt: skip
    return table(["board", "panels", "with data", "without", "queries", "silent", "why"], rows)


def until_answered(live: Live, answers: list[Answer], seconds: float) -> list[Answer]:
    """The answers, those without series and reason asked again until they have either, at most ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(not a.series and not a.why for a in answers):
        time.sleep(2)
        answers = [a if a.series else live.again(a) for a in answers]
    return answers


def unexplained(answers: list[Answer]) -> list[str]:
    """Those without series and without a reason, for people."""
    return [f"{a.where}: {a.panel}: {a.query}" for a in answers if not a.series and not a.why]
