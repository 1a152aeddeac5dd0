"""A chat server of known pace that writes down when it really sent what: the truth that a client is held to.

    python -m loadtest._lib._paced --port 8600 --ttft 0.2 --gap 0.02 --tokens 20 --scenario mix

It prints its address and serves until it is ended. ``GET /truth`` is a JSON list, one object a request that is over::

    {"id": "x-request-id of its answer", "scenario": …, "good": bool, "arrived": Unix s, "sends": [Unix s of each chunk with
     tokens], "tokens": n, "usage": bool, "ended": Unix s}

Sends are paced absolutely from the request's arrival, so a late one delays none after it, and each is stamped just before
the write that completes its event. Not here: what is compared (``_selftest``). Nothing of ExaServe runs in it: it is the
other end of the wire.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
import uvloop

from loadtest._lib import _clock

#: name → whether its requests complete. ``whole`` is what requests without "stream" get, whatever the scenario.
SCENARIOS = {
    "plain": True,
    "comments": True,
    "reasoning": True,
    "tools": True,
    "bundled": True,
    "long_line": True,
    "split": True,
    "crlf": True,
    "multi_line": True,
    "no_usage": True,
    "pause": True,
    "error": False,
    "empty": False,
    "cut": False,
    "refused": False,
}
#: The pause in the middle of a stream of that scenario, seconds.
PAUSE = 3.0
BUNDLE = 4
_LONG = 700 << 10


class Server:
    """ttft, gap: seconds. tokens: of each answer. scenario: a name, or mix (all but pause, one after the other).

    stall_at, stall: seconds after the first request, from when on and how long nothing is sent to anybody.
    """

    def __init__(
        self,
        ttft: float = 0.2,
        gap: float = 0.02,
        tokens: int = 20,
        scenario: str = "plain",
        stall_at: float = 0.0,
        stall: float = 0.0,
    ) -> None:
        self.ttft, self.gap, self.tokens, self.scenario = ttft, gap, tokens, scenario
        self.stall_at, self.stall = stall_at, stall
        self.truth: list[dict[str, Any]] = []
        self._first: float | None = None
        self._requests = 0

    def next(self, now: float) -> tuple[int, str]:
        """Number and scenario of the next request."""
        if self._first is None:
            self._first = now
        number = self._requests
        self._requests += 1
        if self.scenario == "mix":
            names = [name for name in SCENARIOS if name != "pause"]
            return number, names[number % len(names)]
        return number, self.scenario

    def held(self, at: float) -> float:
        """When something due at ``at`` is really sent."""
        if not self.stall or self._first is None:
            return at
        begins = self._first + self.stall_at
        return begins + self.stall if begins <= at < begins + self.stall else at


class _Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._body = b""
        self._path = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._arrived = _clock.now()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url, b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        path = self._path.partition(b"?")[0]
        if path == b"/truth":
            self._transport.write(_whole(200, self._server.truth))
        elif path.endswith(b"/v1/models"):
            self._transport.write(
                _whole(200, {"object": "list", "data": [{"id": "paced", "object": "model"}]})
            )
        elif self._parser.get_method() == b"POST":
            try:
                body = json.loads(self._body)
            except ValueError:
                self._transport.write(_whole(400, {"error": {"message": "no JSON", "code": "bad_json"}}))
                return
            _Answer(self._server, self._transport, self._loop, path, body, self._arrived).begin()
        else:
            self._transport.write(_whole(200, {}))


class _Answer:
    """One answer, from the arrival of its request to its last byte."""

    def __init__(
        self, server: Server, transport: Any, loop: Any, path: bytes, body: dict[str, Any], arrived: float
    ) -> None:
        self._server, self._transport, self._loop = server, transport, loop
        self._number, self._scenario = server.next(arrived)
        self._arrived = arrived
        self._steps: deque[tuple[float, Callable[..., None], tuple[Any, ...]]] = deque()
        self._completions = path.endswith(b"/v1/completions")
        self._embeddings = path.endswith(b"/v1/embeddings")
        self._body = body
        asked = body.get("max_completion_tokens") or body.get("max_tokens")
        self._tokens = int(asked) if asked and not server.tokens else server.tokens
        self._inputs = _inputs(body)
        self._end = b"\r\n" if self._scenario == "crlf" else b"\n"
        self._truth: dict[str, Any] = {
            "id": f"paced-{self._number}",
            "scenario": self._scenario,
            "good": SCENARIOS[self._scenario],
            "arrived": arrived,
            "sends": [],
            "tokens": 0,
            "usage": self._scenario not in ("no_usage", "error", "cut", "refused"),
            "ended": 0.0,
        }

    def begin(self) -> None:
        if self._scenario == "refused":
            error = {"message": "no replica is free", "type": "overloaded", "code": "no_replica"}
            self._later(0.0, lambda: self._plain(503, {"error": error}, b"retry-after: 7\r\n"))
        elif self._embeddings:
            data = [{"index": i, "embedding": [0.25] * 8} for i in range(len(self._body.get("input") or [1]))]
            usage = {"prompt_tokens": self._inputs, "total_tokens": self._inputs}
            self._later(self._server.ttft, lambda: self._plain(200, {"data": data, "usage": usage}))
        elif not self._body.get("stream"):
            at = self._server.ttft + (self._tokens - 1) * self._server.gap
            self._later(at, self._not_streamed)
        else:
            self._stream()
        self._go_on()

    def _stream(self) -> None:
        type_ = b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
        id_ = self._truth["id"].encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\n" + type_ + b"x-request-id: " + id_ + b"\r\n\r\n")
        if not self._completions:
            self._event(self._choice({"role": "assistant", "content": ""}))
        steps = 0 if self._scenario == "empty" else self._tokens
        bundle = BUNDLE if self._scenario == "bundled" else 1
        at = self._server.ttft
        for i in range(0, steps, bundle):
            if self._scenario == "pause" and i == steps // 2:
                at += PAUSE
            self._token(at, i, min(bundle, steps - i))
            if self._scenario in ("error", "cut") and i == steps // 2:
                self._later(at, self._broken)
                return
            at += self._server.gap * bundle
        self._later(self._server.ttft, self._finish)  # right after the last token, as engines do

    def _token(self, at: float, i: int, n: int) -> None:
        """The i-th token and n − 1 after it, in one event, at so many seconds."""
        name, text = self._scenario, f" w{i}" * n
        if name == "comments":
            self._later(at, self._raw, b": ping" + self._end * 2)
        if name == "reasoning" and i < self._tokens // 2:
            choice = self._choice({"reasoning_content": text})
        elif name == "tools":
            call = {"index": 0, "id": f"call-{i}", "function": {"name": "f", "arguments": text}}
            choice = self._choice({"tool_calls": [call]})
        elif name == "long_line" and i == self._tokens // 2:
            choice = self._choice({"content": "x" * _LONG})
        elif name == "split":
            choice = self._choice({"content": "é水🚀"})
        else:
            choice = self._choice({"content": text})
        data = self._line(choice)
        if name == "split":
            cut = data.index("水".encode()) + 1  # inside a character
            self._later(at, self._raw, data[:cut])
            at, data = at + self._server.gap / 4, data[cut:]
        self._later(at, self._stamped, data, n)

    def _stamped(self, data: bytes, n: int) -> None:
        self._truth["sends"].append(_clock.now())
        self._truth["tokens"] += n
        self._raw(data)

    def _broken(self) -> None:
        if self._scenario == "error":
            self._event({"error": {"message": "engine died", "type": "server_error", "code": "replica_lost"}})
        self._done()
        self._transport.close()

    def _finish(self) -> None:
        self._event(self._choice({}, "stop"))
        wanted = (self._body.get("stream_options") or {}).get("include_usage")
        if wanted and self._truth["usage"]:
            self._event(self._chunk([]) | {"usage": self._usage()})
        self._raw(b"data: [DONE]" + self._end * 2)
        self._write(b"0\r\n\r\n")
        self._done()

    def _not_streamed(self) -> None:
        self._truth["tokens"] = self._tokens
        text = " w" * self._tokens
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice |= {"text": text} if self._completions else {"message": {"role": "assistant", "content": text}}
        self._plain(200, self._chunk([choice]) | {"usage": self._usage()})

    def _plain(self, status: int, content: Any, more: bytes = b"") -> None:
        id_ = b"x-request-id: " + self._truth["id"].encode() + b"\r\n"
        self._write(_whole(status, content, id_ + more))
        self._done()

    def _done(self) -> None:
        self._truth["ended"] = _clock.now()
        self._server.truth.append(self._truth)

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """At so many seconds after the request, and never before what was to be done before it."""
        self._steps.append((self._server.held(self._arrived + seconds), call, arguments))

    def _go_on(self) -> None:
        while self._steps:
            due, call, arguments = self._steps[0]
            wait = due - _clock.now()
            if wait > 0.0005:  # the loop's timers have milliseconds
                self._loop.call_later(wait, self._go_on)
                return
            self._steps.popleft()
            call(*arguments)

    def _usage(self) -> dict[str, int]:
        done = self._truth["tokens"]
        return {"prompt_tokens": self._inputs, "completion_tokens": done, "total_tokens": self._inputs + done}

    def _choice(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason}
        choice |= {"text": delta.get("content") or ""} if self._completions else {"delta": delta}
        return self._chunk([choice])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "text_completion" if self._completions else "chat.completion.chunk"
        return {"id": "1", "object": kind, "created": 1, "model": "paced", "choices": choices}

    def _line(self, event: dict[str, Any]) -> bytes:
        text = json.dumps(event, ensure_ascii=False)
        if self._scenario == "multi_line":
            text = text.replace(', "choices"', ',\ndata: "choices"')
        return b"data: " + text.encode() + self._end * 2

    def _event(self, event: dict[str, Any]) -> None:
        self._raw(self._line(event))

    def _raw(self, data: bytes) -> None:
        self._write(b"%x\r\n%s\r\n" % (len(data), data))

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():  # clients may go away
            self._transport.write(data)


def _whole(status: int, content: Any, more: bytes = b"") -> bytes:
    data = json.dumps(content).encode()
    words = {200: b"OK", 400: b"Bad Request", 503: b"Service Unavailable"}[status]
    head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
        status,
        words,
        len(data),
    )
    return head + more + b"\r\n" + data


def _inputs(body: dict[str, Any]) -> int:
    """Tokens of the prompt as this server counts them: words."""
    texts = [str(m.get("content") or "") for m in body.get("messages") or ()] or [
        str(body.get("prompt") or body.get("input"))
    ]
    return sum(len(text.split()) for text in texts)


async def serve(server: Server, port: int, told: Callable[[str], None]) -> None:
    """Until it is cancelled. told: called with the address once it listens."""
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", port, backlog=4096)
    told(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    async with listening:
        await listening.serve_forever()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="0: any that is free (default)")
    parser.add_argument("--ttft", type=float, default=0.2, help="seconds to the first token")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between tokens")
    parser.add_argument(
        "--tokens", type=int, default=20, help="of each answer; 0: as many as max_tokens asks for"
    )
    parser.add_argument("--scenario", choices=[*SCENARIOS, "mix"], default="plain")
    parser.add_argument("--stall-at", type=float, default=0.0, help="seconds after the first request")
    parser.add_argument(
        "--stall", type=float, default=0.0, help="seconds in which nothing is sent to anybody"
    )
    given = parser.parse_args(arguments)
    server = Server(given.ttft, given.gap, given.tokens, given.scenario, given.stall_at, given.stall)
    try:
        uvloop.run(serve(server, given.port, lambda address: print(address, flush=True)))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
