"""One request for text or vectors: in the engine on one side, its client on the other.

Routes are in ``server.py``, shapes in ``answers.py``. What is done for every token is here and must stay cheap:
one process feeds thousands of streams.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import answers, api
from .http import Connection, HttpRequest
from .sequence import Request
from .text import Answer, Prompt, embedding

if TYPE_CHECKING:
    from .server import Server

JSON = "application/json"


def identity(http: HttpRequest) -> str:
    """The request's id: the one that the client gave, or a random one."""
    return http.headers.get("x-request-id") or os.urandom(8).hex()


class Work:
    """What generations and embeddings have in common. ``start`` gives it to the engine.

    cut_after: tokens after which a fault cuts the connection.
    """

    __slots__ = ("_connection", "_handler", "_http", "_requests", "_server", "_started", "cut_after")

    streaming = False

    def __init__(self, server: Server, connection: Connection, http: HttpRequest) -> None:
        self.cut_after = server.faults.cut_after()
        self._server = server
        self._connection = connection
        self._http = http
        self._handler = http.path
        self._requests: list[Request] = []
        self._started = http.arrived
        connection.on_gone = self.gone
        server.work.add(self)

    def start(self) -> None:
        """Into the engine's queue, once the front-end has had its time with it."""
        shared = self._server.shared
        times = shared.times
        seconds = times.request
        if times.request_token:
            seconds += times.request_token * sum(len(request.prompt) for request in self._requests)
        if seconds:
            shared.clock.at(self._started + seconds * self._server.engine.slowdown, self._enter)
        else:
            self._enter(None)

    def _enter(self, _: object) -> None:
        for request in list(self._requests):  # empty if its client is gone
            self._server.engine.add(request)

    def gone(self) -> None:
        """The client went away."""
        self._server.metrics.aborted += len(self._requests)
        self.cancel()

    def cancel(self) -> None:
        """Forget its sequences."""
        engine = self._server.engine
        for request in self._requests:
            engine.abort(request)
        self._requests.clear()
        self._server.work.discard(self)
        engine.wake()

    def fail(self) -> None:
        """Tell the client that the engine is gone."""
        error = api.engine_dead()
        self.cancel()
        if self.streaming:
            self._connection.send(b"data: " + error.body + b"\n\n")
            self._connection.send(answers.DONE)
            self._connection.end()
        else:
            self._connection.respond(error.status, error.body, JSON)

    def _cut(self) -> None:
        self.cancel()
        if self._server.faults.kind == "reset":
            self._connection.reset()
        else:
            self._connection.cut()

    def _respond(self, body: bytes, headers: str = "") -> None:
        self._done()
        if self.cut_after < math.inf and self._server.faults.kind == "reset":
            self._connection.begin_and_reset(body, JSON)
        else:
            self._connection.respond(200, body, JSON, headers)

    def _done(self) -> None:
        self._server.work.discard(self)
        seconds = time.monotonic() - self._started
        self._server.metrics.answered(self._handler, "POST", 200, seconds)


class Generation(Work):
    """A chat or text completion."""

    __slots__ = ("_after", "_before", "_length", "_opened", "_tokens", "_wanted", "_writer", "streaming")

    def __init__(
        self, server: Server, connection: Connection, http: HttpRequest, wanted: api.Generate
    ) -> None:
        super().__init__(server, connection, http)
        self.streaming = wanted.stream
        name = ("chatcmpl-" if wanted.chat else "cmpl-") + identity(http)
        self._wanted = wanted
        self._writer = answers.Writer(wanted, name, server.shared.model)
        self._tokens = 0
        self._opened = False
        self._length = 0
        on_word: Callable[[Request, str], None] = self._on_word
        if wanted.stream:
            connection.begin("text/event-stream; charset=utf-8")
            frame = self._writer.frame()
            if frame is not None and connection.chunked:
                # Every usual chunk is the same but for its word: HTTP chunk, event and JSON in one.
                self._before, self._after = b"\r\n" + frame[0], frame[1] + b"\r\n"
                self._length = len(frame[0]) + len(frame[1])
                on_word = self._on_usual_word
        seed = server.shared.seed
        self._requests = [
            Request(
                prompt,
                wanted.max_tokens,
                Answer(seed, prompt),
                on_word if wanted.stream or wanted.stop else None,
                self._on_end,
                wanted.ignore_eos,
                wanted.stop,
                index,
            )
            for index, prompt in enumerate(wanted.prompts)
        ]

    def _on_usual_word(self, request: Request, word: str) -> None:
        self._tokens = tokens = self._tokens + 1
        data = b"%x%b%b%b" % (self._length + len(word), self._before, word.encode(), self._after)
        if not self._opened:
            self._open()
        self._connection.send_now(data)
        if tokens >= self.cut_after:
            self._cut()

    def _open(self) -> None:
        self._opened = True
        if opening := self._writer.opening():
            self._connection.send(opening)

    def _on_word(
        self, request: Request, word: str, reason: str | None = None, stop_reason: str | None = None
    ) -> None:
        self._tokens += 1
        writer = self._writer
        writer.completion_tokens = self._tokens
        writer.add(request.index, word, reason, stop_reason)
        if not self.streaming:
            return
        if not self._opened:
            self._open()
        self._connection.send(writer.chunk(request.index, word, reason, stop_reason))
        if self._tokens >= self.cut_after:
            self._cut()

    def _on_end(self, request: Request, word: str, reason: str, stop_reason: str | None) -> None:
        if request.on_word is None:  # nobody collected its words
            word = "".join(request.answer.words(0, request.generated - 1)) + word
            self._tokens += request.generated - 1
        self._on_word(request, word, reason, stop_reason)
        if not self._writer.finished or not self._requests:  # others go on, or it has been cut
            return
        if self.streaming:
            self._done()
            self._connection.send(self._writer.closing())
            self._connection.end()
        else:
            form = self._http.headers.get("endpoint-load-metrics-format", "")
            self._respond(api.encode(self._writer.whole()), self._load_header(form) if form else "")

    def _load_header(self, form: str) -> str:
        """vLLM's load report on each whole answer, in the format that the request asked for (ORCA)."""
        engine = self._server.engine
        values = {
            "num_requests_waiting": float(len(engine.waiting)),
            "kv_cache_usage_perc": engine.blocks.usage,
        }
        if form.lower() == "json":
            return f"endpoint-load-metrics: JSON {json.dumps({'named_metrics': values})}\r\n"
        if form.lower() == "text":
            listed = ", ".join(f"named_metrics.{name}={value}" for name, value in values.items())
            return f"endpoint-load-metrics: TEXT {listed}\r\n"
        return ""


class Embeddings(Work):
    """Vectors for one input or several."""

    __slots__ = ("_inputs", "_left", "_packed")

    def __init__(
        self, server: Server, connection: Connection, http: HttpRequest, inputs: list[Prompt], packed: bool
    ) -> None:
        super().__init__(server, connection, http)
        self._inputs = inputs
        self._packed = packed
        self._left = len(inputs)
        seed = server.shared.seed
        self._requests = [Request(tokens, 0, Answer(seed, tokens), None, self._on_end) for tokens in inputs]

    def _on_end(self, request: Request, word: str, reason: str, stop_reason: str | None) -> None:
        self._left -= 1
        if self._left:
            return
        shared = self._server.shared
        vectors = [embedding(shared.seed, tokens) for tokens in self._inputs]
        tokens = sum(map(len, self._inputs))
        answer = answers.embeddings(
            f"embd-{identity(self._http)}", shared.model, vectors, tokens, self._packed
        )
        self._respond(api.encode(answer))
