"""Runs every collector at a scrape, each in its own thread and within its limit, and says how each did.

A collector is one file in ``exporters/collectors/`` with one ``register`` at its end. It returns plain samples
named in ``exporters/catalog/``. One that breaks, hangs or names an unknown metric costs no other collector
anything: its samples are dropped and ``exaserve_exporter_collector_success`` is 0. One that finds nothing of its
kind on this machine raises NoData: it exports nothing and no ``success`` either, which is apart from broken.

Serving the result over HTTP is ``exporters/http.py``.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from exporters.catalog import metric
from exporters.settings import Settings

log = logging.getLogger("exaserve.exporter")

#: Seconds that a collector may take where the scrape doesn't say how long it waits.
DEFAULT_LIMIT = 4.0
#: Seconds after its deadline in which a collector that kept to it may still hand over what it has.
GRACE = 0.25


class NoData(Exception):
    """There is nothing of this kind here (no such device, no replica configured). Not a failure."""


class Sample(NamedTuple):
    """name: as in the catalogue. labels: values in the catalogue's order. value: finite, in the base unit."""

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
Family = GaugeMetricFamily | CounterMetricFamily

#: Collectors by the name of their file.
FACTORIES: dict[str, Factory] = {}


def register(name: str, factory: Factory) -> None:
    """Called once, at the end of a collector's file."""
    if name in FACTORIES:
        raise ValueError(f"collector {name} is registered twice")
    FACTORIES[name] = factory


def build(settings: Settings) -> Registry:
    """Every collector of ``exporters/collectors``. One that can't be loaded is there, and broken."""
    collectors: dict[str, Collector] = {}
    package = importlib.import_module("exporters.collectors")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("_"):
            continue
        try:
            importlib.import_module(f"exporters.collectors.{module.name}")
            collectors[module.name] = FACTORIES[module.name](settings)
        except Exception as error:
            collectors[module.name] = _Unloadable(error)
    return Registry(collectors)


class _Unloadable:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def collect(self, deadline: float) -> Iterable[Sample]:
        raise RuntimeError(f"could not be loaded: {self._error!r}")


class Registry:
    """The collectors of one exporter. Scrapes at the same time share one run of each collector."""

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self._collectors = dict(collectors)
        self._runs: dict[str, _Run] = {}
        self._last_success: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        return list(self._collectors)

    def scrape(self, limit: float = DEFAULT_LIMIT) -> list[Family]:
        """Samples of all collectors and how each did, at most ``limit`` + GRACE seconds later."""
        runs = {name: self._start(name, limit) for name in self._collectors}
        samples: dict[tuple[str, tuple[str, ...]], float] = {}
        about: list[Sample] = [Sample("exaserve_exporter_build_info", (_version(),), 1)]
        for name, run in runs.items():
            run.done.wait(max(0.0, run.deadline + GRACE - time.monotonic()))
            problem = run.problem()
            # Prometheus refuses a whole page that has one series twice.
            if problem is None and not samples.keys().isdisjoint(run.samples):
                problem = "a series that another collector has already given"
            if problem is None:
                samples.update(run.samples)
            about += self._account(name, run, problem)
        given = [Sample(name, labels, value) for (name, labels), value in samples.items()]
        return _families(given + about)

    def _start(self, name: str, limit: float) -> _Run:
        with self._lock:
            run = self._runs.get(name)
            # A run that hangs is not started again beside itself: its threads would pile up.
            if run is None or run.done.is_set():
                run = self._runs[name] = _Run(name, self._collectors[name], time.monotonic() + limit)
                run.thread.start()
            return run

    def _account(self, name: str, run: _Run, problem: str | None) -> list[Sample]:
        at = (name,)
        about = [Sample("exaserve_exporter_collector_duration_seconds", at, run.seconds())]
        with self._lock:
            if problem is None and not run.nothing:
                self._last_success[name] = run.ended_at
            changed = self._said.get(name, "") != (problem or "")
            self._said[name] = problem or ""
            last = self._last_success.get(name)
        if changed:
            log.warning("collector %s: %s", name, problem or "works again")
        if not run.nothing or problem is not None:
            about.append(Sample("exaserve_exporter_collector_success", at, float(problem is None)))
        if last is not None:
            about.append(Sample("exaserve_exporter_collector_last_success_timestamp_seconds", at, last))
        return about


class _Run:
    """One run of one collector. ``samples`` and the rest are whole once ``done`` is set."""

    def __init__(self, name: str, collector: Collector, deadline: float) -> None:
        self.deadline = deadline
        self.done = threading.Event()
        self.samples: dict[tuple[str, tuple[str, ...]], float] = {}
        self.nothing = False
        self.ended_at = 0.0
        self._collector = collector
        self._error: str | None = None
        self._started = time.monotonic()
        self._seconds: float | None = None
        self.thread = threading.Thread(target=self._work, name=f"collector-{name}", daemon=True)

    def _work(self) -> None:
        try:
            self.samples = _checked(self._collector.collect(self.deadline))
        except NoData:
            self.nothing = True
        except BaseException as error:
            self._error = f"{type(error).__name__}: {error}"
        self.ended_at = time.time()
        self._seconds = time.monotonic() - self._started
        self.done.set()

    def problem(self) -> str | None:
        """Why there is nothing to export from this run; None if it did its work (or found nothing)."""
        return self._error if self.done.is_set() else "still at work after its limit"

    def seconds(self) -> float:
        return self._seconds if self._seconds is not None else time.monotonic() - self._started


def _checked(samples: Iterable[Sample]) -> dict[tuple[str, tuple[str, ...]], float]:
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for name, labels, value in samples:
        if len(metric(name).labels) != len(labels):
            raise ValueError(f"{name} has the labels {metric(name).labels}, not {len(labels)} values")
        if (name, labels) in found:
            raise ValueError(f"{name}{labels} is given twice")
        found[name, labels] = float(value)
    return found


def _families(samples: list[Sample]) -> list[Family]:
    families: dict[str, Family] = {}
    for name, labels, value in samples:
        family = families.get(name)
        if family is None:
            m = metric(name)
            kind = CounterMetricFamily if m.kind == "counter" else GaugeMetricFamily
            family = families[name] = kind(m.name, m.help, labels=m.labels, unit=m.unit)
        family.add_metric(labels, value)
    return list(families.values())


def _version() -> str:
    try:
        return version("exaserve")
    except PackageNotFoundError:
        return "unknown"
