"""Serves a run's numbers to Prometheus, and keeps them digested; from the process that holds the run.

Digesting and writing happen in one thread beside the event loop, so that a scrape delays no timestamp by more than
the switch between threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, TypeVar

import gevent
from gevent.pool import Group, Pool
from gevent.pywsgi import WSGIServer
from gevent.threadpool import ThreadPool

from loadtest._lib import _metrics_page
from loadtest._lib._metrics import Digest, Metrics

T = TypeVar("T")

ADDRESS = "127.0.0.1"
#: The last scrape is awaited for two of the intervals seen, at least and at most so many seconds.
SHORTEST_WAIT, LONGEST_WAIT = 2.0, 60.0


class Watch:
    """Digests what ``metrics`` was told, whenever ``beat`` is called: once a second while a run lasts.

    ``ask`` has a function see the digest.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._digest = Digest()
        self._thread = ThreadPool(1)
        self._beats = Group()

    def ask(self, question: Callable[[Digest], T]) -> T:
        """What it returns; run in the digest's thread, the caller's greenlet waits."""
        return self._thread.apply(question, (self._digest,))

    def now(self) -> None:
        """Digest everything up to now, outside of the beat."""
        taken = self.metrics.take()
        self.ask(lambda digest: digest.put(taken))

    def close(self) -> None:
        self._thread.kill()

    def beat(self) -> None:
        """The same, without waiting for it."""
        self._beats.spawn(self.now)


class Server:
    """``/metrics``, on loopback if no other host is named. port: 0 takes any. Raises OSError where it is taken."""

    def __init__(self, watch: Watch, port: int, host: str = ADDRESS) -> None:
        self._watch = watch
        self._scrapes: list[float] = []
        # Few at once: who asks more often than that must not take the run's time.
        self._server = WSGIServer((host, port), self._answer, log=None, error_log=None, spawn=Pool(8))
        self._server.start()
        #: host:port, as Prometheus has targets.
        self.address = f"{f'[{host}]' if ':' in host else host}:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}/metrics"

    def wait_for_last_scrape(self) -> bool:
        """Stay until Prometheus has read the end of the run, if it has been reading; True if it has.

        Without it the last value of a counter would be that of some seconds before the end.
        """
        self._watch.now()
        ended = monotonic()
        between = [after - before for before, after in zip(self._scrapes, self._scrapes[1:], strict=False)]
        if not between:
            return False
        until = ended + min(LONGEST_WAIT, max(SHORTEST_WAIT, self._scrapes[-1] + 2 * max(between) - ended))
        while monotonic() < until and self._scrapes[-1] <= ended:
            gevent.sleep(0.05)
        return self._scrapes[-1] > ended

    def close(self) -> None:
        self._server.stop(1)

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _plain(start, "405 Method Not Allowed", b"GET /metrics\n")
        if environ["PATH_INFO"].rstrip("/") not in ("", "/metrics"):
            return _plain(start, "404 Not Found", b"/metrics is here\n")
        try:
            body = self._watch.ask(_metrics_page.text)
        except Exception as error:
            logging.exception("load test: its metrics can't be written")
            return _plain(start, "500 Internal Server Error", f"{type(error).__name__}\n".encode())
        start("200 OK", [("Content-Type", _metrics_page.CONTENT_TYPE), ("Content-Length", str(len(body)))])
        # Kept short: intervals of the last scrapes are what matters.
        self._scrapes = [*self._scrapes[-4:], monotonic()]
        return [body]


def _plain(start: Callable[..., Any], status: str, body: bytes) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
