"""The simulated replica's routes: from an HTTP request to the engine and back.

Bytes on the connection are in ``http.py``, checks and shapes in ``api.py`` and ``answers.py``, time and KV
blocks in ``scheduler.py``.
"""

from __future__ import annotations

import functools
import json
import time
import uuid
from collections.abc import Callable

from . import answers, api, page
from .faults import Faults
from .http import Connection, HttpRequest
from .metrics import Metrics
from .scheduler import Engine, Request, Settings
from .text import Answer, embedding

VERSION = "0.32.0"
_JSON = "application/json"
_METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
# Routes that vLLM leaves out of its http_* metrics.
_UNCOUNTED = {"/metrics", "/health", "/load", "/ping", "/version", "/_sim/fault"}
_LOOPBACK = ("127.", "::1", "::ffff:127.")


class Job:
    """One request for text or vectors in the engine, and its client.

    cancel: forget its sequences. fail: tell the client that the engine is gone.
    """

    def __init__(self, server: Server, connection: Connection, handler: str) -> None:
        self.connection = connection
        self.requests: list[Request] = []
        self.streaming = False
        self._server = server
        self._handler = handler
        self._started = time.monotonic()
        connection.on_gone = self.cancel
        server.jobs.add(self)

    def cancel(self) -> None:
        for request in self.requests:
            self._server.engine.abort(request)
        self.requests.clear()
        self._server.jobs.discard(self)
        self._server.engine.wake()

    def done(self, status: int = 200) -> None:
        """The answer has been written."""
        self._server.jobs.discard(self)
        self._server.metrics.answered(self._handler, "POST", status, time.monotonic() - self._started)

    def fail(self) -> None:
        error = api.engine_dead()
        self.cancel()
        if self.streaming:
            self.connection.send(b"data: " + error.body + b"\n\n")
            self.connection.send(answers.DONE)
            self.connection.end()
        else:
            self.connection.respond(error.status, error.body, _JSON)


