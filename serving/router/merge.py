"""The workers' numbers as one page: added up, kept when a worker dies, written as Prometheus' families.

Counters and histograms are sums over all workers that ever lived, so they never fall; of a dead one the last
snapshot counts (at most metrics.SNAPSHOT_SECONDS old: what it did after that is lost). Gauges are sums over the workers
that live (those in LARGEST: the largest). Series of a replica exist while the replica is in the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from exporters.catalog import metric
from serving.fleet.replica import OUTCOMES, PROBE_RESULTS, STATES, Replica
from serving.router.errors import REJECTION_REASONS
from serving.router.metrics import MAX_SERIES, OTHER, RETRY_REASONS
from serving.router.snapshot import Labels, SeriesRow, Snapshot

LARGEST = frozenset(("exaserve_router_panic",))
_HISTOGRAMS = (
    "exaserve_router_request_duration_seconds",
    "exaserve_router_time_to_first_token_seconds",
    "exaserve_router_time_per_output_chunk_seconds",
    "exaserve_router_queue_duration_seconds",
)
_LAG = "exaserve_router_event_loop_lag_seconds"
_OVERHEAD = "exaserve_router_overhead_seconds"
#: There from the start, so that a rate over the first event is not lost.
_ZEROS: dict[tuple[str, Labels], float] = {
    **{("exaserve_router_rejected_requests_total", (r, "", "")): 0.0 for r in REJECTION_REASONS},
    **{("exaserve_router_retries_total", (r, "")): 0.0 for r in RETRY_REASONS},
    ("exaserve_router_client_disconnects_total", ()): 0.0,
}

Counted = tuple[list[int], float]
Rows = Iterable[tuple[Labels, float]]


class Numbers:
    """Numbers of one worker, or of several added up."""

    def __init__(self) -> None:
        self.series: dict[Labels, SeriesRow] = {}
        self.histograms: dict[tuple[str, Labels], Counted] = {}
        self.counters: dict[tuple[str, Labels], float] = {}
        self.gauges: dict[tuple[str, Labels], float] = {}

    def take(self, worker: int, snapshot: Snapshot) -> None:
        """A worker's newer snapshot replaces its older one."""
        for row in snapshot.series:
            self.series[row.labels] = row
        for route, counted in snapshot.overheads.items():
            self.histograms[_OVERHEAD, (route,)] = counted
        self.histograms[_LAG, (str(worker),)] = snapshot.lag
        self.counters = {(name, labels): value for name, labels, value in snapshot.counters}
        self.gauges = {(name, labels): value for name, labels, value in snapshot.gauges}

    def add(self, other: Numbers) -> None:
        """Counters, histograms and gauges of ``other`` on top of these."""
        for row in other.series.values():
            known = self.series.get(row.labels)
            if known is None and len(self.series) > 4 * MAX_SERIES:
                row = SeriesRow(OTHER, row.codes, row.histograms, row.cut)
                known = self.series.get(OTHER)
            self.series[row.labels] = row if known is None else _sum_rows(known, row)
        for key, counted in other.histograms.items():
            mine = self.histograms.get(key)
            self.histograms[key] = counted if mine is None else _sum(mine, counted)
        for counter, value in other.counters.items():
            self.counters[counter] = self.counters.get(counter, 0.0) + value
        for gauge, value in other.gauges.items():
            before = self.gauges.get(gauge, 0.0)
            self.gauges[gauge] = max(before, value) if gauge[0] in LARGEST else before + value


def _sum(a: Counted, b: Counted) -> Counted:
    return [x + y for x, y in zip(a[0], b[0], strict=True)], a[1] + b[1]


def _sum_rows(a: SeriesRow, b: SeriesRow) -> SeriesRow:
    codes = dict(a.codes)
    for code, n in b.codes.items():
        codes[code] = codes.get(code, 0) + n
    pairs = zip(a.histograms, b.histograms, strict=True)
    return SeriesRow(a.labels, codes, [_sum(x, y) for x, y in pairs], a.cut + b.cut)


