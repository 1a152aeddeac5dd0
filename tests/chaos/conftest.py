"""A stand-in for a running stack: two tiny replica processes, a supervisor, and one server that plays the
router, its admin API, Prometheus and Alertmanager. What an experiment sees of a fleet, and nothing more.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.chaos.framework import eventually
from tests.chaos.two_nodes import TwoNodes

_REPLICA = """
import sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Replica:
    """A child process that answers GET; starts again on the same port."""

    def __init__(self, name: str) -> None:
        self.name, self.port = name, 0
        self.state, self.since = "ready", time.time()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _REPLICA, str(self.port)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def stopped(self) -> bool:
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def answers(self) -> str:
        """The state a router would see; one that a busy machine makes late is ready all the same."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=0.5)
        try:
            connection.request("GET", "/")
            return "ready" if connection.getresponse().status == 200 else "down"
        except TimeoutError:
            try:
                return "frozen" if self.stopped else "ready"
            except psutil.NoSuchProcess:
                return "down"
        except (OSError, http.client.HTTPException):
            return "down"
        finally:
            connection.close()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


class Stack(ThreadingHTTPServer):
    """Everything else. restart: seconds until a dead replica starts again. alert_after: seconds."""

    daemon_threads = True
    request_queue_size = 128  # those who come while the machine stands still are not sent away

    def __init__(self, replicas: int = 2, restart: float = 1.5, alert_after: float = 0.5) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.replicas = {f"replica-{i}": Replica(f"replica-{i}") for i in range(replicas)}
        self.restart, self.alert_after = restart, alert_after
        self.answered, self.errors, self.scraped = 0, 0, True
        self.alerts: dict[str, float] = {}
        self.turn = 0
        self._over = threading.Event()
        self._workers = [threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)]
        self._workers += [
            threading.Thread(target=self._supervise, args=(r,), daemon=True) for r in self.replicas.values()
        ]
        for thread in self._workers:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in self._workers[1:]:
            thread.join(60)
        self.shutdown()
        self.server_close()
        for replica in self.replicas.values():
            replica.end()

    def handle_error(self, *_: object) -> None:
        """A client that goes away is its own business."""

    def ready(self) -> list[str]:
        return [r.name for r in self.replicas.values() if r.state == "ready"]

    def _supervise(self, replica: Replica) -> None:
        while not self._over.wait(0.05):
            state = replica.answers()
            if state != replica.state:
                replica.state, replica.since = state, time.time()
            if state == "ready":
                self.alerts.pop(replica.name, None)
            elif time.time() - replica.since > self.alert_after:
                self.alerts[replica.name] = time.time()
            if replica.process.poll() is not None and time.time() - replica.since > self.restart:
                replica.end()
                replica.start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stack

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        stack, path = self.server, urlsplit(self.path)
        if path.path == "/fleet":
            view = [
                {
                    "name": r.name,
                    "url": r.url,
                    "model": "m",
                    "state": r.state,
                    "since": r.since,
                    "reason": None,
                }
                for r in stack.replicas.values()
            ]
            return self._json({"replicas": view, "router": {}})
        if path.path == "/api/v1/query":
            total = stack.answered + stack.errors
            bad = stack.errors / max(1, total)
            value = bad if "_failed" in path.query else 1 if "+%2F+" in path.query else total
            result = [{"metric": {}, "value": [0, str(value)]}] if stack.scraped else []
            return self._json({"status": "success", "data": {"result": result}})
        if path.path == "/v1/models":
            return self._json({"object": "list", "data": [{"id": "m", "max_model_len": 1024}]})
        if path.path in ("/api/v1/alerts", "/api/v2/alerts"):
            alerts = [
                {"labels": {"alertname": "ExaServeReplicaDown", "replica": name}, "state": "firing"}
                for name in list(stack.alerts)
            ]
            return self._json(alerts if "v2" in path.path else {"data": {"alerts": alerts}})
        return self._json({"detail": "Not Found"}, status=404)

    def do_POST(self) -> None:
        stack = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        serving = stack.ready()
        if not serving:
            stack.errors += 1
            return self._json({"error": {"message": "nobody"}}, status=503)
        stack.turn += 1
        by = stack.replicas[serving[stack.turn % len(serving)]]
        stack.answered += 1
        if not body.get("stream"):
            return self._json({"choices": [{"message": {"content": "Hello"}}]}, by=by.name)
        time.sleep(0.02)
        while by.process.poll() is not None and stack.ready():  # nothing was sent yet: another one answers
            by = stack.replicas[stack.ready()[-1]]
            time.sleep(0.02)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("x-exaserve-replica", by.name)
        self.send_header("connection", "close")
        self.end_headers()
        for i in range(5):
            if i and by.process.poll() is not None:
                error = {"error": {"message": "gone", "type": "server_error", "code": "replica_lost"}}
                self.wfile.write(b"data: " + json.dumps(error).encode() + b"\n\n")
                return None
            self.wfile.write(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
            time.sleep(0.02)
        self.wfile.write(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def _json(self, body: Any, status: int = 200, by: str = "") -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        if by:
            self.send_header("x-exaserve-replica", by)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def make_stack() -> Iterator[Callable[..., Stack]]:
    stacks: list[Stack] = []

    def make(**options: Any) -> Stack:
        stacks.append(Stack(**options))
        return stacks[-1]

    yield make
    for stack in stacks:
        stack.close()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Undo records go to the test's own folder, and no fault of another test is remembered."""
    from chaos import timeline

    monkeypatch.delenv("EXASERVE_RUN", raising=False)
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path / "home"))
    timeline.forget()
    return tmp_path / "home"


@pytest.fixture(scope="session")
def two_nodes_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    """One lab for all tests of faults of links and nodes; each leaves it as it was."""
    lab = TwoNodes(tmp_path_factory.mktemp("two-nodes"))
    try:
        lab.lab("up", "--nodes", "2", "--set", "monitoring.enabled=false")
        yield lab
    finally:
        lab.lab("down")


@pytest.fixture
def two_nodes(two_nodes_up: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> TwoNodes:
    monkeypatch.setenv("EXASERVE_HOME", str(two_nodes_up.home))
    # Where the machine stood still, the router may have taken the other node's replica out, too: no fault is put in then.
    assert eventually(lambda: all(r.in_rotation for r in two_nodes_up.place.replicas() if r.node == "node-2"))
    return two_nodes_up
