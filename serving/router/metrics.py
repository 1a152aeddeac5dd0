"""The numbers of one worker: plain counters on the hot path, handed to the master as plain data.

A series is looked up once a request and told once how the request ended; nothing here formats, locks or logs.
Adding up the workers and writing the page is ``serving/router/merge.py``. Label values come from configuration
only; where there would be too many series (``MAX_SERIES``) the tenant, then all of it, becomes ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from exporters.catalog import GAP_BUCKETS, LATENCY_BUCKETS, OVERHEAD_BUCKETS, QUEUE_BUCKETS, metric
from serving.router.errors import REJECTION_REASONS
from serving.router.snapshot import Labels, SeriesRow, Snapshot

RETRY_REASONS = ("refused", "reset", "frozen", "down", "ejected", "stale", "status", "removed")
#: Label sets of requests with their own series; twice as many once tenants are folded into ``other``.
MAX_SERIES = 300
MAX_COUNTERS = 10_000
SNAPSHOT_SECONDS = 1.0  # how often the master gets them unasked; what a killed worker counted since is lost
MAX_CODES = 64  # status codes of one series: replicas choose them
OTHER = ("other", "other", "other", "other", "other")


class Histogram:
    """Counts by upper bound (included), one more for what is above them all, and the sum of the values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Series:
    """What is counted of requests with the same route, model, pool, intent and tenant."""

    __slots__ = ("codes", "cut", "duration", "first", "gap", "labels", "overhead", "queue", "sent")

    def __init__(self, labels: Labels, overhead: Histogram) -> None:
        self.labels = labels
        self.codes: dict[int, int] = {}
        self.cut = 0
        self.duration = Histogram(LATENCY_BUCKETS)
        self.first = Histogram(LATENCY_BUCKETS)
        self.gap = Histogram(GAP_BUCKETS)
        self.queue = Histogram(QUEUE_BUCKETS)
        self.overhead = overhead  # shared by all series of the route
        self.sent = 0  # requests when it was last in a snapshot

    def done(
        self, status: int, duration: float, first: float = -1.0, queued: float = -1.0, overhead: float = -1.0,
        chunks: int = 0, gaps: float = 0.0,
    ) -> None:  # fmt: skip
        """A request has ended. All times in seconds; a negative one was not measured and is not counted.

        first: last byte of the request to first byte of a stream's body. queued: 0.0 if it did not wait.
        overhead: last byte of the request to first byte towards the replica, less ``queued``.
        chunks, gaps: pieces of the stream and seconds from the first to the last; under two say nothing.
        """
        codes = self.codes
        if status in codes:
            codes[status] += 1
        elif len(codes) < MAX_CODES:
            codes[status] = 1
        else:
            codes[0] = codes.get(0, 0) + 1
        # Not observe(): five calls more would cost as much as everything here.
        h = self.duration
        h.counts[bisect_left(LATENCY_BUCKETS, duration)] += 1
        h.sum += duration
        if first >= 0.0:
            h = self.first
            h.counts[bisect_left(LATENCY_BUCKETS, first)] += 1
            h.sum += first
        if queued == 0.0:
            self.queue.counts[0] += 1
        elif queued > 0.0:
            h = self.queue
            h.counts[bisect_left(QUEUE_BUCKETS, queued)] += 1
            h.sum += queued
        if overhead >= 0.0:
            h = self.overhead
            h.counts[bisect_left(OVERHEAD_BUCKETS, overhead)] += 1
            h.sum += overhead
        if chunks > 1:
            h = self.gap
            h.counts[bisect_left(GAP_BUCKETS, gaps / (chunks - 1))] += chunks - 1
            h.sum += gaps


