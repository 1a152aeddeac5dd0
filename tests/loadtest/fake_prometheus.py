"""A Prometheus that answers as it is told: for what asks one after a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

#: (query, form) → series as (labels, value at each asked moment), or a sentence for a refusal.
Reply = Callable[[str, dict[str, str]], list[tuple[dict[str, str], float]] | str]


class Fake:
    """url: of it. asked: every form that came. status, body: sent in place of an answer, where set."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.url = ""
        self.asked: list[dict[str, str]] = []
        self.body: bytes | None = None

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, bytes]:
        self.asked.append(form)
        if self.body is not None:
            return 200, self.body
        found = self.reply(form["query"], form)
        if isinstance(found, str):
            return 400, json.dumps({"status": "error", "error": found}).encode()
        if path.endswith("query_range"):
            start, end, step = (float(form[key]) for key in ("start", "end", "step"))
            moments = [start + i * step for i in range(int((end - start) // step) + 1)]
            result = [{"metric": m, "values": [[at, str(v)] for at in moments]} for m, v in found]
        else:
            result = [{"metric": m, "value": [float(form["time"]), str(v)]} for m, v in found]
        return 200, json.dumps({"status": "success", "data": {"result": result}}).encode()


@contextmanager
def serving(reply: Reply) -> Iterator[Fake]:
    fake = Fake(reply)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["content-length"])).decode()
            status, data = fake.answer(self.path, {k: v[0] for k, v in parse_qs(text).items()})
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
