"""The program that makes hostile or plentiful traffic: ``python -m chaos.engines.traffic_source KIND --url … --stats FILE``.

Bounded by requests, connections and seconds, whatever it is asked for; ends with its faults' dead-man. It writes what it
did into the stats file five times a second: ``{"began", "sent", "resent", "open", "vanished", "answers": {code: n},
"failed", "bytes"}`` (counts; began: unix seconds; open: connections now), from which the fault is proven. What a fleet
can bear is ``loadtest/``'s to measure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

KINDS = ("peak", "long", "storm", "vanish", "slow")
#: Whatever is asked for, at most this: a chaos tool must not be the one that can't be stopped.
MAX_REQUESTS, MAX_OPEN, MAX_SECONDS = 200_000, 512, 600.0


class Source:
    """All connections of one run. options: the command line's."""

    def __init__(self, options: argparse.Namespace) -> None:
        url = urlsplit(options.url)
        self._host, self._port = url.hostname or "127.0.0.1", url.port or 80
        self._o = options
        self._end = time.monotonic() + min(options.seconds, MAX_SECONDS)
        self._counts: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._open = 0
        self._began = time.time()

    async def run(self) -> None:
        """Until the time or the number of requests is over. Connections that are open then are dropped."""
        writing = asyncio.create_task(self._write())
        open_loop = self._o.kind in ("peak", "long", "vanish")
        try:
            await (self._at_rate() if open_loop else self._clients())
        finally:
            writing.cancel()
            self._save()

    async def _at_rate(self) -> None:
        tasks: set[asyncio.Task[Any]] = set()
        due, began = 0, time.monotonic()
        while time.monotonic() < self._end and due < min(self._o.limit, MAX_REQUESTS):
            await asyncio.sleep(max(0.0, began + due / self._o.rate - time.monotonic()))
            due += 1
            if len(tasks) >= MAX_OPEN:
                self._counts["held_back"] += 1
                continue
            task = asyncio.create_task(self._once())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, self._end - time.monotonic()))
        await self._drop(tasks)

    async def _clients(self) -> None:
        tasks = {asyncio.create_task(self._client()) for _ in range(min(self._o.clients, MAX_OPEN))}
        await asyncio.wait(tasks, timeout=max(0.0, self._end - time.monotonic()))
        await self._drop(tasks)

    async def _drop(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _client(self) -> None:
        """One client that goes on and on; of a storm, one that asks again at once whenever it had no good answer."""
        first = True
        while time.monotonic() < self._end and self._counts["sent"] < min(self._o.limit, MAX_REQUESTS):
            self._counts["resent"] += 0 if first else 1
            first = await self._once() or self._o.kind != "storm"
            await asyncio.sleep(0.05 if first else 0.005)

    async def _once(self) -> bool:
        """One request; whether it had a good answer to its end."""
        self._counts["sent"] += 1
        self._open += 1
        writer = None
        try:
            reader, writer = await asyncio.wait_for(self._connect(), 5.0)
            writer.write(self._request())
            patience = self._o.patience if self._o.kind == "storm" else 60.0
            return await asyncio.wait_for(self._answer(reader), patience)
        except asyncio.CancelledError:
            raise
        except TimeoutError:
            self._counts["gave_up"] += 1
        except (OSError, EOFError, ValueError):
            self._counts["failed"] += 1
        finally:
            self._open -= 1
            if writer is not None:
                writer.transport.abort()
        return False

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._o.kind != "slow":
            return await asyncio.open_connection(self._host, self._port)
        # A small window, so that it is the sender's buffers that fill, as behind a thin line.
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (self._host, self._port))
        return await asyncio.open_connection(sock=sock, limit=2048)

    def _request(self) -> bytes:
        words = f"{time.time_ns():x} " + (
            "word " * self._o.words if self._o.kind == "long" else "Tell a story."
        )
        body = {
            "model": self._o.model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": self._o.max_tokens,
            "stream": True,
            "ignore_eos": self._o.kind in ("slow", "vanish"),
        }
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + data

    async def _answer(self, reader: asyncio.StreamReader) -> bool:
        line = await reader.readline()
        if not line:
            raise EOFError
        code = line.split()[1].decode()
        self._answers[code] += 1
        events, slow = 0, self._o.kind == "slow"
        piece = max(1, int(self._o.bytes_per_second / 5)) if slow else 65536
        while True:
            if slow:
                await asyncio.sleep(0.2)
            got = await reader.read(piece)
            if not got:
                return code == "200"
            self._counts["bytes"] += len(got)
            events += got.count(b"data: ")
            if self._o.kind == "vanish" and events >= self._o.after_tokens:
                self._counts["vanished"] += 1
                return True

    async def _write(self) -> None:
        while True:
            self._save()
            await asyncio.sleep(0.2)

    def _save(self) -> None:
        told = {"began": self._began, "now": time.time(), "open": self._open, "answers": dict(self._answers)}
        path = Path(self._o.stats)
        with contextlib.suppress(OSError):
            path.with_suffix(".new").write_text(json.dumps({**self._counts, **told}))
            os.replace(path.with_suffix(".new"), path)


def main(arguments: list[str] | None = None) -> int:
    """Run it. Exit status 2 for bad usage (argparse)."""
    parser = argparse.ArgumentParser(prog="python -m chaos.engines.traffic_source")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--url", required=True, help="the router")
    parser.add_argument("--model", required=True)
    parser.add_argument("--stats", required=True, help="file")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--limit", type=int, default=20_000, help="requests")
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second (peak, long, vanish)")
    parser.add_argument("--clients", type=int, default=8, help="at once (storm, slow)")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--words", type=int, default=100_000, help="of a prompt (long)")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="seconds until a client asks anew (storm)"
    )
    parser.add_argument("--after-tokens", type=int, default=3, help="then the client goes away (vanish)")
    parser.add_argument("--bytes-per-second", type=float, default=200.0, help="of each client (slow)")
    source = Source(parser.parse_args(arguments))
    print("ready", flush=True)
    asyncio.run(source.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
