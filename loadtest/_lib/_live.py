"""A run's numbers while it lasts: joins the metrics, locust's own page and the fleet's Prometheus to the load test.

Nothing of it runs in a worker: the process that holds the run has every record, a second late. Without
``--metrics-port`` and without a web page nothing is counted here at all. Not here: what is counted (``_metrics``), who
asks for it (``_metrics_server``, ``_web``), what a run comes to (``_summary``).
"""

from __future__ import annotations

import argparse
import atexit
import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from locust import events
from locust.runners import MasterRunner, WorkerRunner

from loadtest._lib import _fleet, _hooks, _run, _web
from loadtest._lib._limits import Limits
from loadtest._lib._metrics import MEASURED, Metrics
from loadtest._lib._metrics_server import ADDRESS, Server, Watch
from loadtest._lib._objectives import Objectives
from loadtest._lib._record import Record

#: The job under which Prometheus has the page; ``serving/monitoring.py`` and ``dashboards/scraping.py`` name it too.
JOB = "exaserve-loadtest"
#: Fewer outliers are no pattern, as in ``_summary``; and so many seconds must have been seen.
_FEW, _SECONDS = 3, 10


def targets_folder() -> Path:
    """Where a running load test says where its page is; Prometheus of ``exaserve up`` looks there (file_sd)."""
    return _run.home() / "targets"


def add(parser: Any) -> None:
    """Options that locust's web page does not show: an argument of a group is in it only when it says so."""
    group = parser.add_argument_group("ExaServe load test, observed")
    group.add_argument(
        "--metrics-port",
        type=_port,
        default=None,
        metavar="PORT",
        help="serve the run's numbers for Prometheus at http://127.0.0.1:PORT/metrics while it lasts; 0: any free port, "
        "which the Prometheus of `exaserve up` finds by itself (default: off)",
    )
    group.add_argument(
        "--metrics-host",
        default=ADDRESS,
        metavar="ADDRESS",
        help=f"where --metrics-port listens, for a Prometheus on another machine (default: {ADDRESS})",
    )
    group.add_argument(
        "--prometheus",
        default="",
        metavar="URL",
        env_var="EXASERVE_PROMETHEUS",
        help="the fleet's Prometheus: what it said during the run is kept in fleet.json and shown by `exaserve report`",
    )


def check(options: Any) -> str | None:
    url = options.prometheus
    if url and not url.startswith(("http://", "https://")):
        return f"--prometheus {_fleet.shown(url)}: not an address like http://127.0.0.1:9090"
    return None


class Live:
    """Of one process that holds runs."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.metrics = Metrics()
        self.watch = Watch(self.metrics)
        self.server: Server | None = None
        self._objectives = Objectives()
        self._judge = _Judge(0.0, Limits())
        self._closed = True
        #: Whose samples mark the seconds: this process's own, which follow its own batch.
        self._beat = "master" if isinstance(environment.runner, MasterRunner) else "0"

    def serve(self, host: str, port: int) -> None:
        """Raises OSError where the port can't be had."""
        self.server = Server(self.watch, port, host)
        logging.info("load test: metrics at %s", self.server.url)
        _announce(self.server.address)

    def begin(self, run: _run.Run) -> None:
        self._objectives = Objectives(**run.slo)
        self._judge = _Judge(run.warmup_until, Limits(**run.limits))
        self._closed = run.arrivals.get("kind", "closed") == "closed"
        names = [getattr(user, "profile_name", user.__name__) for user in self.environment.user_classes]
        profiles = [] if run.profile == "mixed" and len(names) == 1 else names
        baseline = Path(run.baseline).name
        self.metrics.begin(run.name, run.profile, profiles, run.slo, baseline, run.started)

    def records(self, worker: int, lines: bytes, records: list[Record]) -> None:
        for record in records:
            self.metrics.ended(record, self._objectives.judge(record))
            self._judge.record(record)

    def client(self, sample: dict[str, Any]) -> None:
        worker = str(sample["worker"])
        self.metrics.client(worker, sample["cpu"], [delay / 1000 for delay in sample["delays"]])
        self.metrics.counted(worker, sample["offered"], sample["started"])
        # In an open loop users are there and only wait; what is asked is the schedule's.
        self.metrics.users(worker, sample["users"] if self._closed else {})
        self._judge.sample(worker, sample)
        self.metrics.void(self._judge.reasons())
        if worker == self._beat:
            self.watch.beat()

    def end(self, summary: dict[str, Any]) -> None:
        self.metrics.void(summary["void_reasons"])
        self.metrics.end()
        self.watch.now()
        if self.server is not None and self.environment.parsed_options.headless:
            self.server.wait_for_last_scrape()


