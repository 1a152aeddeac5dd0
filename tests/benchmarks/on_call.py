"""A webhook receiver that is also where an alert's links lead: the runbooks, and the boards' addresses."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.dashboards.queries import FOLDERS, boards
from tests.runbooks.runbook_text import RUNBOOKS


@dataclass
class OnCall:
    """A webhook receiver that is also where links lead: the runbooks and the boards' addresses."""

    server: ThreadingHTTPServer
    received: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def alerts(self, name: str, since: float, status: str = "firing") -> list[tuple[float, dict[str, Any]]]:
        """(when it came, alert) of all that came after ``since``."""
        return [
            (at, alert)
            for at, body in list(self.received)
            for alert in body["alerts"]
            if at > since and alert["status"] == status and alert["labels"]["alertname"] == name
        ]


@contextlib.contextmanager
def on_call() -> Iterator[OnCall]:
    known = {board["uid"]: board for board in boards(FOLDERS["exaserve"]).values()}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            here.received.append((time.time(), body))
            self._answer(200, b"")

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            kind, _, name = url.path.removeprefix("/").partition("/")
            if kind == "runbooks" and name.removesuffix(".md") in RUNBOOKS:
                self._answer(200, RUNBOOKS[name.removesuffix(".md")].read_bytes())
            elif kind == "d" and name in known:
                variables = {f"var-{v['name']}" for v in known[name]["templating"]["list"]}
                wrong = [key for key, value in parse_qsl(url.query) if key not in variables or not value]
                self._answer(404 if wrong else 200, json.dumps(known[name]).encode())
            else:
                self._answer(404, b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    here = OnCall(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    threading.Thread(target=here.server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield here
    finally:
        here.server.shutdown()
        here.server.server_close()
