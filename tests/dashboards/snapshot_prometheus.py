"""A Prometheus' HTTP API for the snapshot's tests: answers that a test gives it, by what is in the query."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

#: (HTTP status, body) or the result of a query: series as (labels, value); each of them at every point asked for.
Reply = tuple[int, str] | list[tuple[dict[str, str], float]]


class FakePrometheus:
    """reply: what a query gets; by default, no series. values: of labels. asked: the queries, in order."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.authorization: list[str | None] = []
        self.reply: Callable[[str], Reply] = lambda expr: []
        self.values: dict[str, list[str]] = {}
        self.config = "global:\n  scrape_interval: 5s\n"

    def answer(self, path: str, params: dict[str, str]) -> tuple[int, str]:
        if path.endswith("/status/config"):
            return 200, _success({"yaml": self.config})
        if "/label/" in path:
            return 200, _success(self.values.get(path.split("/")[-2], []))
        expr = params["query"]
        self.asked.append(expr)
        reply = self.reply(expr)
        if isinstance(reply, tuple):
            return reply
        if path.endswith("query_range"):
            start, end, step = (float(params[k]) for k in ("start", "end", "step"))
            times = [start + i * step for i in range(int((end - start) / step + 1.5))]
            rows = [{"metric": m, "values": [[t, str(v)] for t in times]} for m, v in reply]
            return 200, _success({"resultType": "matrix", "result": rows})
        at = float(params.get("time", 0))
        rows = [{"metric": m, "value": [at, str(v)]} for m, v in reply]
        return 200, _success({"resultType": "vector", "result": rows})


def _success(data: Any) -> str:
    return json.dumps({"status": "success", "data": data})


@contextmanager
def serving() -> Iterator[FakePrometheus]:
    """A FakePrometheus that listens."""
    fake = FakePrometheus()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._send(parts.path, parts.query)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self._send(urlsplit(self.path).path, body)

        def _send(self, path: str, query: str) -> None:
            fake.authorization.append(self.headers["authorization"])
            status, text = fake.answer(path, {k: v[0] for k, v in parse_qs(query).items()})
            raw = text.encode()
            # Who asked may have given up.
            with suppress(ConnectionError):
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
