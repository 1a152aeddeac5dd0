"""Fake replicas for benchmarks: as little work as possible per answer, in the shape of vLLM's.

One process, N ports, uvloop, bytes made beforehand. A port is a replica: at each of its steps (``gap`` seconds,
the ports out of phase) every open stream gets one chunk, as a decode step gives every sequence one token.
``max_tokens`` of a request is its number of content chunks; the first one comes at once. Simulated time, batching
and faults belong to ``exaserve simulate-replicas``, behaviours for tests to ``tests/fakes.py``.

    python -m tests.benchmarks.upstreams --count 8 --gap 0.01     # prints its ports, serves until its stdin ends
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = "bench"
SHAPES = 64  # different texts of a chunk
ID = b"chatcmpl-0f6c1e0d2b7a4c55a1d3e8f9b2c4d6e8"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(choices: bytes, usage: bytes = b"") -> bytes:
    return chunked(
        b'data: {"id":"%s","object":"chat.completion.chunk","created":1760000000,"model":"%s","choices":[%s]%s}\n\n'
        % (ID, MODEL.encode(), choices, usage)
    )


def delta(text: bytes, finish: bytes = b"null") -> bytes:
    return event(
        b'{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":%s,"token_ids":null}'
        % (text, finish)
    )


HEADERS = b"HTTP/1.1 200 OK\r\ndate: Fri, 01 Aug 2025 12:00:00 GMT\r\nserver: uvicorn\r\n"
STREAM_HEAD = (
    HEADERS + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
ROLE = event(b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}')
CHUNKS = [delta(b" tok%02d" % i + b"en" * (i % 5)) for i in range(SHAPES)]
USAGE = b',"usage":{"prompt_tokens":150,"total_tokens":%d,"completion_tokens":%d}'
DONE = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def whole(content: bytes, kind: bytes = b"application/json") -> bytes:
    return HEADERS + b"content-length: %d\r\ncontent-type: %s\r\n\r\n%s" % (len(content), kind, content)


ANSWER = whole(
    b'{"id":"%s","object":"chat.completion","created":1760000000,"model":"%s","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"%s","refusal":null,"annotations":null,"audio":null,"function_call":null,'
    b'"tool_calls":[],"reasoning_content":null},"logprobs":null,"finish_reason":"stop","stop_reason":null}],'
    b'"service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":150,"total_tokens":214,'
    b'"completion_tokens":64,"prompt_tokens_details":null},"prompt_logprobs":null,"kv_transfer_params":null}'
    % (ID, MODEL.encode(), b"The answer is as long as a short one usually is. " * 6)
)
MODELS = whole(b'{"object":"list","data":[{"id":"%s","object":"model","owned_by":"vllm"}]}' % MODEL.encode())
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
STREAMING = re.compile(rb'"stream": ?true')


def rendered(body: bytes) -> bytes:
    """The tokens of a prompt, as vLLM 0.32.0's /v1/chat/completions/render says them: one for five bytes here.

    vllm-router asks for them before each request where its policy is cache_aware, its default.
    """
    tokens = [zlib.crc32(body[i : i + 5]) % 49_000 for i in range(0, len(body), 5)]
    return whole(
        b'{"request_id":"%s","token_ids":%s,"token_offsets":null,"features":null,"sampling_params":'
        b'{"n":1,"temperature":0.7,"max_tokens":64},"model":"%s","stream":false,"stream_options":null,'
        b'"cache_salt":null,"priority":0,"kv_transfer_params":null}'
        % (ID, json.dumps(tokens).encode(), MODEL.encode())
    )


class Counts:
    requests = 0
    streams = 0
    aborted = 0  # streams whose connection went away before their end
    traces = 0  # POSTs of spans
    renders = 0  # requests of a router for the tokens of a prompt


class Replica:
    """One port: its streams, and the clock that steps them."""

    def __init__(self, gap: float, phase: float, page: bytes) -> None:
        self.gap = gap
        self.phase = phase
        self.page = page
        self.streams: dict[Connection, int] = {}  # chunks left

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.next = loop.time() + self.phase
        loop.call_at(self.next, self.step)

    def step(self) -> None:
        ended = []
        for connection, left in self.streams.items():
            connection.transport.write(CHUNKS[left % SHAPES])
            if left <= 1:
                ended.append(connection)
            else:
                self.streams[connection] = left - 1
        for connection in ended:
            del self.streams[connection]
            connection.end()
        now = self.loop.time()
        self.next = max(self.next + self.gap, now)  # a late step delays those after it, as an engine's does
        self.loop.call_at(self.next, self.step)


class Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.buffer = b""
        self.tokens = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self.replica.streams.pop(self, None) is not None:
            Counts.aborted += 1

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data if self.buffer else data
        while buffer:
            end = buffer.find(b"\r\n\r\n") + 4
            if end < 4:
                break
            found = LENGTH.search(buffer, 0, end)
            size = end + (int(found[1]) if found else 0)
            if len(buffer) < size:
                break
            self.answer(buffer, end, size)
            buffer = buffer[size:]
        self.buffer = buffer

    def answer(self, data: bytes, end: int, size: int) -> None:
        if data.startswith(b"POST"):
            if data.startswith(b"POST /v1/traces"):
                Counts.traces += 1
                self.transport.write(whole(b"{}"))
                return
            if data.startswith(b"POST /v1/chat/completions/render"):
                Counts.renders += 1
                self.transport.write(rendered(data[end:size]))
                return
            Counts.requests += 1
            if STREAMING.search(data, end, size):
                self.stream(int(found[1]) if (found := MAX_TOKENS.search(data, end, size)) else 16)
            else:
                self.transport.write(ANSWER)
        elif data.startswith(b"GET /metrics"):
            self.transport.write(self.replica.page)
        elif data.startswith(b"GET /v1/models"):
            self.transport.write(MODELS)
        elif data.startswith(b"GET /counts"):
            names = ("requests", "streams", "aborted", "traces", "renders")
            counts = {n: getattr(Counts, n) for n in names}
            self.transport.write(whole(json.dumps(counts).encode()))
        else:  # /health, /get_server_info, …
            self.transport.write(whole(b'{"status":"ok","model_id":"%s"}' % MODEL.encode()))

    def stream(self, tokens: int) -> None:
        Counts.streams += 1
        self.tokens = tokens
        self.transport.write(STREAM_HEAD + ROLE)
        self.replica.streams[self] = tokens

    def end(self) -> None:
        last = delta(b"", b'"stop"') + event(b"", USAGE % (150 + self.tokens, self.tokens))
        self.transport.write(last + DONE)


def page() -> bytes:
    """A whole page of vLLM 0.32.0's metrics: reading it is part of a router's work."""
    file = ROOT / "tests" / "fixtures" / "vllm-0.32.0-metrics.txt"
    return whole(file.read_bytes(), b"text/plain; version=0.0.4; charset=utf-8")


async def serve(count: int, gap: float) -> None:
    loop = asyncio.get_running_loop()
    text, ports = page(), []
    for i in range(count):
        replica = Replica(gap, gap * i / count, text)
        server = await loop.create_server(lambda r=replica: Connection(r), "127.0.0.1", 0, backlog=4096)  # type: ignore[misc]
        ports.append(server.sockets[0].getsockname()[1])
        replica.start(loop)
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # whoever started us is gone


def raise_file_limit() -> int:
    """As many open files as this process may have; how many that is."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Upstreams:
    """The process from outside. ``urls`` are the replicas'."""

    def __init__(self, ports: list[int], pid: int) -> None:
        self.ports = ports
        self.pid = pid
        self.urls = [f"http://127.0.0.1:{p}" for p in ports]

    def counts(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.urls[0]}/counts", timeout=10) as answer:
            found: dict[str, int] = json.load(answer)
        return found


@contextmanager
def running(count: int = 8, gap: float = 0.01, cores: Iterable[int] = ()) -> Iterator[Upstreams]:
    """``count`` fake replicas in a process of their own, on ``cores`` (none: wherever)."""
    argv = [sys.executable, "-m", "tests.benchmarks.upstreams", "--count", str(count), "--gap", str(gap)]
    argv += ["--cores", ",".join(map(str, cores))]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the fake replicas did not start")
        yield Upstreams(json.loads(line), process.pid)
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
        process.kill()
        process.wait()
        process.stdout.close()


def main() -> None:
    import os

    import uvloop

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=8, help="replicas, a port each")
    parser.add_argument("--gap", type=float, default=0.01, help="seconds between two chunks of a stream")
    parser.add_argument("--cores", default="", help="cores to run on, as 1,2")
    a = parser.parse_args()
    if a.cores:
        os.sched_setaffinity(0, {int(x) for x in a.cores.split(",")})
    raise_file_limit()
    uvloop.run(serve(a.count, a.gap))


if __name__ == "__main__":
    main()