class RouterMetrics:
    """The numbers of this worker. Touched by its event loop only."""

    def __init__(self) -> None:
        self._series: dict[Labels, Series] = {}
        self._folded: dict[
            Labels, Series
        ] = {}  # wanted labels -> series of "other", so that the search is once
        self._overheads: dict[str, Histogram] = {}
        self._counters: dict[tuple[str, Labels], float] = {}
        self._gauges: dict[tuple[str, Labels], Callable[[], float]] = {}
        self._kept: dict[tuple[str, Labels], Callable[[], float]] = {}
        self._tokens: dict[tuple[str, str], list[int]] = {}
        self.lag = Histogram(OVERHEAD_BUCKETS)
        self.disconnects = 0

    # --- hot path ---

    def series(self, route: str, model: str, pool: str, intent: str, tenant: str) -> Series:
        """Where a request with these labels is counted; each of them is from configuration, "" where it has none."""
        return self._series.get((route, model, pool, intent, tenant)) or self._new(
            (route, model, pool, intent, tenant)
        )

    def _new(self, labels: Labels) -> Series:
        if len(self._series) < MAX_SERIES:
            found = self._series[labels] = Series(labels, self._overhead(labels[0]))
            return found
        folded = self._folded.get(labels)
        if folded is not None:
            return folded
        for wanted in ((*labels[:4], "other"), OTHER):
            known = self._series.get(wanted)
            if known is not None or len(self._series) < 2 * MAX_SERIES or wanted is OTHER:
                break
        if known is None:
            known = self._series[wanted] = Series(wanted, self._overhead(wanted[0]))
        if len(self._folded) < MAX_COUNTERS:
            self._folded[labels] = known
        return known

    def _overhead(self, route: str) -> Histogram:
        found = self._overheads.get(route)
        if found is None:
            found = self._overheads[route] = Histogram(OVERHEAD_BUCKETS)
        return found

    # --- seldom ---

    def count(self, name: str, labels: Labels = (), n: float = 1) -> None:
        """Add to any counter of the catalogue, its labels in the catalogue's order. Raises KeyError if unknown."""
        key = (name, labels)
        if key in self._counters:
            self._counters[key] += n
        else:
            if len(metric(name).labels) != len(labels):
                raise ValueError(f"{name} has the labels {metric(name).labels}, not {labels}")
            if len(self._counters) >= MAX_COUNTERS:
                key = (name, ("other",) * len(labels))
            self._counters[key] = self._counters.get(key, 0) + n

    def gauge(self, name: str, labels: Labels, value: Callable[[], float]) -> None:
        """Ask ``value`` at each snapshot; the workers' values are added (merge.LARGEST: the largest counts)."""
        if len(metric(name).labels) != len(labels):
            raise ValueError(f"{name} has the labels {metric(name).labels}, not {labels}")
        self._gauges[name, labels] = value

    def counter(self, name: str, labels: Labels, value: Callable[[], float]) -> None:
        """A counter that somebody else keeps: ask ``value``, which never falls, at each snapshot."""
        if len(metric(name).labels) != len(labels):
            raise ValueError(f"{name} has the labels {metric(name).labels}, not {labels}")
        self._kept[name, labels] = value

    def value(self, name: str, **labels: str) -> float:
        """Sum of the counters of that name whose labels include these. For tests and tools."""
        at = {label: i for i, label in enumerate(metric(name).labels)}
        rows = [(k[1], v) for k, v in self._counters.items() if k[0] == name]
        if name == "exaserve_router_cut_answers_total":
            rows = [(s.labels, s.cut) for s in self._series.values()]
        if name == "exaserve_router_requests_total":
            rows = [((*s.labels, str(c)), n) for s in self._series.values() for c, n in s.codes.items()]
        return sum(v for k, v in rows if all(k[at[label]] == x for label, x in labels.items()))

    def drop_gauge(self, name: str, labels: Labels) -> None:
        """Its pool is gone, or the like."""
        self._gauges.pop((name, labels), None)

    def reject(self, reason: str, pool: str = "", tenant: str = "") -> None:
        if reason not in REJECTION_REASONS:
            raise KeyError(f"{reason} is not in errors.REJECTION_REASONS")
        self.count("exaserve_router_rejected_requests_total", (reason, pool, tenant))

    def retry(self, reason: str, pool: str = "") -> None:
        if reason not in RETRY_REASONS:
            raise KeyError(f"{reason} is not in RETRY_REASONS")
        self.count("exaserve_router_retries_total", (reason, pool))

    def retry_denied(self, why: str) -> None:
        """budget, deadline or attempts."""
        self.count("exaserve_router_retries_denied_total", (why,))

    def hedge(self, outcome: str) -> None:
        """sent, won or lost."""
        self.count("exaserve_router_hedges_total", (outcome,))

    def classified(self, intent: str, stage: str) -> None:
        """stage: first, second, timeout or skipped."""
        self.count("exaserve_router_classifications_total", (intent, stage))

    def rate_limited(self, tenant: str, limit: str) -> None:
        """limit: requests, tokens, in_flight or max_tokens."""
        self.count("exaserve_router_rate_limited_requests_total", (tenant, limit))

    def used(self, tenant: str, model: str, input_tokens: int, output_tokens: int) -> None:
        """Tokens of a request as the engine reported them."""
        found = self._tokens.get((tenant, model))
        if found is None:
            found = (
                self._tokens.setdefault((tenant, model), [0, 0])
                if len(self._tokens) < MAX_COUNTERS
                else [0, 0]
            )
        found[0] += input_tokens
        found[1] += output_tokens

    def request(self, route: str, status: int, seconds: float, first_token: float | None) -> None:
        """A request without model, pool, intent or tenant."""
        self.series(route, "", "", "", "").done(status, seconds, -1.0 if first_token is None else first_token)

    # --- to the master ---

    def snapshot(self, whole: bool = False) -> Snapshot:
        """The numbers now; ``whole``: also the series that have not changed since the last one.

        It shares its lists with the counters: encode it before anything else is counted.
        """
        rows = []
        for s in self._series.values():
            total = sum(s.codes.values())
            if total != s.sent or whole:
                s.sent = total
                kinds = (s.duration, s.first, s.gap, s.queue)
                rows.append(SeriesRow(s.labels, s.codes, [(h.counts, h.sum) for h in kinds], s.cut))
        counters = [(name, labels, v) for (name, labels), v in self._counters.items()]
        counters.append(("exaserve_router_client_disconnects_total", (), self.disconnects))
        for (tenant, model), (into, out) in self._tokens.items():
            counters.append(("exaserve_router_tokens_total", (tenant, model, "input"), into))
            counters.append(("exaserve_router_tokens_total", (tenant, model, "output"), out))
        counters += [(name, labels, float(value())) for (name, labels), value in self._kept.items()]
        return Snapshot(
            rows,
            {route: (h.counts, h.sum) for route, h in self._overheads.items()},
            (self.lag.counts, self.lag.sum),
            counters,
            [(name, labels, float(value())) for (name, labels), value in self._gauges.items()],
        )