class Totals:
    """All workers by number, and what the dead ones left."""

    def __init__(self) -> None:
        self._past = Numbers()
        self._now: dict[int, Numbers] = {}

    def take(self, worker: int, snapshot: Snapshot) -> None:
        self._now.setdefault(worker, Numbers()).take(worker, snapshot)

    def retire(self, worker: int) -> None:
        """It is dead: what it counted stays, what it held (gauges) is gone."""
        last = self._now.pop(worker, None)
        if last is not None:
            last.gauges = {}
            self._past.add(last)

    def gauge(self, name: str, *labels: str) -> float:
        """Sum over the workers that live, from their last snapshots."""
        return sum(n.gauges.get((name, labels), 0.0) for n in list(self._now.values()))

    def sum(self) -> Numbers:
        """A new object; the rows in it are not changed by later snapshots."""
        total = Numbers()
        total.counters.update(_ZEROS)
        total.add(self._past)
        for numbers in list(self._now.values()):
            total.add(numbers)
        return total


class Page(Collector):
    """A page: the sum of the workers and the replicas as the master has them."""

    def __init__(self, numbers: Numbers, replicas: Sequence[Replica]) -> None:
        self.numbers = numbers
        self.replicas = replicas

    def collect(self) -> Iterator[Metric]:
        n = self.numbers
        yield _gauge("exaserve_router_build_info", [((version("exaserve"),), 1)])
        rows = list(n.series.values())
        codes = [((*r.labels, str(code)), v) for r in rows for code, v in r.codes.items()]
        yield _counter("exaserve_router_requests_total", codes)
        # With its 0 from the first request on, so that a rate sees the first one that breaks.
        yield _counter("exaserve_router_cut_answers_total", [(r.labels, r.cut) for r in rows])
        for i, name in enumerate(_HISTOGRAMS):
            yield _histogram(name, ((r.labels, r.histograms[i]) for r in rows))
        for name in (_OVERHEAD, _LAG):
            yield _histogram(name, ((k[1], v) for k, v in n.histograms.items() if k[0] == name))
        for family, values in ((_counter, n.counters), (_gauge, n.gauges)):
            named: dict[str, list[tuple[Labels, float]]] = {}
            for name in _NAMES[family is _counter]:
                named[name] = []
            for (name, labels), value in values.items():
                named[name].append((labels, value))
            for name, found in named.items():
                yield family(name, found)
        yield from self._replicas()

    def _replicas(self) -> Iterator[Metric]:
        rows = [((r.name, r.model), r) for r in self.replicas]
        yield _gauge("exaserve_replica_up", ((k, int(r.in_rotation)) for k, r in rows))
        yield _gauge(
            "exaserve_replica_state", (((*k, s), int(r.state == s)) for k, r in rows for s in STATES)
        )
        yield _gauge("exaserve_replica_in_flight_requests", ((k, r.in_flight + r.others) for k, r in rows))
        yield _counter(
            "exaserve_replica_requests_total", (((*k, o), r.outcomes[o]) for k, r in rows for o in OUTCOMES)
        )
        yield _gauge(
            "exaserve_replica_probe_duration_seconds",
            ((k, r.probe_seconds) for k, r in rows if r.probe_seconds is not None),
        )
        yield _counter(
            "exaserve_replica_probes_total",
            (((*k, p), r.probe_results[p]) for k, r in rows for p in PROBE_RESULTS),
        )
        yield _counter("exaserve_replica_ejections_total", ((k, r.ejections_total) for k, r in rows))
        yield _gauge("exaserve_replica_weight", ((k, r.weight) for k, r in rows))


def _names(kind: str) -> tuple[str, ...]:
    from exporters.catalog import CATALOG

    own = {
        "exaserve_router_build_info",
        "exaserve_router_requests_total",
        "exaserve_router_cut_answers_total",
    }
    return tuple(
        n for n, m in CATALOG.items() if n.startswith("exaserve_router_") and m.kind == kind and n not in own
    )


#: Names of gauges (0) and counters (1) that are written from ``Numbers``; each is on the page, with values or not.
_NAMES = (_names("gauge"), _names("counter"))


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


def _histogram(name: str, rows: Iterable[tuple[Labels, Counted]]) -> Metric:
    m = metric(name)
    family = HistogramMetricFamily(m.name, m.help, labels=m.labels)
    bounds = (*map(str, m.buckets), "+Inf")
    for labels, (counts, total) in rows:
        seen, buckets = 0, []
        for bound, count in zip(bounds, counts, strict=True):
            seen += count
            buckets.append((bound, float(seen)))
        family.add_metric(labels, buckets, total)
    return family
