"""The page for Prometheus: exactly the declared series, with the numbers that were told; and what locust's page shows."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dashboards import scraping
from exporters.catalog.loadtest import METRICS
from loadtest._lib import _metrics_page, _run, _web
from loadtest._lib._metrics import Digest, Metrics
from serving.config import Config
from serving.monitoring import prometheus_config
from tests.loadtest.fabricate import START, failed, record

Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def told(metrics: Metrics, digest: Digest | None = None) -> Digest:
    digest = digest or Digest()
    digest.put(metrics.take())
    return digest


def begun(**keys: Any) -> Metrics:
    metrics = Metrics()
    metrics.begin(
        "run-1",
        "chat",
        ["chat"],
        {"ttft": 1.0, "itl": None},
        **{"baseline": "run-0", "started": START, **keys},
    )
    return metrics


def page(digest: Digest) -> Page:
    text = _metrics_page.text(digest).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(of: Page, name: str, **labels: str) -> float:
    found = [
        number
        for (metric, has), number in of.items()
        if metric == f"exaserve_loadtest_{name}" and labels.items() <= dict(has).items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def full() -> Metrics:
    """A run in which everything has happened at least once."""
    metrics = begun()
    metrics.ended(record(0, ttft=0.2), good=True)
    metrics.ended(record(1, ttft=0.4), good=True)
    metrics.ended(record(2, ttft=1.5), good=False)
    metrics.ended(failed(3, "cut", "cut stream"), good=False)
    metrics.ended(record(4, outcome="unsent", sent=None, first=None, last=None), good=False)
    metrics.ended(record(5, phase="warmup", ttft=9.0), good=False)
    metrics.counted("0", {"chat/measured": 7, "chat/warmup": 1}, {"chat/measured": 6, "chat/warmup": 1})
    metrics.users("0", {"chat": 2})
    metrics.client("0", 0.25, [0.001, 0.02])
    metrics.client("master", 0.05, [0.0])
    return metrics


def test_series_are_exactly_the_declared_ones_with_their_labels() -> None:
    found: dict[str, set[frozenset[str]]] = {}
    for family in text_string_to_metric_families(_metrics_page.text(told(full())).decode()):
        for sample in family.samples:
            name = sample.name
            if family.type == "histogram":
                name = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
            found.setdefault(name, set()).add(frozenset(sample.labels) - {"le"})
    assert found == {m.name: {frozenset(m.labels)} for m in METRICS}


def test_promtool_has_nothing_to_say_about_the_page() -> None:
    run = subprocess.run(
        ["promtool", "check", "metrics"],
        input=_metrics_page.text(told(full())),
        capture_output=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_numbers_are_those_that_were_told() -> None:
    of = page(told(full()))
    phase = {"profile": "chat", "phase": "measured"}
    assert value(of, "run_info", run="run-1", profile="chat", baseline="run-0") == 1
    assert value(of, "run_start_timestamp_seconds") == START
    assert value(of, "run_void") == 0
    assert value(of, "offered_requests_total", **phase) == 7
    assert value(of, "started_requests_total", **phase) == 6
    assert value(of, "completed_requests_total", **phase) == 3
    assert value(of, "good_requests_total", **phase) == 2
    assert value(of, "failed_requests_total", reason="cut", **phase) == 1
    assert value(of, "failed_requests_total", reason="timeout", **phase) == 0
    assert value(of, "in_flight_requests", profile="chat") == 2
    assert value(of, "users", profile="chat") == 2
    assert value(of, "slo_attainment_ratio", profile="all") == 2 / 5
    assert value(of, "slo_threshold_seconds", latency="ttft", profile="all") == 1
    assert value(of, "tokens_total", kind="output", **phase) == 30
    assert value(of, "tokens_total", kind="input", **phase) == 90
    assert value(of, "chunks_total", **phase) == 30
    assert value(of, "client_cpu_ratio", worker="0") == 0.25
    assert value(of, "event_loop_delay_seconds_count", worker="0") == 2
    assert value(of, "schedule_lag_seconds_count", **phase) == 4
    assert value(of, "completed_requests_total", profile="chat", phase="warmup") == 1


def test_requests_add_up_as_the_catalogue_says() -> None:
    of = page(told(full()))
    phase = {"profile": "chat", "phase": "measured"}
    reasons = sum(n for (m, has), n in of.items() if "failed_requests" in m and ("phase", "measured") in has)
    flying = value(of, "in_flight_requests", profile="chat")
    done = value(of, "completed_requests_total", **phase)
    assert value(of, "started_requests_total", **phase) == done + reasons + flying


def test_quantiles_are_of_the_measured_phase_and_exact() -> None:
    of = page(told(full()))
    for q, expected in (("0.5", 0.4), ("0.95", 1.5), ("0.99", 1.5), ("0.999", 1.5)):
        for profile in ("chat", "all"):
            assert value(of, "latency_quantile_seconds", latency="ttft", q=q, profile=profile) == expected


def test_buckets_are_cumulative_and_what_is_at_a_bound_is_inside_it() -> None:
    metrics = begun()
    for number, ttft in enumerate((0.25, 0.26)):
        metrics.ended(record(number, ttft=ttft, gaps=[]), good=True)
    of = page(told(metrics))
    phase = {"profile": "chat", "phase": "measured"}
    assert value(of, "time_to_first_token_seconds_bucket", le="0.25", **phase) == 1
    assert value(of, "time_to_first_token_seconds_bucket", le="+Inf", **phase) == 2
    assert value(of, "time_to_first_token_seconds_sum", **phase) == pytest.approx(0.51)


def test_a_run_begins_at_zero_with_its_profiles_and_ends_with_its_info_gone() -> None:
    metrics, digest = begun(), Digest()
    of = page(told(metrics, digest))
    for phase in ("warmup", "measured"):
        assert value(of, "offered_requests_total", profile="chat", phase=phase) == 0
        assert value(of, "time_to_first_token_seconds_count", profile="chat", phase=phase) == 0
    assert not any(m.endswith(("attainment_ratio", "quantile_seconds")) for m, _ in of)
    metrics.ended(record(0), good=True)
    metrics.end()
    of = page(told(metrics, digest))
    assert not any(m.endswith("run_info") for m, _ in of)
    assert value(of, "completed_requests_total", phase="measured") == 1


def test_the_next_run_has_nothing_of_the_one_before() -> None:
    metrics, digest = full(), Digest()
    told(metrics, digest)
    metrics.begin("run-2", "chat", ["chat"], {})
    of = page(told(metrics, digest))
    assert {dict(has)["run"] for _, has in of} == {"run-2"}
    assert value(of, "completed_requests_total", phase="measured") == 0
    assert len(digest.history) == 1


def test_a_closed_loop_has_no_schedule_lag_and_before_a_run_the_page_is_empty() -> None:
    metrics = begun()
    metrics.ended(replace(record(0), due=None), good=True)
    assert not any("schedule_lag" in m for m, _ in page(told(metrics)))
    assert page(Digest()) == {}


def test_workers_counts_are_added_up_and_never_fall_below_what_has_ended() -> None:
    metrics = begun()
    metrics.counted("0", {"chat/measured": 3}, {"chat/measured": 3})
    metrics.counted("1", {"chat/measured": 4}, {"chat/measured": 2})
    metrics.counted("1", {"chat/measured": 5}, {"chat/measured": 3})
    of = page(told(metrics))
    assert value(of, "offered_requests_total", phase="measured") == 8
    assert value(of, "in_flight_requests") == 6
    for number in range(9):
        metrics.ended(record(number), good=True)
    of = page(told(metrics))
    assert value(of, "offered_requests_total", phase="measured") == 9
    assert value(of, "in_flight_requests") == 0


def test_void_is_what_is_known_now() -> None:
    metrics, digest = begun(), Digest()
    metrics.void(["CPU of worker 0"])
    assert value(page(told(metrics, digest)), "run_void") == 1
    metrics.void([])
    assert value(page(told(metrics, digest)), "run_void") == 0


def test_locusts_tables_have_exact_milliseconds_and_the_state_of_the_run() -> None:
    digest = told(full())
    first = _web.latencies(digest)[0]
    assert first["profile"] == "all"
    assert first["latency"] == "TTFT"
    assert (first["count"], first["p50"], first["p99"], first["limit"]) == (
        "3",
        "400.00",
        "1,500.00",
        "1,000.00",
    )
    facts = {row["what"]: row["value"] for row in _web.facts(digest)}
    assert facts["SLO attainment"] == "40.00 %"
    assert (facts["Offered"], facts["Failed"], facts["Void"]) == ("7", "1", "no")


def test_before_a_run_locusts_tables_say_so() -> None:
    assert _web.latencies(Digest()) == []
    assert _web.facts(Digest())[0]["value"] == "none yet"


def test_every_generated_scrape_configuration_has_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack's Prometheus looks where a run writes its address, whatever port it got."""
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    jobs = {job["job_name"]: job for job in yaml.safe_load(prometheus_config(Config()))["scrape_configs"]}
    files = jobs["exaserve-loadtest"]["file_sd_configs"][0]["files"]
    assert files == [str(_run.home() / "targets" / "*.json")]
    assert all("exaserve-loadtest" in {job.name for job in of} for of in scraping.JOBS.values())
