"""Runs every collector at a scrape, each in its own thread and within its limit, and says how each did.

A collector is one file in ``exporters/collectors/`` with one ``register`` at its end. It returns plain samples
named in ``exporters/catalog/``. One that breaks, hangs or names an unknown metric costs no other collector
anything: its samples are dropped and ``exaserve_exporter_collector_success`` is 0. One that finds nothing of its
kind on this machine raises NoData: it exports nothing and no ``success`` either, which is apart from broken.

A page is built anew at every scrape, so that no series lives on after what it told of. Writing it down is
``exporters/exposition.py``, serving it ``exporters/http.py``.
"""

from __future__ import annotations

import importlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from exporters import available
from exporters.catalog import metric
from exporters.settings import Settings

log = logging.getLogger("exaserve.exporter")

#: Seconds that a collector may take where the scrape doesn't say how long it waits.
DEFAULT_LIMIT = 4.0
#: Seconds after its deadline in which a collector that kept to it may still hand over what it has; a third of the
#: limit where that is less.
GRACE = 0.25
#: Samples of one collector; 3,072 replicas give some 100,000. More is a mistake that would eat the memory.
MAX_SAMPLES = 500_000


class NoData(Exception):
    """There is nothing of this kind here (no such device, no replica configured). Not a failure."""


class Sample(NamedTuple):
    """name: as in the catalogue. labels: values in the catalogue's order. value: in the base unit.

    A plain tuple of the three does as well and costs less. A value that is not finite is left out.
    """

    name: str
    labels: tuple[str, ...]
    value: float


class Collector(Protocol):
    def collect(self, deadline: float) -> Iterable[Sample]:
        """The samples of now, handed over before ``deadline`` (time.monotonic()).

        Called by one thread at a time. Raises NoData where there is nothing to measure; anything else that
        it raises means broken.
        """


Factory = Callable[[Settings], Collector]
#: Values by metric and by label values.
Values = dict[str, dict[tuple[str, ...], float]]

#: Collectors by the name of their file.
FACTORIES: dict[str, Factory] = {}
#: Those that run only where somebody turned them on.
OPT_IN: set[str] = set()


def register(name: str, factory: Factory, *, default: bool = True) -> None:
    """Called once, at the end of a collector's file. ``default=False``: off until it is turned on by name."""
    if name in FACTORIES:
        raise ValueError(f"collector {name} is registered twice")
    FACTORIES[name] = factory
    if not default:
        OPT_IN.add(name)


def build(settings: Settings, names: Iterable[str] | None = None) -> Registry:
    """The collectors of these names; None: those that are on by default. Only these are imported.

    One that can't be loaded is there, and broken.
    """
    collectors: dict[str, Collector] = {}
    for name in available.chosen({}) if names is None else names:
        try:
            importlib.import_module(f"exporters.collectors.{name}")
            collectors[name] = FACTORIES[name](settings)
        except Exception as error:
            collectors[name] = _Unloadable(error)
    return Registry(collectors, settings.limits)


class _Unloadable:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def collect(self, deadline: float) -> Iterable[Sample]:
        raise RuntimeError(f"could not be loaded: {self._error!r}")


class Registry:
    """The collectors of one exporter. Scrapes at the same time share one run of each collector.

    limits: seconds that the collector of that name may take, where that is less than the scrape's limit.
    """

    def __init__(
        self, collectors: Mapping[str, Collector], limits: Mapping[str, float] | None = None
    ) -> None:
        self._workers = {name: _Worker(name, collector) for name, collector in collectors.items()}
        self._limits = dict(limits or {})
        self._last_success: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._lock = threading.Lock()
        self._version = _version()

    @property
    def names(self) -> list[str]:
        return list(self._workers)

    def scrape(self, limit: float = DEFAULT_LIMIT) -> Values:
        """Samples of all collectors and how each did, at most ``limit`` + GRACE (or a third of it) later."""
        now = time.monotonic()
        runs = {}
        with self._lock:
            for name, worker in self._workers.items():
                until = now + min(limit, self._limits.get(name, limit))
                runs[name] = (worker.run(until), until)
        page: Values = {"exaserve_exporter_build_info": {(self._version,): 1.0}}
        for name, (run, until) in runs.items():
            # Another scrape, more patient than this one, may have started the run.
            run.done.wait(max(0.0, min(until, run.deadline) + min(GRACE, limit / 3) - time.monotonic()))
            problem = run.problem()
            # Prometheus refuses a whole page that has one series twice.
            if problem is None and any(
                n in page and not page[n].keys().isdisjoint(run.values[n]) for n in run.values
            ):
                problem = "gave a series that another collector has already given"
            if problem is None:
                for n, values in run.values.items():
                    page.setdefault(n, {}).update(values)
            self._account(name, run, problem, page)
        return page

    def close(self) -> None:
        """End the collectors' threads, each when it has done what it is at. Nothing is waited for."""
        for worker in self._workers.values():
            worker.end()

    def _account(self, name: str, run: _Run, problem: str | None, page: Values) -> None:
        at = (name,)
        page.setdefault("exaserve_exporter_collector_duration_seconds", {})[at] = run.seconds()
        with self._lock:
            if problem is None and run.nothing:
                # The last replica or device has gone: a time that only grows old would look like a collector that broke.
                self._last_success.pop(name, None)
            elif problem is None:
                self._last_success[name] = run.ended_at
            changed = self._said.get(name, "") != (problem or "")
            self._said[name] = problem or ""
            last = self._last_success.get(name)
        if changed:
            log.warning("collector %s: %s", name, problem or "works again")
        if not run.nothing or problem is not None:
            page.setdefault("exaserve_exporter_collector_success", {})[at] = float(problem is None)
        if last is not None:
            page.setdefault("exaserve_exporter_collector_last_success_timestamp_seconds", {})[at] = last


