"""The numbers of a run while it lasts, for Prometheus and for locust's own page.

Kept in the one process that holds the run: the local runner, or the master, to which its workers report. So there is
one target to scrape, and its quantiles are exact over all processes. What each series means is said in
``exporters/catalog/loadtest.py``; they are written down by ``_metrics_page.py`` and served by ``_metrics_server.py``.

Two sides, so that counting costs senders next to nothing: ``Metrics`` is told things by greenlets and only keeps them;
``Digest`` sorts what a second has brought into buckets and quantiles, in a thread of its own (``_metrics_server.py``).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any

import numpy as np

from exporters.catalog.loadtest import LAG_BUCKETS, LATENCIES
from exporters.catalog.router import GAP_BUCKETS, LATENCY_BUCKETS, OVERHEAD_BUCKETS
from loadtest._lib._exact import Exact, rank
from loadtest._lib._record import REASONS, Record

#: Stands for every profile together, where a series has that.
ALL = "all"
WARMUP, MEASURED = "warmup", "measured"
QUANTILES = (0.5, 0.95, 0.99, 0.999)
#: Upper bounds of each kind of spans, as declared.
BUCKETS = {
    "ttft": LATENCY_BUCKETS,
    "itl": GAP_BUCKETS,
    "tpot": GAP_BUCKETS,
    "e2e": LATENCY_BUCKETS,
    "lag": LAG_BUCKETS,
    "delay": OVERHEAD_BUCKETS,
}
#: Seconds that charts go back.
HISTORY = 1800

#: (kind of span, profile or worker, phase or "").
_Key = tuple[str, str, str]


@dataclass(slots=True)
class Counts:
    """Requests of one profile in one phase. unsent: their due time passed and they were never sent."""

    offered: int = 0
    started: int = 0
    completed: int = 0
    good: int = 0
    unsent: int = 0
    open: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    chunks: int = 0
    failed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))

    @property
    def failures(self) -> int:
        return sum(self.failed.values())

    @property
    def in_flight(self) -> int:
        return self.started - self.completed - self.failures - self.open

    def copy(self) -> Counts:
        new = Counts(*(getattr(self, name) for name in _PLAIN))
        new.failed = dict(self.failed)
        return new

    def add(self, other: Counts) -> None:
        for name in _PLAIN:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, number in other.failed.items():
            self.failed[reason] = self.failed.get(reason, 0) + number


_PLAIN = (
    "offered",
    "started",
    "completed",
    "good",
    "unsent",
    "open",
    "input_tokens",
    "output_tokens",
    "chunks",
)


@dataclass(slots=True)
class Run:
    """Which run it is. name: of its folder, never used twice. profile: of the whole run, ``mixed`` for several.

    started: Unix seconds. slo: seconds by latency; what it does not judge is absent. baseline: "" without one.
    """

    name: str
    profile: str
    started: float
    slo: dict[str, float]
    baseline: str = ""


@dataclass(slots=True)
class Taken:
    """What ``Metrics`` knew at one moment, and the spans since the last one."""

    run: Run | None
    at: float
    counts: dict[tuple[str, str], Counts]
    users: dict[str, int]
    cpu: dict[str, float]
    void: tuple[str, ...]
    lasts: bool
    spans: dict[_Key, list[float]]


class Metrics:
    """Told by those who send and watch. Nothing here waits, computes or raises for what it is told."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self._clear()

    def _clear(self) -> None:
        self._counts: dict[tuple[str, str], Counts] = {}
        self._by_worker: dict[tuple[str, str], dict[str, list[int]]] = {}
        self._users: dict[str, dict[str, int]] = {}
        self._cpu: dict[str, float] = {}
        self._void: list[str] = []
        self._lasts = False
        self._spans: dict[_Key, list[float]] = defaultdict(list)

    def begin(
        self,
        run: str,
        profile: str,
        profiles: Iterable[str],
        slo: Mapping[str, float | None],
        baseline: str = "",
        started: float | None = None,
    ) -> None:
        """A new run: everything begins at 0, the series of its profiles are there at once."""
        self._clear()
        limits = {latency: limit for latency, limit in slo.items() if latency in LATENCIES and limit}
        self.run = Run(run, profile, time() if started is None else started, limits, baseline)
        self._lasts = True
        for name in profiles:
            self._of(name, MEASURED)

    def end(self) -> None:
        """The run is over; its last values stay until the next one begins."""
        self._lasts = False

    def counted(self, worker: str, offered: Mapping[str, int], started: Mapping[str, int]) -> None:
        """What one process has counted since the run began, by ``profile/phase``."""
        for number, counts in enumerate((offered, started)):
            for of, total in counts.items():
                profile, _, phase = of.rpartition("/")
                self._of(profile, phase)
                self._by_worker.setdefault((profile, phase), {}).setdefault(worker, [0, 0])[number] = total

    def ended(self, record: Record, good: bool) -> None:
        """A request's fate. good: it completed, and met every objective of the run."""
        counts = self._of(record.profile, record.phase)
        counts.offered += 1
        counts.started += record.sent is not None
        if record.due is not None and record.sent is not None:
            self._spans["lag", record.profile, record.phase].append(max(0.0, record.sent - record.due))
        match record.outcome:
            case "ok":
                self._completed(counts, record, good)
            case "failed":
                reason = record.reason if record.reason in REASONS else "other"
                counts.failed[reason] += 1
            case "unsent":
                counts.unsent += 1
            case "open":
                counts.open += 1

    def users(self, worker: str, by_profile: Mapping[str, int]) -> None:
        """How many users of a closed loop one process has."""
        self._users[worker] = dict(by_profile)

    def client(self, worker: str, cpu: float | None, delays: Iterable[float] = ()) -> None:
        """Of one process: share of a core in its last second, and how late its timers were (seconds)."""
        if cpu is not None:
            self._cpu[worker] = cpu
        self._spans["delay", worker, ""].extend(delays)

    def void(self, reasons: Iterable[str]) -> None:
        """Why the client was too slow itself, by what is known now; nothing where it was not."""
        self._void = list(reasons)

    def take(self) -> Taken:
        """All of now; the spans are handed over and forgotten here."""
        spans, self._spans = self._spans, defaultdict(list)
        return Taken(
            self.run,
            time(),
            {key: self._with_counted(key, counts) for key, counts in self._counts.items()},
            {
                profile: sum(users.get(profile, 0) for users in self._users.values())
                for profile in dict.fromkeys(profile for profile, _ in self._counts)
            },
            dict(self._cpu),
            tuple(self._void),
            self._lasts,
            dict(spans),
        )

    def _with_counted(self, key: tuple[str, str], counts: Counts) -> Counts:
        """What workers have counted is ahead of what has ended, except for their last, unfinished second."""
        new = counts.copy()
        workers = self._by_worker.get(key, {}).values()
        new.offered = max(new.offered, sum(offered for offered, _ in workers))
        new.started = max(new.started, sum(started for _, started in workers))
        return new

    def _completed(self, counts: Counts, record: Record, good: bool) -> None:
        counts.completed += 1
        counts.good += good
        counts.input_tokens += record.input_tokens or 0
        counts.output_tokens += record.output_tokens or 0
        counts.chunks += record.chunks
        for latency in ("ttft", "tpot", "e2e"):
            seconds = getattr(record, latency)
            if seconds is not None:
                self._spans[latency, record.profile, record.phase].append(seconds)
        if record.gaps:
            gaps = self._spans["itl", record.profile, record.phase]
            gaps.extend(milliseconds / 1000 for milliseconds in record.gaps)

    def _of(self, profile: str, phase: str) -> Counts:
        counts = self._counts.get((profile, phase))
        if counts is None:
            for each in (WARMUP, MEASURED):
                self._counts.setdefault((profile, each), Counts())
            counts = self._counts.setdefault((profile, phase), Counts())
        return counts


