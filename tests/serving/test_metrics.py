"""The router's numbers: what a request adds, how workers are added up, what stays of one that died."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporters.catalog import CATALOG
from serving.fleet.replica import Replica
from serving.router import merge, metrics
from serving.router.merge import Page, Totals
from serving.router.metrics import RouterMetrics
from serving.router.snapshot import Snapshot

LABELS = ("chat_completions", "m", "default", "", "acme")


def page(totals: Totals, *replicas: Replica) -> dict[str, Any]:
    """Families of the page, as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page(totals.sum(), replicas))
    text = generate_latest(registry).decode()
    return {f.name: f for f in text_string_to_metric_families(text)}


def value(families: dict[str, Any], name: str, **labels: str) -> float | None:
    """The sample of that name and exactly these labels; None if there is none."""
    found = [s.value for f in families.values() for s in f.samples if s.name == name and s.labels == labels]
    assert len(found) < 2
    return found[0] if found else None


def over_the_channel(snapshot: Snapshot) -> Snapshot:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=Snapshot)


def of(*numbers: RouterMetrics) -> Totals:
    totals = Totals()
    for worker, m in enumerate(numbers):
        totals.take(worker, over_the_channel(m.snapshot()))
    return totals


NAMED = dict(zip(("route", "model", "pool", "intent", "tenant"), LABELS, strict=True))


def test_a_stream_is_counted_in_every_histogram_at_its_bucket() -> None:
    m = RouterMetrics()
    m.series(*LABELS).done(200, 2.0, first=0.25, queued=0.02, overhead=0.0002, chunks=11, gaps=0.5)
    families = page(of(m))
    assert value(families, "exaserve_router_requests_total", **NAMED, code="200") == 1
    for name, below, at, total, count in (
        ("request_duration_seconds", "1.0", "2.0", 2.0, 1),
        ("time_to_first_token_seconds", "0.1", "0.25", 0.25, 1),
        ("time_per_output_chunk_seconds", "0.04", "0.05", 0.5, 10),  # ten gaps of 50 ms
        ("queue_duration_seconds", "0.01", "0.025", 0.02, 1),
    ):
        name = f"exaserve_router_{name}"
        assert value(families, f"{name}_bucket", **NAMED, le=below) == 0, name
        assert value(families, f"{name}_bucket", **NAMED, le=at) == count, name
        assert value(families, f"{name}_sum", **NAMED) == total
        assert value(families, f"{name}_count", **NAMED) == count
    assert (
        value(families, "exaserve_router_overhead_seconds_bucket", route="chat_completions", le="0.00025")
        == 1
    )
    assert (
        value(families, "exaserve_router_overhead_seconds_bucket", route="chat_completions", le="0.0001") == 0
    )


def test_what_was_not_measured_is_not_counted() -> None:
    m = RouterMetrics()
    m.series(*LABELS).done(503, 0.5)
    families = page(of(m))
    assert value(families, "exaserve_router_request_duration_seconds_count", **NAMED) == 1
    for name in ("time_to_first_token", "time_per_output_chunk", "queue_duration"):
        assert value(families, f"exaserve_router_{name}_seconds_count", **NAMED) == 0


def test_a_request_that_did_not_wait_counts_in_the_lowest_queue_bucket() -> None:
    m = RouterMetrics()
    m.series(*LABELS).done(200, 0.5, queued=0.0)
    assert value(page(of(m)), "exaserve_router_queue_duration_seconds_bucket", **NAMED, le="0.001") == 1


def test_a_stream_of_one_chunk_has_no_gap() -> None:
    m = RouterMetrics()
    m.series(*LABELS).done(200, 0.5, first=0.5, chunks=1, gaps=0.0)
    assert value(page(of(m)), "exaserve_router_time_per_output_chunk_seconds_count", **NAMED) == 0


def test_workers_are_added_up() -> None:
    a, b = RouterMetrics(), RouterMetrics()
    for m, n in ((a, 2), (b, 3)):
        for _ in range(n):
            m.series(*LABELS).done(200, 0.02)
        m.series(*LABELS).cut += 1
        m.reject("capacity", "default", "acme")
        m.disconnects += n
        m.gauge("exaserve_router_client_connections", (), lambda n=n: n)  # type: ignore[misc]
        m.gauge("exaserve_router_panic", ("default",), lambda: 1)
    families = page(of(a, b))
    assert value(families, "exaserve_router_requests_total", **NAMED, code="200") == 5
    assert value(families, "exaserve_router_cut_answers_total", **NAMED) == 2
    assert value(families, "exaserve_router_request_duration_seconds_sum", **NAMED) == pytest.approx(0.1)
    rejected = {"reason": "capacity", "pool": "default", "tenant": "acme"}
    assert value(families, "exaserve_router_rejected_requests_total", **rejected) == 2
    assert value(families, "exaserve_router_client_disconnects_total") == 5
    assert value(families, "exaserve_router_client_connections") == 5
    assert value(families, "exaserve_router_panic", pool="default") == 1, "a state is not added up"


