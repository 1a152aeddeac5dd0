"""Fuzzes the router's HTTP side: mutated requests towards it, mutated answers from replicas. In one process.

    python -m tests.serving.fuzz_http --minutes 10 [--seed N]

What counts as a failure: an exception anywhere (loop, logs, stderr), a replica that receives what is no HTTP or
what no client's request was, a client that gets another one's answer, and connections, tasks, files or memory
left over at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import random
import sys
import time
from collections import Counter
from typing import Any

import h11
import uvloop

from serving.router.client import Client
from serving.router.exchange import Exchange
from serving.router.upstream import Upstream
from tests.serving import fuzz_grammar
from tests.serving.invariants import check_now, check_rest
from tests.serving.routing import Running, router, until
from tests.serving.strict_replica import HostileReplica, Sends, StrictReplica, messages_in

SESSIONS = 6  # connections with mutated answers at once, and twice as many with mutated requests
SETTINGS: dict[str, Any] = {
    "request_timeout": 0.3,
    "send_timeout": 1.0,
    "silence_timeout": 30.0,
    "max_header_bytes": 8192,
    "max_body_bytes": 65536,
    "ejection": {"enabled": False},
}


class Problems(logging.Handler):
    """Everything that may not happen, wherever it is said."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"log: {record.getMessage()} {record.exc_info or ''}")

    def loop(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.found.append(f"loop: {context.get('message')}: {error!r} {_where(error)}")

    def unraisable(self, what: Any) -> None:
        self.found.append(f"unraisable: {what.exc_value!r} {_where(what.exc_value)}")


def _where(error: BaseException | None) -> str:
    tb, lines = error.__traceback__ if error is not None else None, []
    while tb is not None:
        lines.append(f"{tb.tb_frame.f_code.co_filename.rpartition('/')[2]}:{tb.tb_lineno}")
        tb = tb.tb_next
    return " ".join(lines)


class Fuzz:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.problems = Problems()
        self.sends = Sends()
        self.seen: Counter[str] = Counter()
        self.number = 0
        self.until = 0.0

    def token(self) -> bytes:
        self.number += 1
        return b"t%d" % self.number

    # --- towards the router ---

    async def requests(self, port: int) -> None:
        rng = self.rng
        while time.monotonic() < self.until:
            data = b"".join(
                fuzz_grammar.request(rng, self.token()) for _ in range(rng.choice((1, 1, 1, 2, 3)))
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            self.seen["request connections"] += 1
            ports = writer.get_extra_info("sockname")[1], port
            self.sends.by_client.pop(ports, None)  # of an earlier one that went away before it was served
            try:
                for piece in fuzz_grammar.pieces(rng, data):
                    writer.write(piece)
                    if rng.random() < 0.3:
                        await self.read(reader, rng.choice((0, 0.001, 0.01)))
                end = rng.random()
                if end < 0.15:
                    writer.write_eof()
                if end < 0.85:
                    await self.read(reader, rng.choice((0.005, 0.5, 0.5, 0.5)))
            except (ConnectionError, RuntimeError):
                pass
            self.compare(ports, data)
            writer.transport.abort() if rng.random() < 0.7 else writer.close()

    def compare(self, ports: tuple[int, int], data: bytes) -> None:
        """What replicas got for this connection against what h11 finds in its bytes."""
        sent = self.sends.by_client.pop(ports, [])
        if not sent:
            return
        meant, understood = messages_in(data)
        left = iter(meant)
        for message in sent:
            if message not in left:
                if understood:
                    self.problems.found.append(f"no client's request: {message!r} in {data[:1500]!r}")
                self.seen["understood by the router only"] += 1
                return

    async def read(self, reader: asyncio.StreamReader, seconds: float) -> None:
        """What comes within that time; the router's answers begin like answers."""
        try:
            async with asyncio.timeout(seconds):
                data = await reader.read(65536)
        except TimeoutError:
            return
        if data.startswith(b"HTTP/1.1 "):
            self.seen[f"status {data[9:12].decode()}"] += 1

    # --- from replicas ---

    async def answers(self, port: int, replica: HostileReplica) -> None:
        rng = self.rng
        while time.monotonic() < self.until:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            self.seen["connections"] += 1
            try:
                for _ in range(rng.choice((1, 3, 10))):
                    if not await self.one_answer(reader, writer, replica):
                        break
            except ConnectionError:
                self.seen["answers reset"] += 1
            writer.transport.abort()

    async def one_answer(self, reader: Any, writer: Any, replica: HostileReplica) -> bool:
        """Whether another request may follow."""
        rng, token = self.rng, self.token()
        version = b"1.0" if rng.random() < 0.1 else b"1.1"
        body = fuzz_grammar.CHAT
        writer.write(
            b"POST /v1/chat/completions HTTP/%s\r\nhost: x\r\nx-token: %s\r\ncontent-length: %d\r\n\r\n%s"
            % (version, token, len(body), body)
        )
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
        parser.send(h11.EndOfMessage())
        whose, status, content = b"", 0, b""
        try:
            async with asyncio.timeout(rng.choice((0.02, 0.2, 1.0))):
                while True:
                    data = await reader.read(65536)
                    parser.receive_data(data)
                    while (event := parser.next_event()) is not h11.NEED_DATA:
                        if isinstance(event, h11.Response):
                            headers = dict(event.headers)
                            whose, status = headers.get(b"x-token", token), event.status_code
                        elif isinstance(event, h11.Data):
                            content += event.data
                        elif isinstance(event, h11.EndOfMessage):
                            self.seen[f"answer {status}"] += 1
                            if whose != token and token not in replica.poisoned:
                                self.problems.found.append(f"{token!r} got the answer of {whose!r}")
                            replica.poisoned.discard(token)
                            return parser.our_state is h11.DONE and version == b"1.1" and bool(data)
                        elif isinstance(event, h11.ConnectionClosed):
                            return False
                    if not data:
                        return False
        except TimeoutError:
            self.seen["answer late"] += 1
        except h11.RemoteProtocolError:
            self.seen["answer not HTTP, or cut"] += 1  # relayed as the replica sent it
        return False

    # --- the run ---

    async def run(self, seconds: float, say: Any = print) -> list[str]:
        """Fuzz for so long. Returns what was wrong."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.problems.loop)
        hook, sys.unraisablehook = sys.unraisablehook, self.problems.unraisable
        logging.getLogger().addHandler(self.problems)
        self.sends.install()
        try:
            strict = [StrictReplica(self.sends) for _ in range(2)]
            hostile = [HostileReplica(self.rng.randrange(2**32)) for _ in range(2)]
            async with router(*strict, **SETTINGS) as one, router(*hostile, **SETTINGS) as two:
                await self.fuzz(seconds, one, two, strict, hostile, say)
        finally:
            self.sends.remove()
            logging.getLogger().removeHandler(self.problems)
            sys.unraisablehook = hook
            loop.set_exception_handler(None)
        return self.problems.found

    async def fuzz(
        self, seconds: float, one: Running, two: Running, strict: Any, hostile: Any, say: Any
    ) -> None:
        began = time.monotonic()
        self.until = began + seconds
        hostile[0].poisoned = hostile[1].poisoned  # a client does not know who answers it
        base: dict[str, int] = {}
        said, told = began, 0
        work = [asyncio.create_task(self.requests(one.port)) for _ in range(2 * SESSIONS)]
        work += [asyncio.create_task(self.answers(two.port, hostile[0])) for _ in range(SESSIONS)]
        while not all(t.done() for t in work):
            await asyncio.wait(work, timeout=0.5)
            for running in (one, two):
                check_now_but_tunnels(running)
            now = time.monotonic()
            self.problems.found += [p for s in strict for p in s.problems]
            for s in strict:
                s.problems.clear()
            if now - said > 10:
                said = now
                base = base or _sizes()
                say(self.line(now - began, strict), *self.problems.found[told:][:5], sep="\n  ", flush=True)
                told = len(self.problems.found)
        for t in work:
            t.result()
        for running in (one, two):
            await until(lambda r=running: not r.server.clients)  # type: ignore[misc]
            await until(lambda r=running: not r.server._tasks)  # type: ignore[misc]
            check_rest(running.server, running.server.replicas)
        end = _sizes()
        say(self.line(time.monotonic() - began, strict))
        say(f"left over: {end}; 10 s after the start: {base or 'not measured'}")
        if end["clients"] or end["exchanges"]:
            self.problems.found.append(f"objects are left: {end}")
        if base and end["files"] > base["files"] + 2 * SESSIONS:
            self.problems.found.append(f"open files grew: {base} {end}")
        if base and end["rss_kib"] > base["rss_kib"] + 64 * 1024:
            self.problems.found.append(f"memory grew: {base} {end}")

    def line(self, seconds: float, strict: Any) -> str:
        got = sum(s.received for s in strict)
        return (
            f"{seconds:.0f} s: {self.number} messages, {self.number / seconds:.0f}/s, {got} reached a strict replica, "
            f"{len(self.problems.found)} problems; {dict(self.seen.most_common(16))}"
        )


def check_now_but_tunnels(running: Running) -> None:
    """Upgrades have attempts of another kind; without one open, everything must hold."""
    server = running.server
    if not any(c.exchange is not None and c.exchange.upgrade for c in server.clients):
        check_now(server, server.replicas)


def _sizes() -> dict[str, int]:
    gc.collect()
    kinds = Counter(type(o) for o in gc.get_objects())
    with open("/proc/self/statm") as f:
        pages = int(f.read().split()[1])
    return {
        "clients": kinds[Client], "exchanges": kinds[Exchange], "upstreams": kinds[Upstream],
        "files": len(os.listdir("/proc/self/fd")), "rss_kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    found = uvloop.run(Fuzz(seed).run(options.minutes * 60))
    for problem in found[:20]:
        print("PROBLEM", problem)
    print("nothing found" if not found else f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