class Histogram:
    """Observations by bucket. numbers: how many fell into each, the last one above every bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = np.asarray(bounds)
        self.numbers = np.zeros(len(bounds) + 1, np.int64)
        self.sum = 0.0

    def add(self, seconds: list[float]) -> None:
        where = np.searchsorted(self._bounds, seconds, side="left")
        self.numbers += np.bincount(where, minlength=len(self.numbers))
        self.sum += float(sum(seconds))


class Digest:
    """What ``Metrics`` handed over, sorted: buckets of everything, exact quantiles of the measured phase, a history.

    For one thread at a time. taken: the last that was put in, None before the first.
    """

    def __init__(self) -> None:
        self.taken: Taken | None = None
        self._clear(None)

    def _clear(self, run: Run | None) -> None:
        self._run = run
        self.histograms: dict[_Key, Histogram] = {}
        self.exact: dict[tuple[str, str], Exact] = {}
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY)

    def put(self, taken: Taken) -> None:
        if taken.run is not self._run:
            self._clear(taken.run)
        before = self.taken if self.taken and self.taken.run is taken.run else None
        self.taken = taken
        for (kind, of, phase), seconds in taken.spans.items():
            if not seconds:
                continue
            self.histograms.setdefault((kind, of, phase), Histogram(BUCKETS[kind])).add(seconds)
            if phase == MEASURED and kind in LATENCIES:
                for profile in (of, ALL):
                    self.exact.setdefault((profile, kind), Exact()).add_many(seconds)
        if taken.run is not None and (taken.lasts or (before and before.lasts)):
            self.history.append(_point(taken, before))

    def quantiles(self, profile: str, latency: str) -> list[float | None]:
        """Of the measured phase so far, seconds, as in QUANTILES; of an unknown profile None."""
        exact = self.exact.get((profile, latency))
        return exact.quantiles(QUANTILES) if exact else [None] * len(QUANTILES)


def totals(taken: Taken, phase: str | None = None) -> Counts:
    """Of every profile, in one phase or both."""
    every = Counts()
    for (_, of), counts in taken.counts.items():
        if phase in (None, of):
            every.add(counts)
    return every


def attainment(counts: Counts) -> float | None:
    """Good requests / those whose fate is known; None while that is of none."""
    known = counts.completed + counts.failures + counts.unsent
    return counts.good / known if known else None


def _point(taken: Taken, before: Taken | None) -> dict[str, Any]:
    """One second of the history: rates since the point before, and this second's own quantiles."""
    now, then = totals(taken), totals(before) if before else Counts()
    span = max(1e-3, taken.at - (before.at if before else taken.run.started if taken.run else taken.at))
    point: dict[str, Any] = {"at": round(taken.at, 3), "in_flight": now.in_flight}
    for name in ("offered", "started", "completed", "good", "output_tokens"):
        point[name] = round((getattr(now, name) - getattr(then, name)) / span, 3)
    point["failed"] = round((now.failures - then.failures) / span, 3)
    for kind in (*LATENCIES, "lag"):
        values = sorted(v for (of, _, _), spans in taken.spans.items() if of == kind for v in spans)
        for q in (0.5, 0.99):
            found = values[rank(q, len(values)) - 1] if values else None
            point[f"{kind}_p{q * 100:g}"] = None if found is None else round(found, 6)
    delays = [v for (kind, _, _), spans in taken.spans.items() if kind == "delay" for v in spans]
    point["delay_max"] = round(max(delays), 6) if delays else None
    point["cpu_max"] = round(max(taken.cpu.values()), 4) if taken.cpu else None
    return point
