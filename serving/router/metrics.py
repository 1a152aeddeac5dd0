"""The router's numbers: plain counters on the hot path, turned into metrics when somebody scrapes.

Series of a replica exist while the replica is in the fleet, and no longer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from exporters.catalog import LATENCY_BUCKETS, metric
from serving.fleet.replica import OUTCOMES, PROBE_RESULTS, STATES, Replica
from serving.router.errors import REJECTION_REASONS

RETRY_REASONS = ("refused", "reset", "frozen", "down", "stale")


class Histogram:
    """Counts by LATENCY_BUCKETS (upper bound included) and the sum of the values, in seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus has them."""
        total, out = 0, []
        for bound, count in zip((*map(str, LATENCY_BUCKETS), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out


class RouterMetrics:
    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.durations: dict[str, Histogram] = {}
        self.first_tokens: dict[str, Histogram] = {}
        self.rejected = dict.fromkeys(REJECTION_REASONS, 0)
        self.retries = dict.fromkeys(RETRY_REASONS, 0)
        self.disconnects = 0

    def request(self, route: str, status: int, seconds: float, first_token: float | None) -> None:
        key = (route, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        histogram = self.durations.get(route)
        if histogram is None:
            histogram = self.durations[route] = Histogram()
        histogram.observe(seconds)
        if first_token is not None:
            histogram = self.first_tokens.get(route)
            if histogram is None:
                histogram = self.first_tokens[route] = Histogram()
            histogram.observe(first_token)

    def reject(self, reason: str) -> None:
        self.rejected[reason] += 1

    def retry(self, reason: str) -> None:
        self.retries[reason] += 1


class RouterCollector(Collector):
    """Renders them. Runs in the admin thread: it copies what the data plane may change meanwhile."""

    def __init__(self, numbers: RouterMetrics, replicas: Sequence[Replica], clients: set[object]) -> None:
        self.numbers = numbers
        self.replicas = replicas
        self.clients = clients

    def collect(self) -> Iterator[Metric]:
        yield from self._router()
        yield from self._replicas()

    def _router(self) -> Iterator[Metric]:
        n = self.numbers
        yield _gauge("exaserve_router_build_info", [((version("exaserve"),), 1)])
        yield _counter(
            "exaserve_router_requests_total",
            [((r, str(code)), v) for (r, code), v in list(n.requests.items())],
        )
        yield _histogram("exaserve_router_request_duration_seconds", n.durations)
        yield _histogram("exaserve_router_time_to_first_token_seconds", n.first_tokens)
        yield _counter("exaserve_router_rejected_requests_total", [((k,), v) for k, v in n.rejected.items()])
        yield _counter("exaserve_router_retries_total", [((k,), v) for k, v in n.retries.items()])
        yield _counter("exaserve_router_client_disconnects_total", [((), n.disconnects)])
        yield _gauge("exaserve_router_client_connections", [((), len(self.clients))])

    def _replicas(self) -> Iterator[Metric]:
        rows = [((r.name, r.model), r) for r in list(self.replicas)]
        yield _gauge("exaserve_replica_up", [(k, int(r.in_rotation)) for k, r in rows])
        yield _gauge(
            "exaserve_replica_state", [((*k, s), int(r.state == s)) for k, r in rows for s in STATES]
        )
        yield _gauge("exaserve_replica_in_flight_requests", [(k, r.in_flight) for k, r in rows])
        yield _counter(
            "exaserve_replica_requests_total", [((*k, o), r.outcomes[o]) for k, r in rows for o in OUTCOMES]
        )
        yield _gauge(
            "exaserve_replica_probe_duration_seconds",
            [(k, r.probe_seconds) for k, r in rows if r.probe_seconds is not None],
        )
        yield _counter(
            "exaserve_replica_probes_total",
            [((*k, p), r.probe_results[p]) for k, r in rows for p in PROBE_RESULTS],
        )


Rows = list[tuple[tuple[str, ...], float]]


def _gauge(name: str, rows: Rows) -> Metric:
    m = metric(name)
    family = GaugeMetricFamily(m.name, m.help, labels=m.labels)
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _counter(name: str, rows: Rows) -> Metric:
    m = metric(name)
    family = CounterMetricFamily(m.name, m.help, labels=m.labels)
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _histogram(name: str, by_route: dict[str, Histogram]) -> Metric:
    m = metric(name)
    family = HistogramMetricFamily(m.name, m.help, labels=m.labels)
    for route, h in list(by_route.items()):
        family.add_metric([route], h.buckets(), h.sum)
    return family
