"""A run's series for Prometheus while it lasts, exactly those of ``exporters/catalog/chaos.py``.

Served on loopback; the Prometheus of ``exaserve up`` finds the page by a file that names its address (file_sd), which
goes with it. A figure that is not known is absent.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from exporters.catalog import metric
from exporters.catalog.chaos import FIGURES, METRICS, STATES

#: Under which Prometheus has the page; ``serving/monitoring.py`` and ``dashboards/scraping.py`` name it too.
JOB = "exaserve-chaos"
_PREFIX = "exaserve_chaos_"
#: Seconds that the end of a run is kept for a Prometheus that has been reading; no longer.
LINGER = 12.0


class Page:
    """The series of the run that goes on or has ended last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self._server: ThreadingHTTPServer | None = None
        self._file: Path | None = None
        self.scrapes: list[float] = []

    def begin(self, experiment: str, run: str, goals: Mapping[str, float], resolution: float) -> None:
        """A new run: the series of the one before go."""
        with self._lock:
            self._values = {}
            self._run = (experiment, run)
        self.state("running")
        self.put("undo_pending", 0)
        self.put("resolution_seconds", resolution)
        for name in ("lost_requests_total", "cut_streams_total"):
            self.put(name, 0)
        for figure in FIGURES:
            if figure in goals:
                self.put("goal_seconds", goals[figure], figure)

    def state(self, state: str) -> None:
        for one in STATES:
            self.put("run_state", float(one == state), one)

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """A value of the run; labels: those after experiment and run. None takes it away."""
        with self._lock:
            values = self._values.setdefault(name, {})
            key = (*self._run, *labels)
            if value is None:
                values.pop(key, None)
            else:
                values[key] = float(value)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks a collector for."""
        with self._lock:
            values = {name: dict(found) for name, found in self._values.items()}
        for declared in METRICS:
            found = values.get(declared.name.removeprefix(_PREFIX), {})
            if not found:
                continue
            made: Any = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
            family = made(declared.name, declared.help, labels=declared.labels)
            for labels, value in found.items():
                family.add_metric(labels, value)
            yield family

    def serve(self, port: int, targets: Path | None) -> str:
        """Start serving; the address. port: 0 takes any. targets: folder for the file that tells Prometheus.

        Raises OSError where the port is taken.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = generate_latest(registry)
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                page.scrapes.append(time.monotonic())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        address = f"127.0.0.1:{self._server.server_port}"
        if targets is not None:
            self._announce(targets, address)
        return f"http://{address}/metrics"

    def linger(self) -> None:
        """Wait until what is there now has been read, if somebody has been reading; at most ``LINGER`` seconds."""
        now = time.monotonic()
        while self.scrapes and self.scrapes[-1] <= now and time.monotonic() < now + LINGER:
            time.sleep(0.1)

    def close(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _announce(self, folder: Path, address: str) -> None:
        """A folder that can't be written is no harm: then nobody reads the page."""
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("*.json"):
                if not Path("/proc", old.stem).exists():  # it was killed
                    old.unlink(missing_ok=True)
            file = folder / f"{os.getpid()}.json"
            part = file.with_suffix(".part")
            part.write_text(json.dumps([{"targets": [address]}]), encoding="utf-8")
            part.replace(file)
            self._file = file


for _name in ("run_state", "undo_pending", "lost_requests_total"):
    metric(f"{_PREFIX}{_name}")  # the names used above are the catalogue's, or this fails at once
