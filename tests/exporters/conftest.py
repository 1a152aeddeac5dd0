"""Fake engines for the exporter's tests: HTTP servers that give a page, and faults on demand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import closed_port

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def page() -> Callable[[str], bytes]:
    return lambda name: (FIXTURES / name).read_bytes()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """serve(body, status=200) -> address of a server that answers every GET with it."""
    servers: list[ThreadingHTTPServer] = []

    def start(body: bytes | Callable[[], bytes], status: int = 200) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = body() if callable(body) else body
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None: ...

        server = Server(("127.0.0.1", 0), Handler)
        server.daemon_threads, server.block_on_close = True, False
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def hung() -> Iterator[str]:
    """Address of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def dripping() -> Iterator[str]:
    """Address of a server that sends one byte now and then, for ever: no read ever times out."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not stop.wait(0.05):
                try:
                    connection.sendall(b"#")
                except OSError:
                    return

    threading.Thread(target=drip, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    stop.set()
    listener.close()


@pytest.fixture
def closed() -> Iterator[str]:
    """Address where nothing listens."""
    with closed_port() as port:
        yield f"http://127.0.0.1:{port}"