def test_a_dead_worker_leaves_its_counters_and_takes_its_gauges_along() -> None:
    old, new = RouterMetrics(), RouterMetrics()
    for m in (old, new):
        m.gauge("exaserve_router_client_connections", (), lambda: 4)
    for _ in range(7):
        old.series(*LABELS).done(200, 0.02)
    totals = of(old)
    totals.retire(0)
    families = page(totals)
    assert value(families, "exaserve_router_requests_total", **NAMED, code="200") == 7
    assert value(families, "exaserve_router_client_connections") is None
    new.series(*LABELS).done(200, 0.02)
    totals.take(0, over_the_channel(new.snapshot()))
    families = page(totals)
    assert value(families, "exaserve_router_requests_total", **NAMED, code="200") == 8
    assert value(families, "exaserve_router_client_connections") == 4
    totals.retire(0)
    totals.retire(0)
    assert value(page(totals), "exaserve_router_requests_total", **NAMED, code="200") == 8


def test_a_snapshot_has_only_the_series_that_changed_and_the_sum_has_all() -> None:
    m, totals = RouterMetrics(), Totals()
    m.series(*LABELS).done(200, 0.02)
    totals.take(0, over_the_channel(m.snapshot()))
    m.series("completions", *LABELS[1:]).done(200, 0.02)
    later = over_the_channel(m.snapshot())
    assert [row.labels[0] for row in later.series] == ["completions"]
    totals.take(0, later)
    assert len(totals.sum().series) == 2
    assert m.snapshot().series == []
    assert len(m.snapshot(whole=True).series) == 2


def test_summing_does_not_change_what_is_summed() -> None:
    a, b = RouterMetrics(), RouterMetrics()
    a.series(*LABELS).done(200, 0.02)
    b.series(*LABELS).done(200, 0.02)
    totals = of(a, b)
    for _ in range(3):
        assert value(page(totals), "exaserve_router_requests_total", **NAMED, code="200") == 2


def test_tenants_then_all_labels_are_folded_where_there_would_be_too_many_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "MAX_SERIES", 3)
    m = RouterMetrics()
    for i in range(20):
        m.series("chat_completions", "m", "default", "", f"t{i}").done(200, 0.02)
    for i in range(20):
        m.series("chat_completions", f"m{i}", "default", "", "t").done(200, 0.02)
    labels = [row.labels for row in m.snapshot().series]
    assert len(labels) <= 2 * 3 + 1
    assert ("chat_completions", "m", "default", "", "other") in labels
    assert metrics.OTHER in labels
    assert m.value("exaserve_router_requests_total") == 40


def test_a_replica_that_answers_with_any_status_does_not_make_series_without_end() -> None:
    m = RouterMetrics()
    for status in range(100, 999):
        m.series(*LABELS).done(status, 0.02)
    codes = m.snapshot().series[0].codes
    assert len(codes) == metrics.MAX_CODES + 1
    assert sum(codes.values()) == 899


def test_counters_with_names_reasons_or_labels_that_are_not_declared_are_refused() -> None:
    m = RouterMetrics()
    with pytest.raises(KeyError, match=r"exporters/catalog"):
        m.count("exaserve_router_made_up_total")
    with pytest.raises(ValueError, match="labels"):
        m.count("exaserve_router_hedges_total", ("a", "b"))
    with pytest.raises(KeyError, match="REJECTION_REASONS"):
        m.reject("made_up")
    with pytest.raises(KeyError, match="RETRY_REASONS"):
        m.retry("made_up")
    with pytest.raises(ValueError, match="labels"):
        m.gauge("exaserve_router_panic", (), lambda: 1)


def test_counters_are_found_by_some_of_their_labels() -> None:
    m = RouterMetrics()
    m.reject("capacity", "a")
    m.reject("capacity", "b")
    m.reject("schema", "a")
    assert m.value("exaserve_router_rejected_requests_total", reason="capacity") == 2
    assert m.value("exaserve_router_rejected_requests_total", pool="a") == 2
    m.series(*LABELS).done(200, 0.1)
    assert m.value("exaserve_router_requests_total", tenant="acme", code="200") == 1


def test_every_metric_of_the_router_is_on_an_empty_page_with_its_kind_and_labels() -> None:
    families = page(Totals())
    for name, m in CATALOG.items():
        if name.startswith(("exaserve_router_", "exaserve_replica_")):
            family = families[name.removesuffix("_total")]
            assert family.type == m.kind
            assert all(set(s.labels) - {"le"} == set(m.labels) for s in family.samples), name
    assert (
        value(families, "exaserve_router_rejected_requests_total", reason="capacity", pool="", tenant="") == 0
    )


def test_in_flight_of_a_replica_is_the_sum_over_workers() -> None:
    r = Replica("a", "http://x:1", "x", 1)
    r.others = 5  # the master has none of its own
    families = page(Totals(), r)
    assert value(families, "exaserve_replica_in_flight_requests", replica="a", model="") == 5
    assert set(CATALOG) >= merge.LARGEST
