"""The exporter's HTTP server: ``/metrics`` for Prometheus, ``/healthz`` for a supervisor, ``/`` for people.

Small and bounded: a thread per connection and at most MAX_CONNECTIONS of them, a time limit on a silent client,
GET and HEAD only. ``/metrics`` speaks the text format or OpenMetrics, whichever the client asks for, and keeps
to the time that Prometheus says it will wait. What is measured is the registry's business.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.exposition import choose_encoder

from exporters.registry import DEFAULT_LIMIT, GRACE, Family, Registry

log = logging.getLogger("exaserve.exporter")

#: Connections at one time; a Prometheus needs one. Further ones are closed at once.
MAX_CONNECTIONS = 32
#: Seconds of a client's silence after which its connection is closed.
IDLE_SECONDS = 15.0
#: Longest time for the collectors, whatever the client says it would wait.
MAX_LIMIT = 60.0


def limit_for(header: str | None) -> float:
    """Seconds for the collectors when Prometheus waits ``header`` seconds (X-Prometheus-Scrape-Timeout-Seconds).

    A fifth, at most half a second, stays for the way there and back. Missing or senseless: DEFAULT_LIMIT.
    """
    try:
        timeout = float(header or "")
    except ValueError:
        return DEFAULT_LIMIT
    if not math.isfinite(timeout) or timeout <= 0:
        return DEFAULT_LIMIT
    reserve = min(timeout / 5, 0.5) + min(timeout / 5, GRACE)
    return min(timeout - reserve, MAX_LIMIT)


class ExporterServer(ThreadingHTTPServer):
    """Listens as soon as it is made; ``serve_forever`` answers. Raises OSError if the port can't be had."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, registry: Registry) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.registry = registry
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would look up its own name here, which takes seconds where DNS is broken.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that went away in the middle is nothing to report.
        log.debug("connection from %s ended early", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: ExporterServer
    protocol_version = "HTTP/1.1"
    server_version = "exaserve-exporter"
    sys_version = ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._answer(HTTPStatus.OK, "text/plain; charset=utf-8", b"ok\n")
        elif path == "/":
            self._answer(HTTPStatus.OK, "text/plain; charset=utf-8", self._front().encode())
        else:
            self._answer(
                HTTPStatus.NOT_FOUND,
                "text/plain; charset=utf-8",
                b"Nothing here. See /metrics, /healthz, /.\n",
            )

    do_HEAD = do_GET

    def _metrics(self) -> None:
        families = self.server.registry.scrape(
            limit_for(self.headers.get("X-Prometheus-Scrape-Timeout-Seconds"))
        )
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        self._answer(HTTPStatus.OK, content_type, encode(_Scraped(families)))

    def _front(self) -> str:
        names = ", ".join(self.server.registry.names)
        return f"ExaServe exporter\n\n/metrics  for Prometheus (collectors: {names})\n/healthz  this process lives\n"

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _Scraped:
    """What prometheus_client's encoders take: something with ``collect``."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families