class Server:
    """One simulated replica. Connections call ``handle``."""

    def __init__(self, settings: Settings, faults: bool = False) -> None:
        """Raises ValueError for settings that can't be (see ``Engine``)."""
        self.settings = settings
        self.metrics = Metrics(settings.model, settings.max_model_len)
        self.engine = Engine(settings, self.metrics)
        self.faults = Faults(self.engine)
        self.jobs: set[Job] = set()
        self.connections: set[Connection] = set()
        self._routes: dict[str, tuple[str, Callable[[Connection, HttpRequest], None]]] = {
            "/v1/chat/completions": ("POST", self._generate),
            "/v1/completions": ("POST", self._generate),
            "/v1/embeddings": ("POST", self._embeddings),
            "/tokenize": ("POST", self._tokenize),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/ping": ("GET", self._health),
            "/load": ("GET", self._load),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
        }
        self._faults_allowed = faults

    def protocol(self) -> Connection:
        """A new connection's protocol, for ``loop.create_server``."""
        return Connection(self.handle, self.connections)

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer one request, now or later."""
        start = time.monotonic()
        path, method = request.path, request.method
        handler = path if path in self._routes else "none"
        try:
            if path == "/_sim/fault" and self._faults_allowed:
                self._fault(connection, request)
                return
            if path not in self._routes:
                status, body, headers = 404, b'{"detail":"Not Found"}', ""
            elif method != self._routes[path][0]:
                status, body = 405, b'{"detail":"Method Not Allowed"}'
                headers = f"allow: {self._routes[path][0]}\r\n"
            else:
                self._routes[path][1](connection, request)
                return
        except api.ApiError as e:
            status, body, headers = e.status, e.body, ""
        if path not in _UNCOUNTED:
            self.metrics.answered(handler, method, status, time.monotonic() - start)
        connection.respond(status, body, _JSON, headers)

    def fail_all(self) -> None:
        """What clients of a replica see that is told to end: an error, and the end of their answer."""
        for job in list(self.jobs):
            job.fail()

    def _generate(self, connection: Connection, http: HttpRequest) -> None:
        chat = http.path == "/v1/chat/completions"
        body = api.parse_body(http.headers.get("content-type", ""), bytes(http.body))
        parse = api.parse_chat if chat else api.parse_completion
        wanted = parse(body, self.settings.model, self.settings.max_model_len)
        self._refuse_by_fault()
        identity = http.headers.get("x-request-id") or uuid.uuid4().hex[:16]
        writer = answers.Writer(wanted, ("chatcmpl-" if chat else "cmpl-") + identity, self.settings.model)
        job = Job(self, connection, http.path)
        load_format = http.headers.get("endpoint-load-metrics-format", "")
        if wanted.stream:
            job.streaming = True
            connection.begin("text/event-stream; charset=utf-8")

        def on_token(index: int, text: str, reason: str | None, stop_reason: str | None) -> None:
            first = writer.completion_tokens == 0
            if wanted.stream and first and (opening := writer.opening()):
                connection.send(opening)
            writer.add(index, text, reason, stop_reason)
            if wanted.stream:
                connection.send(writer.chunk(index, text, reason, stop_reason))
                if self._cuts(writer.completion_tokens):
                    job.cancel()
                    connection.cut()
                    return
            if not writer.finished:
                return
            job.done()
            if wanted.stream:
                connection.send(writer.closing())
                connection.end()
            else:
                connection.respond(200, api.encode(writer.whole()), _JSON, self._load_header(load_format))

        for index, prompt in enumerate(wanted.prompts):
            job.requests.append(
                Request(
                    prompt,
                    wanted.max_tokens,
                    functools.partial(on_token, index),
                    Answer(self.settings.seed, prompt),
                    wanted.ignore_eos,
                    wanted.stop,
                )
            )
        for request in list(job.requests):
            self.engine.add(request)

    def _embeddings(self, connection: Connection, http: HttpRequest) -> None:
        body = api.parse_body(http.headers.get("content-type", ""), bytes(http.body))
        inputs, packed = api.parse_embedding(body, self.settings.model, self.settings.max_model_len)
        self._refuse_by_fault()
        job = Job(self, connection, http.path)
        left = len(inputs)

        def on_token(text: str, reason: str | None, stop_reason: str | None) -> None:
            nonlocal left
            left -= 1
            if left:
                return
            vectors = [embedding(self.settings.seed, tokens) for tokens in inputs]
            identity = http.headers.get("x-request-id") or uuid.uuid4().hex[:16]
            answer = answers.embeddings(
                f"embd-{identity}", self.settings.model, vectors, sum(map(len, inputs)), packed
            )
            job.done()
            connection.respond(200, api.encode(answer), _JSON)

        for tokens in inputs:
            job.requests.append(Request(tokens, 0, on_token, Answer(self.settings.seed, tokens)))
        for request in list(job.requests):
            self.engine.add(request)

    def _tokenize(self, connection: Connection, http: HttpRequest) -> None:
        body = api.parse_body(http.headers.get("content-type", ""), bytes(http.body))
        tokens = api.parse_tokenize(body, self.settings.model)
        answer = {
            "count": len(tokens),
            "max_model_len": self.settings.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }
        self.metrics.answered(http.path, "POST", 200, 0.0)
        connection.respond(200, api.encode(answer), _JSON)

    def _models(self, connection: Connection, http: HttpRequest) -> None:
        self.metrics.answered(http.path, "GET", 200, 0.0)
        found = answers.models(self.settings.model, self.settings.max_model_len)
        connection.respond(200, api.encode(found), _JSON)

    def _health(self, connection: Connection, http: HttpRequest) -> None:
        connection.respond(200, b"", "")

    def _load(self, connection: Connection, http: HttpRequest) -> None:
        connection.respond(200, api.encode({"server_load": len(self.jobs)}), _JSON)

    def _version(self, connection: Connection, http: HttpRequest) -> None:
        connection.respond(200, api.encode({"version": VERSION}), _JSON)

    def _metrics(self, connection: Connection, http: HttpRequest) -> None:
        connection.respond(200, page.render(self.metrics, self.engine), _METRICS_TYPE)

    def _fault(self, connection: Connection, http: HttpRequest) -> None:
        peer = connection.transport.get_extra_info("peername") if connection.transport else None
        if not peer or not str(peer[0]).startswith(_LOOPBACK):
            raise api.ApiError(403, "faults can only be set from this machine", "PermissionDeniedError")
        if http.method == "POST":
            state = self.faults.set(api.parse_body(http.headers.get("content-type", ""), bytes(http.body)))
        else:
            state = self.faults.state()
        connection.respond(200, api.encode({"fault": state}), _JSON)

    def _refuse_by_fault(self) -> None:
        if self.faults.kind == "error":
            raise api.ApiError(
                int(self.faults.values["status"]), "simulated fault: error", "InternalServerError"
            )

    def _cuts(self, tokens: int) -> bool:
        return self.faults.kind == "die_mid_stream" and tokens >= self.faults.values["after_tokens"]

    def _load_header(self, form: str) -> str:
        """vLLM's load report on each whole answer, in the format that the request asked for (ORCA)."""
        values = {
            "num_requests_waiting": float(len(self.engine.waiting)),
            "kv_cache_usage_perc": self.engine.kv_usage,
        }
        if form.lower() == "json":
            return f"endpoint-load-metrics: JSON {json.dumps({'named_metrics': values})}\r\n"
        if form.lower() == "text":
            listed = ", ".join(f"named_metrics.{name}={value}" for name, value in values.items())
            return f"endpoint-load-metrics: TEXT {listed}\r\n"
        return ""
