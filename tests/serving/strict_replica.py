"""Replicas for fuzzing: one that parses what it gets with h11 and checks it against what the router says it sent,
and one whose answers are mutated."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import h11

from serving.router.upstream import Upstream
from tests.fakes import FakeEngine
from tests.serving import fuzz_grammar

#: Method, x-token, body.
Message = tuple[bytes, bytes, bytes]


def messages_in(data: bytes) -> tuple[list[Message], bool]:
    """The requests in what a client sent, as h11 understands it, and whether it understood all."""
    parser, found = h11.Connection(h11.SERVER, 65536), []
    token, body = b"", b""
    try:
        parser.receive_data(data)
        while (event := parser.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Request):
                token = next((v for k, v in event.headers if k == b"x-token"), b"")
                method, body = event.method, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                found.append((method, token.lower(), body))
                keep_up(parser)
                if parser.our_state is not h11.DONE or parser.their_state is not h11.DONE:
                    return found, parser.their_state is not h11.MIGHT_SWITCH_PROTOCOL
                parser.start_next_cycle()
            else:
                return found, False
    except h11.ProtocolError:  # its own: after CONNECT
        return found, False
    return found, True


def keep_up(parser: h11.Connection) -> None:
    """The answer goes around the parser, which has to believe that it was sent."""
    if parser.our_state is h11.SEND_RESPONSE:
        parser.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        parser.send(h11.EndOfMessage())


class Sends:
    """What the data plane has sent, by (its, the replica's) port. Replaces ``Upstream.send`` while it is installed."""

    def __init__(self) -> None:
        self.by_port: dict[tuple[int, int], deque[tuple[bytes, bytes]]] = {}  # not yet received
        self.by_client: dict[tuple[int, int], list[Message]] = {}  # by (client's, router's) port, each once
        self.replicas: set[int] = set()  # ports of replicas that look here; what goes to others is not kept
        self._send = Upstream.send

    def install(self) -> None:
        sends = self

        def send(upstream: Upstream, exchange: Any) -> None:
            if upstream.transport is None or upstream.replica.port not in sends.replicas:
                sends._send(upstream, exchange)
                return
            ports = upstream.transport.get_extra_info("sockname")[1], upstream.replica.port
            sends.by_port.setdefault(ports, deque()).append((exchange.head, exchange.body))
            if not exchange.stale and exchange.attempts == 1 and exchange.client.transport is not None:
                info = exchange.client.transport.get_extra_info
                client = info("peername")[1], info("sockname")[1]
                token = exchange.head.lower().partition(b"\r\nx-token:")[2].partition(b"\r\n")[0].strip()
                sends.by_client.setdefault(client, []).append((exchange.method, token, exchange.body))
            sends._send(upstream, exchange)

        Upstream.send = send  # type: ignore[method-assign]

    def remove(self) -> None:
        Upstream.send = self._send  # type: ignore[method-assign]


class StrictReplica(FakeEngine):
    """problems: what was no HTTP, or not what the router sent. received: requests, probes left out."""

    def __init__(self, sends: Sends) -> None:
        super().__init__()
        self.sends = sends
        self.problems: list[str] = []
        self.received = 0

    async def start(self, port: int = 0) -> FakeEngine:
        await super().start(port)
        self.sends.replicas.add(self.port)
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        port = writer.get_extra_info("peername")[1], self.port
        parser, raw = h11.Connection(h11.SERVER, 65536), b""
        request, body = None, b""
        try:
            while data := await reader.read(65536):
                raw += data
                parser.receive_data(data)
                while (event := parser.next_event()) is not h11.NEED_DATA:
                    if isinstance(event, h11.Request):
                        request, body = event, b""
                    elif isinstance(event, h11.Data):
                        body += event.data
                    elif isinstance(event, h11.EndOfMessage):
                        await self._answered(port, request, body, writer)
                        keep_up(parser)
                        raw = b""
                        parser.start_next_cycle()
                    elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                        break
        except h11.RemoteProtocolError as e:
            if port in self.sends.by_port and b"\r\nupgrade:" not in raw.lower():
                self.problems.append(f"not HTTP: {e}: {raw[-600:]!r}")
        except (ConnectionError, RuntimeError):
            pass
        finally:
            self.sends.by_port.pop(port, None)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answered(
        self, ports: tuple[int, int], request: Any, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        sent = self.sends.by_port.get(ports)
        if sent is not None:
            self.received += 1
            self._compare(request, body, sent)
            stream = b'"stream":true' in body
            if stream:
                await self._stream_now(writer)
            elif request.method == b"HEAD":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
            else:
                await self._send(writer, b'{"choices":[]}')
        elif request.target == b"/v1/models":
            await self._send(writer, b'{"object":"list","data":[{"id":"m","object":"model"}]}')
        elif request.target.startswith(b"/metrics"):
            await self._send(writer, self._page())
        else:
            self.probes += 1
            await self._send(writer, self.probe())

    async def _stream_now(self, writer: asyncio.StreamWriter) -> None:
        self._sse_head(writer)
        writer.write(b"5\r\ndata:\r\n")
        await asyncio.sleep(0.001)
        writer.write(b"2\r\n\n\n\r\n0\r\n\r\n")

    def _compare(self, request: Any, body: bytes, sent: deque[tuple[bytes, bytes]]) -> None:
        if not sent:
            self.problems.append(
                f"a request that the router did not send: {request.method!r} {request.target!r}"
            )
            return
        head, wanted = sent.popleft()
        if head.split(b" ", 2)[:2] != [request.method, request.target] or body != wanted:
            self.problems.append(f"not as the router sent it: {head[:300]!r} {wanted[:100]!r} {body[:100]!r}")


class HostileReplica(FakeEngine):
    """Answers probes well and requests with mutated answers. poisoned: tokens whose answer may be another one's,
    since the replica itself has sent something wrong on that connection."""

    def __init__(self, seed: int) -> None:
        super().__init__("hostile")
        self.rng = random.Random(seed)
        self.poisoned: set[bytes] = set()
        self._bad: set[asyncio.StreamWriter] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._serve(reader, writer)
        except RuntimeError:  # uvloop, of a connection that is gone
            pass
        finally:
            self._bad.discard(writer)

    async def _hostile(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        rng = self.rng
        self.heads.clear()
        token = self.requests.pop()[1].get("x-token", "").encode()
        if writer in self._bad:
            self.poisoned.add(token)
        data, well = fuzz_grammar.answer(rng, token)
        if not well:
            self._bad.add(writer)
            self.poisoned.add(token)
        for piece in fuzz_grammar.pieces(rng, data):
            writer.write(piece)
            await writer.drain()
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice((0, 0.001)))
        if well:
            return True
        end = rng.random()
        if end < 0.2 and writer.can_write_eof():
            writer.write_eof()
        return end < 0.7
