"""A run's numbers as the series of ``exporters/catalog/loadtest.py``: exactly those, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

from exporters.catalog.loadtest import LATENCIES, METRICS
from exporters.catalog.metric import Metric
from loadtest._lib._metrics import (
    ALL,
    BUCKETS,
    MEASURED,
    QUANTILES,
    Digest,
    Histogram,
    Taken,
    attainment,
    totals,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "exaserve_loadtest_"
_COUNTS = {
    "offered_requests_total": "offered",
    "started_requests_total": "started",
    "completed_requests_total": "completed",
    "good_requests_total": "good",
    "chunks_total": "chunks",
}
_SPANS = {
    "time_to_first_token_seconds": "ttft",
    "inter_token_seconds": "itl",
    "time_per_output_token_seconds": "tpot",
    "request_duration_seconds": "e2e",
    "schedule_lag_seconds": "lag",
}
#: Of these a closed loop has none, so that they are absent there.
_ONLY_OPEN = "lag"


def text(digest: Digest) -> bytes:
    """The whole page; without any line before the first run."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(digest))
    return bytes(generate_latest(registry))


class _Page(Collector):
    def __init__(self, digest: Digest) -> None:
        self._digest = digest

    def collect(self) -> Iterator[Family]:
        taken = self._digest.taken
        if taken is None or taken.run is None:
            return
        for metric in METRICS:
            family = _family(metric)
            for labels, value in _samples(metric.name.removeprefix(_PREFIX), taken, self._digest):
                if isinstance(value, Histogram):
                    family.add_metric(labels, _buckets(metric, value), value.sum)
                else:
                    family.add_metric(labels, value)
            yield family


_Sample = tuple[tuple[str, ...], float | Histogram]


def _samples(name: str, taken: Taken, digest: Digest) -> Iterator[_Sample]:
    """Label values (in the catalogue's order) and value of every series of one metric."""
    run = taken.run
    assert run is not None
    profiles = sorted({profile for profile, _ in taken.counts})
    match name:
        case "run_info":
            if taken.lasts:
                yield (run.name, run.profile, run.baseline), 1.0
        case "run_start_timestamp_seconds":
            yield (run.name,), run.started
        case "run_void":
            yield (run.name,), float(bool(taken.void))
        case "failed_requests_total":
            for (profile, phase), counts in taken.counts.items():
                for reason, number in counts.failed.items():
                    yield (run.name, profile, phase, reason), number
        case "in_flight_requests":
            for profile in profiles:
                flying = sum(counts.in_flight for (of, _), counts in taken.counts.items() if of == profile)
                yield (run.name, profile), flying
        case "users":
            for profile, number in taken.users.items():
                yield (run.name, profile), number
        case "slo_attainment_ratio":
            measured = {p: counts for (p, phase), counts in taken.counts.items() if phase == MEASURED}
            for profile, counts in (*measured.items(), (ALL, totals(taken, MEASURED))):
                share = attainment(counts)
                if share is not None:
                    yield (run.name, profile), share
        case "slo_threshold_seconds":
            for latency, limit in run.slo.items():
                yield (run.name, ALL, latency), limit
        case "latency_quantile_seconds":
            for profile in (*profiles, ALL):
                for latency in LATENCIES:
                    for q, value in zip(QUANTILES, digest.quantiles(profile, latency), strict=True):
                        if value is not None:
                            yield (run.name, profile, latency, f"{q:g}"), value
        case "tokens_total":
            for (profile, phase), counts in taken.counts.items():
                yield (run.name, profile, phase, "input"), counts.input_tokens
                yield (run.name, profile, phase, "output"), counts.output_tokens
        case "client_cpu_ratio":
            for worker, share in taken.cpu.items():
                yield (run.name, worker), share
        case "event_loop_delay_seconds":
            for (kind, worker, _), histogram in digest.histograms.items():
                if kind == "delay":
                    yield (run.name, worker), histogram
        case _ if name in _COUNTS:
            for (profile, phase), counts in taken.counts.items():
                yield (run.name, profile, phase), getattr(counts, _COUNTS[name])
        case _ if name in _SPANS:
            yield from _histograms(_SPANS[name], taken, digest)
        case _:
            raise KeyError(f"{name} is declared, and nobody says it")


def _histograms(kind: str, taken: Taken, digest: Digest) -> Iterator[_Sample]:
    assert taken.run is not None
    seen = {key for key in digest.histograms if key[0] == kind}
    if kind == _ONLY_OPEN and not seen:
        return
    for profile, phase in taken.counts:
        histogram = digest.histograms.get((kind, profile, phase)) or Histogram(BUCKETS[kind])
        yield (taken.run.name, profile, phase), histogram


def _family(metric: Metric) -> Any:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
    kind = GaugeMetricFamily if metric.kind == "gauge" else HistogramMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)


def _buckets(metric: Metric, histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus has them."""
    upto = histogram.numbers.cumsum()
    names = [*(floatToGoString(bound) for bound in metric.buckets), "+Inf"]
    return [(name, int(number)) for name, number in zip(names, upto, strict=True)]
