"""What happens to a request between its last byte and the choice of a replica, in this order: who asks, is it one
that the router answers or refuses itself, is it well formed, how large is it, what is it about, which pool, may
the tenant. No byte of it is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from serving.router import heads, schema
from serving.router.bodies import Embedding, Problem
from serving.router.limits import Refusal
from serving.router.routes import ROUTES, control_endpoint
from serving.router.session import session_of

if TYPE_CHECKING:
    from serving.router.exchange import Exchange
    from serving.router.heads import RequestHead
    from serving.router.server import Server

#: Routes whose answers are as long as max_tokens lets them be.
GENERATING = frozenset(("chat_completions", "completions", "responses"))
#: Longest x-request-timeout that is believed, in seconds.
MAX_TIMEOUT = 86_400.0


def take_in(server: Server, exchange: Exchange, head: RequestHead) -> None:
    """Refuse it, answer it, or hand it to ``server.dispatch``."""
    special = head.special
    given = special.get(b"x-request-id")
    exchange.request_id = heads.new_request_id() if given is None else heads.request_id(given)
    if head.epoch != server.epoch:
        refusal = server.know(head)
        if refusal is not None:
            refuse(exchange, refusal)
            return
    exchange.tenant = head.tenant
    route = exchange.route
    method = exchange.method
    if not route:
        # A fragment has no place in a request, but an engine's server cuts it off: /metrics# is /metrics to it.
        path = exchange.url.partition(b"?")[0].partition(b"#")[0]
        route = exchange.route = ROUTES.get(path, "other")
        if control_endpoint(path):
            server.metrics.reject("control_endpoint")
            exchange.reject(
                403, "control_endpoint", "this is a control endpoint of the engine: ask the replica itself"
            )
            return
        if method != b"POST" and server.answer_locally(exchange, method, path):
            return
    body = exchange.body
    request = schema.decode(route, body) if method == b"POST" else None
    size = len(body)
    max_tokens = n = None
    if request is None:
        if body:
            exchange.model, exchange.streaming, max_tokens = schema.named(body, server.by_model.keys())
    else:
        problem = request if request.__class__ is Problem else schema.check(request, server.by_model.keys())  # type: ignore[arg-type]
        if problem is not None:
            server.metrics.reject(problem.reason)
            exchange.reject(problem.status, problem.code, problem.message, problem.param)
            return
        model = request.model  # type: ignore[union-attr]
        if model.__class__ is str and model in server.by_model:
            exchange.model = model
        exchange.streaming = request.stream is True  # type: ignore[union-attr]
        if request.__class__ is not Embedding:
            max_tokens = request.max_completion_tokens or request.max_tokens  # type: ignore[union-attr]
            n = request.n  # type: ignore[union-attr]
            exchange.session = session_of(special.get(b"x-session-id"), request)
    if route == "embeddings":
        max_tokens = 1
    classifier = server.classifier
    if classifier is not None and request is not None and route != "embeddings":
        text = schema.text_of(request)  # type: ignore[arg-type]
        if text:
            exchange.intent, exchange.confidence = classifier.fast(text)
            if exchange.confidence < server.intent_threshold and classifier.second is not None:
                server.ask_second_stage(exchange, text)
                if server.pools.needs_intent:  # else its label comes in time for what is counted at the end
                    exchange.pending = (special, size, max_tokens, n)
                    exchange.head = head.for_replica(size, _own_lines(server, exchange, special, given))
                    return
            else:
                server.metrics.classified(exchange.intent, "first")
    exchange.head = head.for_replica(size, _own_lines(server, exchange, special, given))
    admit(server, exchange, special, size, max_tokens, n)


def admit(
    server: Server, exchange: Exchange, special: Mapping[bytes, bytes], size: int, max_tokens: int | None,
    n: int | None,
) -> None:  # fmt: skip
    """The intent is known, or never will be: size, pool, tenant's limits, deadline; then to a replica."""
    exchange.size = size
    exchange.input_tokens, exchange.output_tokens, exchange.work = server.estimator.estimate(
        exchange.model, exchange.intent, size, max_tokens, n
    )
    pool = server.pools.choose(exchange, special)
    exchange.pool = pool
    exchange.priority = pool.priority
    tenant = exchange.tenant
    if tenant is not None:
        if tenant.pools is not None and pool.name not in tenant.pools:
            server.metrics.reject("pool_forbidden", pool.name, tenant.name)
            exchange.reject(
                403, "pool_forbidden",
                f"{tenant.name} may not use the pool {pool.name}, which this request belongs to; "
                f"it may use {', '.join(sorted(tenant.pools))}",
            )  # fmt: skip
            return
        if tenant.priority is not None:
            exchange.priority = tenant.priority
        budget = tenant.budget
        refusal = (
            budget.too_long(max_tokens)
            if budget.max_tokens is not None and exchange.route in GENERATING
            else None
        )
        if refusal is None:
            refusal = budget.admit(exchange.started, exchange.input_tokens + exchange.output_tokens)
        if refusal is not None:
            refuse(exchange, refusal)
            return
        exchange.metered = True
        exchange.charged = exchange.input_tokens + exchange.output_tokens
    timeout = special.get(b"x-request-timeout")
    if timeout is not None or server.settings.max_request_time is not None:
        seconds = _seconds(timeout, server.settings.max_request_time)
        if seconds is None:
            server.metrics.reject("schema")
            exchange.reject(
                400, "invalid_timeout", "x-request-timeout must be seconds, above 0 (like 30 or 2.5)",
                "x-request-timeout",
            )  # fmt: skip
            return
        exchange.set_deadline(seconds)
    exchange.admitted = True
    pool.open += 1
    server.retries.request()
    server.dispatch(exchange)


def refuse(exchange: Exchange, refusal: Refusal) -> None:
    """Answer what the tenant may not."""
    server = exchange.server
    tenant = exchange.tenant.name if exchange.tenant is not None else ""
    server.metrics.reject(refusal.reason, exchange.pool.name if exchange.pool is not None else "", tenant)
    if refusal.reason.startswith("tenant_") or refusal.reason == "max_tokens":
        server.metrics.rate_limited(tenant, refusal.reason.removeprefix("tenant_"))
    exchange.reject(
        refusal.status,
        refusal.code,
        refusal.message,
        refusal.param,
        refusal.headers,
        refusal.reason,
        refusal.kind,
    )


def _own_lines(
    server: Server, exchange: Exchange, special: Mapping[bytes, bytes], given: bytes | None
) -> bytes:
    """Header lines of this request that the router adds: its id, its trace."""
    request_id = exchange.request_id
    lines = b"" if given == request_id else b"x-request-id: %s\r\n" % request_id
    if server.tracing is not None:
        exchange.span, trace = server.tracing.start(
            special.get(b"traceparent"), special.get(b"tracestate"), request_id if given is None else b""
        )
        lines += trace
    return lines


def _seconds(given: bytes | None, most: float | None) -> float | None:
    """None if what the client gave is no time. The shorter of both."""
    if given is None:
        return most
    try:
        seconds = float(given)
    except ValueError:
        return None
    if not 0 < seconds <= MAX_TIMEOUT:
        return None
    return seconds if most is None else min(seconds, most)
