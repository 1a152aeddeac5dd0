"""CPU that a proxy spends per JSON request and per streamed chunk: ExaServe's router beside nginx and HAProxy.

    python tests/benchmarks/proxy_cost.py [--requests 4000] [--streams 200] [--chunks 64]

All of them stand in front of the same upstream and serve the same load in one run, one after the other, so that
the figures compare; none is a promise about another machine. Peers that are not installed are left out
(Debian's ``nginx-light`` and ``haproxy``). CPU is user and system time of the proxy's processes.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import multiprocessing
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import uvloop

BODY = b'{"model":"m","messages":[{"role":"user","content":"What is the capital of France?"}]%s}'
JSON_ANSWER = b'{"choices":[{"message":{"content":"' + b"x" * 300 + b'"}}]}'
PIECE = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"token"}}]}\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
GAP = 0.005


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def request(streaming: bool) -> bytes:
    body = BODY % (b',"stream":true' if streaming else b"")
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


# --- upstream: as little work as possible ---


def upstream(port: int, chunks: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                n = [int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")]
                body = await reader.readexactly(n[0]) if n else b""
                if head.startswith(b"GET /v1/models"):
                    answer(writer, b'{"data":[{"id":"m"}]}')
                elif head.startswith(b"GET /metrics"):
                    answer(writer, b'\nvllm:num_requests_running{a="b"} 0\n')
                elif b'"stream":true' in body:
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                    )
                    for _ in range(chunks):
                        writer.write(CHUNK)
                        await asyncio.sleep(GAP)
                    writer.write(b"0\r\n\r\n")
                else:
                    answer(writer, JSON_ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer(writer: asyncio.StreamWriter, content: bytes) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (len(content), content)
        )

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", port, backlog=2048) as s:
            await s.serve_forever()

    uvloop.run(main())


# --- load ---


async def json_load(port: int, requests: int, clients: int = 16) -> None:
    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(requests // clients):
            writer.write(request(False))
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head[:16], head
            await reader.readexactly(len(JSON_ANSWER))
        writer.close()

    async with asyncio.timeout(120):
        await asyncio.gather(*(client() for _ in range(clients)))


async def stream_load(port: int, streams: int, chunks: int) -> None:
    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(True))
        assert b" 200 " in (await reader.readuntil(b"\r\n\r\n"))[:16]
        tail = b""  # HAProxy frames the chunks anew: their number of bytes is not ours
        while not tail.endswith(b"0\r\n\r\n"):
            data = await reader.read(65536)
            assert data
            tail = (tail + data)[-5:]
        writer.close()

    async with asyncio.timeout(120):
        await asyncio.gather(*(client() for _ in range(streams)))


# --- proxies ---


@contextmanager
def process(argv: list[str]) -> Iterator[psutil.Process]:
    p = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        yield psutil.Process(p.pid)
    finally:
        p.terminate()
        p.wait(15)


def router(port: int, up: int, _: Path) -> list[str]:
    argv = [sys.executable, "-m", "serving.router", "--port", str(port), "--admin-port", str(free_port())]
    return [*argv, "--replica", f"http://127.0.0.1:{up}"]


def nginx(port: int, up: int, folder: Path) -> list[str]:
    (folder / "nginx.conf").write_text(
        f"""user {getpass.getuser()}; daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
 uwsgi_temp_path {folder}; scgi_temp_path {folder};
 upstream u {{ server 127.0.0.1:{up}; keepalive 512; }}
 server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000; location / {{ proxy_pass http://u;
 proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }} }}"""
    )
    return ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)]


def haproxy(port: int, up: int, folder: Path) -> list[str]:
    (folder / "haproxy.cfg").write_text(
        f"""global
 nbthread 1
 maxconn 8192
defaults
 mode http
 timeout connect 5s
 timeout client 300s
 timeout server 300s
 option http-no-delay
frontend f
 bind 127.0.0.1:{port}
 default_backend b
backend b
 http-reuse always
 server s 127.0.0.1:{up}
"""
    )
    return ["haproxy", "-f", str(folder / "haproxy.cfg")]


def cpu_seconds(p: psutil.Process) -> float:
    return sum(sum(x.cpu_times()[:2]) for x in [p, *p.children(recursive=True)])


async def answers(port: int) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            await json_load(port, 1, 1)
            return
        except (OSError, AssertionError, asyncio.IncompleteReadError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)


def measure(argv: list[str], port: int, requests: int, streams: int, chunks: int) -> tuple[float, float]:
    """(µs of CPU per JSON request, per streamed chunk)."""
    with process(argv) as p:
        uvloop.run(answers(port))
        uvloop.run(json_load(port, 320))  # connections open, code warm
        before = cpu_seconds(p)
        uvloop.run(json_load(port, requests))
        between = cpu_seconds(p)
        uvloop.run(stream_load(port, streams, chunks))
        after = cpu_seconds(p)
    return (between - before) / requests * 1e6, (after - between) / (streams * chunks) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--chunks", type=int, default=64)
    a = parser.parse_args()
    up = free_port()
    source = multiprocessing.Process(target=upstream, args=(up, a.chunks), daemon=True)
    source.start()
    print(f"{'proxy':10} {'µs CPU per JSON request':>24} {'per streamed chunk':>20}")
    for name, build in (("exaserve", router), ("nginx", nginx), ("haproxy", haproxy)):
        if name != "exaserve" and shutil.which(name) is None:
            print(f"{name:10} {'not installed':>24}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            port = free_port()
            try:
                j, c = measure(build(port, up, Path(folder)), port, a.requests, a.streams, a.chunks)
            except (OSError, AssertionError, asyncio.IncompleteReadError) as e:
                print(f"{name:10} failed: {e!r}")
                continue
            print(f"{name:10} {j:24.0f} {c:20.1f}", flush=True)
    source.kill()


if __name__ == "__main__":
    main()
