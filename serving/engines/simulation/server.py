"""One simulated replica: its routes, and what its faults do.

Bytes on the connection are in ``http.py``, checks and shapes in ``api.py`` and ``answers.py``, a request's life
in ``work.py``, time and KV blocks in ``scheduler.py``. Many replicas in one process: ``replicas.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from urllib.parse import parse_qs

from . import answers, api
from .clock import Clock
from .connections import KEEP_ALIVE_SECONDS, Connections, Owner
from .faults import Faults
from .http import Connection, HttpRequest
from .leak import Leak
from .metrics import Metrics
from .page import Page, some_families
from .profile import Profile, Times
from .scheduler import Engine
from .work import JSON, Embeddings, Generation, Work

VERSION = "0.32.0"
FAULT_ROUTE = "/_sim/fault"
_METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
# Routes that vLLM leaves out of its http_* metrics.
_UNCOUNTED = {"/metrics", "/metrics/", "/health", "/load", "/ping", "/version", FAULT_ROUTE}
_LOOPBACK = ("127.", "::1", "::ffff:127.")


class Shared:
    """What all simulated replicas of a process have in common. On the running event loop."""

    def __init__(self, profile: Profile, model: str, seed: int = 0, faults: bool = False) -> None:
        """model: the name that clients ask for. faults: whether replicas take them over their own port."""
        self.profile = profile
        self.model = model
        self.seed = seed
        self.faults = faults
        self.times = Times(profile)
        self.page = Page(profile, model)
        self.clock = Clock()
        self.connections = Connections()
        self.random = Random(seed)  # noqa: S311


class Server(Owner):
    """One replica. Connections call ``handle``.

    on_refuse: called with whether the port is to be closed (a fault). work: requests in the engine or on
    their way there.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared
        self.metrics = Metrics(shared.profile.max_model_len)
        self.engine = Engine(shared.profile, shared.times, self.metrics, shared.clock, shared.random)
        self.faults = Faults(shared.random, self._fault_changed)
        self._leak = Leak()
        self.work: set[Work] = set()
        self.on_refuse: Callable[[bool], None] | None = None
        self._held: list[tuple[Connection, HttpRequest]] = []
        self._refusing = False

    def protocol(self) -> Connection:
        """A new connection's protocol, for ``loop.create_server``."""
        return Connection(self, self.shared.connections)

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        path, method = request.path, request.method
        try:
            if path == FAULT_ROUTE and self.shared.faults:
                self._fault(connection, request)
                return
            if self.frozen:
                self._held.append((connection, request))
                return
            route = _ROUTES.get(path)
            if route is None:
                status, body, headers = 404, b'{"detail":"Not Found"}', ""
            elif method != route[0]:
                status, body, headers = 405, b'{"detail":"Method Not Allowed"}', f"allow: {route[0]}\r\n"
            else:
                route[1](self, connection, request)
                return
        except api.ApiError as e:
            status, body, headers = e.status, e.body, e.headers
        if path not in _UNCOUNTED:
            handler = path if path in _ROUTES else "none"
            self.metrics.answered(handler, method, status, time.monotonic() - request.arrived)
        connection.respond(status, body, JSON, headers)

    def fail_all(self) -> None:
        """What clients of a replica see that is told to end: an error, and the end of their answer."""
        for work in list(self.work):
            work.fail()

    # routes
    def _generate(self, connection: Connection, http: HttpRequest) -> None:
        shared = self.shared
        body = api.parse_body(http.headers.get("content-type", ""), http.body)
        parse = api.parse_chat if http.path == "/v1/chat/completions" else api.parse_completion
        wanted = parse(body, shared.model, shared.profile.max_model_len)
        self._refuse_by_fault()
        Generation(self, connection, http, wanted).start()

    def _embeddings(self, connection: Connection, http: HttpRequest) -> None:
        shared = self.shared
        body = api.parse_body(http.headers.get("content-type", ""), http.body)
        inputs, packed = api.parse_embedding(body, shared.model, shared.profile.max_model_len)
        self._refuse_by_fault()
        Embeddings(self, connection, http, inputs, packed).start()

    def _tokenize(self, connection: Connection, http: HttpRequest) -> None:
        body = api.parse_body(http.headers.get("content-type", ""), http.body)
        tokens = api.parse_tokenize(body, self.shared.model)
        answer = {
            "count": len(tokens),
            "max_model_len": self.shared.profile.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }
        self._answered(connection, http, api.encode(answer))

    def _models(self, connection: Connection, http: HttpRequest) -> None:
        found = answers.models(self.shared.model, self.shared.profile.max_model_len)
        self._answered(connection, http, api.encode(found))

    def _answered(self, connection: Connection, http: HttpRequest, body: bytes) -> None:
        self.metrics.answered(http.path, http.method, 200, time.monotonic() - http.arrived)
        connection.respond(200, body, JSON)

    def _health(self, connection: Connection, http: HttpRequest) -> None:
        connection.respond(200, b"", "")

    def _load(self, connection: Connection, http: HttpRequest) -> None:
        connection.respond(200, b'{"server_load":%d}' % len(self.work), JSON)

    def _version(self, connection: Connection, http: HttpRequest) -> None:
        connection.respond(200, api.encode({"version": VERSION}), JSON)

    def _metrics(self, connection: Connection, http: HttpRequest) -> None:
        page = self.shared.page.render(self.metrics, self.engine)
        # prometheus_client, which vLLM mounts there, answers with some families only: /metrics/?name[]=…
        names = parse_qs(http.query).get("name[]") if http.query else None
        connection.respond(200, page if names is None else some_families(page, names), _METRICS_TYPE)

    def _fault(self, connection: Connection, http: HttpRequest) -> None:
        peer = connection.transport.get_extra_info("peername") if connection.transport else None
        if not peer or not str(peer[0]).startswith(_LOOPBACK):
            raise api.ApiError(403, "faults can only be set from this machine", "PermissionDeniedError")
        if http.method == "POST":
            state = self.faults.set(api.parse_body(http.headers.get("content-type", ""), http.body))
        else:
            state = self.faults.state()
        connection.respond(200, api.encode({"fault": state}), JSON)

    # faults
    def _fault_changed(self) -> None:
        faults, engine = self.faults, self.engine
        engine.slowdown = faults.values.get("factor", 1.0)
        self._leak.set(faults.values if faults.kind == "leak" else None)
        engine.stuck = faults.kind in ("stuck", "freeze", "refuse")
        self.frozen = faults.kind == "freeze"
        self.keep_alive = faults.values["after"] if faults.kind == "reset_idle" else KEEP_ALIVE_SECONDS
        for work in self.work:
            work.cut_after = faults.cut_after()
        if faults.kind in ("reset_idle", "refuse"):
            for connection in list(self.connections):
                if faults.kind == "refuse" or connection.idle:
                    connection.reset()
        if faults.kind == "refuse":
            for work in list(self.work):  # a reset connection does not tell
                work.gone()
        refusing = faults.kind == "refuse"
        if refusing != self._refusing and self.on_refuse:
            self.on_refuse(refusing)
        self._refusing = refusing
        if not self.frozen and self._held:
            held, self._held = self._held, []
            for connection, request in held:
                if connection.transport is not None:
                    self.handle(connection, request)
        engine.wake()

    def _refuse_by_fault(self) -> None:
        faults = self.faults
        if faults.kind == "none":
            return
        if faults.hits("error"):
            raise api.ApiError(int(faults.values["status"]), "simulated fault: error", "InternalServerError")
        if faults.hits("fast_503"):
            raise api.ApiError(503, "simulated fault: fast_503", "ServiceUnavailableError")
        if faults.hits("too_many_requests"):
            seconds = faults.values["retry_after"]
            headers = f"retry-after: {seconds:.0f}\r\n" if seconds else ""
            raise api.ApiError(
                429, "simulated fault: too_many_requests", "TooManyRequestsError", headers=headers
            )


_ROUTES: dict[str, tuple[str, Callable[[Server, Connection, HttpRequest], None]]] = {
    "/v1/chat/completions": ("POST", Server._generate),
    "/v1/completions": ("POST", Server._generate),
    "/v1/embeddings": ("POST", Server._embeddings),
    "/tokenize": ("POST", Server._tokenize),
    "/v1/models": ("GET", Server._models),
    "/health": ("GET", Server._health),
    "/ping": ("GET", Server._health),
    "/load": ("GET", Server._load),
    "/version": ("GET", Server._version),
    "/metrics": ("GET", Server._metrics),
    "/metrics/": ("GET", Server._metrics),
}
