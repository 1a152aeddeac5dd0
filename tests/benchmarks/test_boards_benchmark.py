"""The boards' benchmark measures what it says: samples arrive as written, rules come in order, nothing stays recorded."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.benchmarks.boards import FOLDER, in_order
from tests.benchmarks.fleet_series import fleet
from tests.benchmarks.own_prometheus import Prometheus
from tests.benchmarks.remote_write import Series, Writer, labels
from tests.benchmarks.unrecorded import Unrecorded
from tests.dashboards.queries import board_queries, metrics_of


@pytest.mark.real
@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed (Debian: prometheus)")
def test_samples_are_in_prometheus_as_they_were_written(tmp_path: Path) -> None:
    now = time.time() // 15 * 15
    prometheus = Prometheus(tmp_path)
    try:
        writer = Writer(prometheus.url)
        writer.write(
            [
                Series(labels("up", {"job": "x", "replica": "replica-0", "empty": ""}), False, 1.0, 0, False),
                Series(labels("requests_total", {"code": "200"}), True, 2.0, 0, False),
            ],
            [now - 30, now - 15, now],
        )
        assert writer.samples == 6
        assert [(s["metric"], s["value"][1]) for s in prometheus.ask("up", now)] == [
            ({"__name__": "up", "job": "x", "replica": "replica-0"}, "1")
        ]
        assert [s["value"][1] for s in prometheus.ask("deriv(requests_total[1m])", now)] == ["2"]
        with pytest.raises(RuntimeError, match="parse error"):
            prometheus.ask("up{", now)
    finally:
        prometheus.stop()


def test_a_rule_comes_after_those_that_record_what_it_asks_for() -> None:
    rules = in_order()
    last = {rule.record: i for i, rule in enumerate(rules) if rule.record}
    late = {
        (rule.record or rule.data["alert"], name)
        for i, rule in enumerate(rules)
        for name in metrics_of(rule.data["expr"])
        if name != rule.record and last.get(name, -1) > i
    }
    assert late == set()


def test_queries_without_recording_rules_parse_and_ask_for_what_was_scraped() -> None:
    unrecorded = Unrecorded()
    for name, promql in board_queries(FOLDER):
        if name.startswith("fleet: "):
            whole = unrecorded.of(promql)
            if "[" not in promql and "offset" not in whole:
                recorded = {m for m in metrics_of(whole) if ":" in m and not m.startswith("vllm:")}
                assert recorded == set() or "_over_time" in whole, name


def test_every_replica_of_the_fleet_is_known_to_both_routers_and_read_by_one_exporter() -> None:
    found = [s.labels for s in fleet(9, {"exaserve_replica_up", "exaserve_kv_blocks", "up"}.__contains__)]
    assert len(found) == len(set(found)) == 9 * 2 + 9 + (9 + 2 + 2)