class _Worker:
    """One collector and its thread, which stays: starting one for each run would be half the cost of a scrape."""

    def __init__(self, name: str, collector: Collector) -> None:
        self._name = name
        self._collector = collector
        self._todo: SimpleQueue[_Run | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: _Run | None = None

    def run(self, deadline: float) -> _Run:
        """A new run, or the one that is still going on: what hangs is not started again beside itself."""
        if self._last is None or self._last.done.is_set():
            self._last = _Run(deadline)
            try:
                if self._thread is None:
                    thread = threading.Thread(target=self._work, name=f"collector-{self._name}", daemon=True)
                    thread.start()
                    self._thread = thread
            except RuntimeError as error:  # the limit of processes is reached
                self._last.fail(error)
            else:
                self._todo.put(self._last)
        return self._last

    def end(self) -> None:
        self._todo.put(None)

    def _work(self) -> None:
        while (run := self._todo.get()) is not None:
            run.work(self._collector)


class _Run:
    """One run of one collector. ``values`` and the rest are whole once ``done`` is set."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.done = threading.Event()
        self.values: Values = {}
        self.nothing = False
        self.ended_at = 0.0
        self._error: str | None = None
        self._started = time.monotonic()
        limit = max(0.0, deadline - self._started)
        self._most = limit + min(GRACE, limit / 3)
        self._seconds: float | None = None

    def work(self, collector: Collector) -> None:
        try:
            self.values = _checked(collector.collect(self.deadline))
        except NoData:
            self.nothing = True
            self._end()
        except BaseException as error:
            self.fail(error)
        else:
            self._end()

    def fail(self, error: BaseException) -> None:
        self._error = f"{type(error).__name__}: {error}"[:500]
        self._end()

    def _end(self) -> None:
        self.ended_at = time.time()
        self._seconds = time.monotonic() - self._started
        self.done.set()

    def problem(self) -> str | None:
        """Why there is nothing to export from this run; None if it did its work (or found nothing)."""
        if not self.done.is_set():
            return "still at work after its limit"
        # What hung and came back may tell of a time long ago.
        return self._error or ("came back after its limit" if self.seconds() > self._most else None)

    def seconds(self) -> float:
        return self._seconds if self._seconds is not None else time.monotonic() - self._started


def _checked(samples: Iterable[Sample]) -> Values:
    """The samples by metric. A value that is not finite is no data and left out; anything else odd raises."""
    found: Values = {}
    widths: dict[str, int] = {}
    count = 0
    for name, labels, value in samples:
        values = found.get(name)
        if values is None:
            m = metric(name)
            if m.kind == "histogram":
                raise ValueError(f"{name} is a histogram; collectors give gauges and counters")
            values, widths[name] = found.setdefault(name, {}), len(m.labels)
        if len(labels) != widths[name]:
            raise ValueError(f"{name} has the labels {metric(name).labels}, not {len(labels)} values")
        if labels in values:
            raise ValueError(f"{name}{labels} is given twice")
        if (count := count + 1) > MAX_SAMPLES:
            raise ValueError(f"more than {MAX_SAMPLES} samples")
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond 1e308
            number = math.inf
        if math.isfinite(number):
            values[labels] = number
    return {name: values for name, values in found.items() if values}


def _version() -> str:
    try:
        return version("exaserve")
    except PackageNotFoundError:
        return "unknown"