class _Judge:
    """Whether the client keeps up, as ``_summary`` will say it from the files in the end."""

    def __init__(self, began: float, limits: Limits) -> None:
        self._began, self._limits = began, limits
        self._sent = self._late = 0
        #: Of each process: seconds, those over the limit of CPU, timers, late ones.
        self._workers: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def record(self, record: Record) -> None:
        if record.phase == MEASURED and record.due is not None and record.sent is not None:
            self._sent += 1
            self._late += record.sent - record.due > self._limits.lag

    def sample(self, worker: str, sample: dict[str, Any]) -> None:
        if worker == "master" or sample["at"] - 0.5 < self._began:
            return
        told = self._workers[worker]
        told[0] += 1
        told[1] += sample["cpu"] > self._limits.cpu
        told[2] += len(sample["delays"])
        told[3] += sum(delay / 1000 > self._limits.delay for delay in sample["delays"])

    def reasons(self) -> list[str]:
        found = []
        if self._late > _FEW and self._late > self._sent / 100:
            found.append(f"schedule lag: {self._late} of {self._sent} requests were sent too late")
        for worker, (seconds, busy, timers, late) in self._workers.items():
            if seconds < _SECONDS:
                continue
            if late > _FEW and late > timers / 100:
                found.append(f"event loop of worker {worker}: {late} of {timers} timers were late")
            if busy > _FEW and busy / seconds > self._limits.cpu_share:
                found.append(f"CPU of worker {worker}: too much in {busy} of {seconds} seconds")
        return found


_lives: dict[int, Live] = {}


@events.init.add_listener
def _init(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    if options is None or isinstance(environment.runner, WorkerRunner):
        return
    if options.metrics_port is None and environment.web_ui is None:
        return
    live = _lives[id(environment)] = Live(environment)
    if options.metrics_port is not None:
        try:
            live.serve(options.metrics_host, options.metrics_port)
        except OSError as error:
            where = f"--metrics-port {options.metrics_port} --metrics-host {options.metrics_host}"
            print(f"{where}: {error.strerror or error}; take another, or 0 for any", file=sys.stderr)
            sys.exit(2)
    if environment.web_ui is not None:
        _web.install(environment, live.watch)


def _begin(environment: Any, run: _run.Run) -> None:
    live = _lives.get(id(environment))
    if live is not None:
        live.begin(run)


def _end(environment: Any, run: _run.Run, summary: dict[str, Any]) -> None:
    url = environment.parsed_options.prometheus
    if url and run.folder and not environment.parsed_options.no_save:
        why = _fleet.save(Path(run.folder), url, run.started, run.ended or run.started)
        if why:
            logging.warning("load test: %s", why)
    live = _lives.get(id(environment))
    if live is not None:
        live.end(summary)


def _each(do: Callable[..., None]) -> Callable[..., None]:
    def hook(*arguments: Any) -> None:
        for live in _lives.values():
            do(live, *arguments)

    return hook


_hooks.on_options.append(add)
_hooks.on_check.append(check)
_hooks.on_begin.append(_begin)
_hooks.on_records.append(_each(Live.records))
_hooks.on_client.append(_each(Live.client))
_hooks.on_end.append(_end)


def _announce(address: str) -> None:
    """Tell the stack's Prometheus where the page is, until this process ends. A folder that can't be written is no harm."""
    folder = targets_folder()
    file = folder / f"{os.getpid()}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.json"):
            if not Path("/proc", old.stem).exists():  # it was killed
                old.unlink(missing_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps([{"targets": [address]}]), encoding="utf-8")
        part.replace(file)
    except OSError as error:
        logging.warning("load test: the stack's Prometheus can't be told of the metrics: %s", error)
        return
    pid = os.getpid()

    def forget() -> None:
        if os.getpid() == pid:  # not in a process that locust forked
            file.unlink(missing_ok=True)

    atexit.register(forget)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 (any) to 65535")
    return int(text)
