"""A chat server of known pace, and of known faults: what the load client's figures are held to.

Answers in a thread per connection, with HTTP/1.1 chunks, one event a chunk, at absolute times, so that a late
chunk does not delay those after it.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


class Paced(ThreadingHTTPServer):
    """``fault``: "" or one of http503, html, empty, error-event, cut, no-done, no-reason, garbage, silent."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, ttft: float = 0.2, gap: float = 0.02, tokens: int = 10, fault: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ttft, self.gap, self.tokens, self.fault = ttft, gap, tokens, fault
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.ports: set[int] = set()
        #: What really happened: seconds from the request's arrival to the first token, and between tokens.
        self.true_ttft: list[float] = []
        self.true_gaps: list[float] = []
        self.over = threading.Event()

    def __enter__(self) -> Paced:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """Clients that go away are what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Paced

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._plain(200, {"object": "list", "data": [{"id": "paced-model", "object": "model"}]})

    def do_POST(self) -> None:
        arrived = time.perf_counter()
        server = self.server
        server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        server.headers.append({k.lower(): v for k, v in self.headers.items()})
        server.ports.add(self.client_address[1])
        if server.fault == "http503":
            error = {"message": "no replica for request 4711", "type": "overloaded", "code": "no_replica"}
            return self._plain(503, {"error": error})
        if server.fault == "html":
            return self._plain(200, {"choices": []})
        if server.fault == "silent":
            server.over.wait(120)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        return self._events(arrived)

    def _events(self, arrived: float) -> None:
        server, fault = self.server, self.server.fault
        self._event(_choice({"role": "assistant", "content": ""}))
        before = None
        for i in range(0 if fault == "empty" else server.tokens):
            time.sleep(max(0.0, arrived + server.ttft + i * server.gap - time.perf_counter()))
            self._event(_choice({"content": f" word{i}"}))
            now = time.perf_counter()
            (server.true_ttft if before is None else server.true_gaps).append(now - (before or arrived))
            before = now
            if i == 3 and fault == "error-event":
                self._event(
                    {"error": {"message": "engine died", "type": "server_error", "code": "replica_lost"}}
                )
                self.close_connection = True
                return
            if i == 3 and fault == "cut":
                self.close_connection = True
                return
            if i == 3 and fault == "garbage":
                self._raw(b"data: {oops\n\n")
        if fault != "no-reason":
            self._event(_choice({}, "stop"))
        usage = {"prompt_tokens": 9, "completion_tokens": server.tokens, "total_tokens": 9 + server.tokens}
        self._event({"object": "chat.completion.chunk", "choices": [], "usage": usage})
        if fault != "no-done":
            self._raw(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: dict[str, Any]) -> None:
        self._raw(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _raw(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _plain(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


@pytest.fixture
def paced() -> type[Paced]:
    """The server's class: ``with paced(ttft=0.2, fault="cut") as server``."""
    return Paced


@pytest.fixture(scope="session")
def smollm2() -> Callable[[list[str]], list[int]]:
    """Tokens of each text by SmolLM2's own tokenizer, which the real engine's environment can read."""
    home = Path(os.environ.get("EXASERVE_HOME") or "~/.exaserve").expanduser()
    python = next(iter(sorted(home.glob("engines/*/bin/python"))), None)
    file = next(iter(sorted(home.glob("models/smollm2-135m-instruct/tokenizer.json"))), None)
    if python is None or file is None:
        pytest.skip("needs the engine and the model that exaserve up builds")
    code = (
        "import json, sys; from tokenizers import Tokenizer; t = Tokenizer.from_file(sys.argv[1]); "
        "print([len(t.encode(x, add_special_tokens=False).ids) for x in json.load(sys.stdin)])"
    )

    def count(texts: list[str]) -> list[int]:
        command = [str(python), "-c", code, str(file)]
        run = subprocess.run(
            command, input=json.dumps(texts), capture_output=True, text=True, timeout=120, check=True
        )
        return list(json.loads(run.stdout))

    return count
