"""What one tenant may use: request and token rates, requests at once, length of an answer.

A budget is two token buckets, refilled when somebody looks, and a count of open requests. A bucket holds one
minute's worth: after a quiet minute a tenant may send that at once, and over T minutes it gets at most
(T + 1) times its limit. A request is charged with an estimate when it is admitted and with what the engine
says it used when it ends. Who the tenant is belongs in ``tenants.py``; capacity of replicas in ``admission.py``.

Several workers share a tenant's limits: each enforces its ``share`` of them. Which share follows demand:
``Budget.report`` in the workers, ``balance`` in the master, ``Budget.grant`` in the workers again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: Of a tenant's limits, the part that is dealt out evenly whatever the demand: a worker that a client turns to
#: all at once has something to give until the next balance.
EVEN_PART = 0.1
_NO_LIMIT = math.inf


class Refusal:
    """Why a request is not served, ready to be answered.

    status: HTTP status. reason: label of exaserve_router_rejected_requests_total. kind: ``error.type``.
    code, message, param: of the OpenAI-shaped error. headers: whole further header lines, each with its CRLF.
    """

    __slots__ = ("code", "headers", "kind", "message", "param", "reason", "status")

    def __init__(
        self, status: int, reason: str, kind: str, code: str, message: str,
        param: str | None = None, headers: bytes = b"",
    ) -> None:  # fmt: skip
        self.status = status
        self.reason = reason
        self.kind = kind
        self.code = code
        self.message = message
        self.param = param
        self.headers = headers


class Report(NamedTuple):
    """How a tenant stands in one worker. requests, tokens: left in its buckets (inf: no limit)."""

    asked: float
    requests: float
    tokens: float
    in_flight: int


class Grant(NamedTuple):
    """What the master tells a worker. requests, tokens: to be added to its buckets; may be negative."""

    share: float
    requests: float
    tokens: float
    others: int


class Budget:
    """Limits of one tenant in this process, and what is left of them. Times are ``time.monotonic()`` seconds.

    The limits are those of the tenant over all workers; None is no limit. ``in_flight`` is this worker's,
    ``others`` that of the other workers at the last balance.
    """

    __slots__ = (
        "_at", "_max_in_flight", "_request_cap", "_request_ms", "_request_need", "_request_rate",
        "_template", "_token_cap", "_token_ms", "_token_rate", "asked", "in_flight", "max_in_flight",
        "max_tokens", "name", "others", "requests", "requests_per_minute", "share", "tokens",
        "tokens_per_minute",
    )  # fmt: skip

    def __init__(
        self, name: str, requests_per_minute: int | None = None, tokens_per_minute: int | None = None,
        max_in_flight: int | None = None, max_tokens: int | None = None, *, share: float = 1.0, now: float = 0.0,
    ) -> None:  # fmt: skip
        self.name = name
        self.share = share
        self.asked = 0.0
        self.in_flight = 0
        self.others = 0
        self._at = now
        self._request_cap = self._token_cap = self.requests = self.tokens = 0.0
        self._set(requests_per_minute, tokens_per_minute, max_in_flight, max_tokens)
        self.requests, self.tokens = self._request_cap, self._token_cap

    def change(
        self, requests_per_minute: int | None, tokens_per_minute: int | None, max_in_flight: int | None,
        max_tokens: int | None, now: float,
    ) -> None:  # fmt: skip
        """New limits of the same tenant: what is spent stays spent, open requests stay counted."""
        self._refill(now)
        spent = self._request_cap - self.requests, self._token_cap - self.tokens
        self._set(requests_per_minute, tokens_per_minute, max_in_flight, max_tokens)
        self.requests, self.tokens = (
            cap - (used if math.isfinite(used) else 0.0)
            for cap, used in zip((self._request_cap, self._token_cap), spent, strict=True)
        )

    def _set(
        self, requests: int | None, tokens: int | None, in_flight: int | None, max_tokens: int | None
    ) -> None:
        self.requests_per_minute, self.tokens_per_minute = requests, tokens
        self.max_in_flight, self.max_tokens = in_flight, max_tokens
        self._max_in_flight = _NO_LIMIT if in_flight is None else in_flight
        lines = [
            b"x-ratelimit-limit-%s: %d\r\nx-ratelimit-remaining-%s: %%d\r\nx-ratelimit-reset-%s: %%dms\r\n"
            % (what, limit, what, what)
            for what, limit in ((b"requests", requests), (b"tokens", tokens))
            if limit is not None
        ]
        self._template = b"".join(lines)
        self._scale()

    def _scale(self) -> None:
        """Caps and rates of this worker from the tenant's limits and our share of them."""
        requests, tokens, share = self.requests_per_minute, self.tokens_per_minute, self.share
        # No limit is a bucket that never empties, so that the hot path need not ask.
        self._request_cap = _NO_LIMIT if requests is None else requests * share
        self._request_rate = 0.0 if requests is None else requests * share / 60.0
        self._token_cap = _NO_LIMIT if tokens is None else tokens * share
        self._token_rate = 0.0 if tokens is None else tokens * share / 60.0
        self._request_ms = 1000.0 / (self._request_rate or 1.0)  # milliseconds until one more
        self._token_ms = 1000.0 / (self._token_rate or 1.0)
        # A small share of a small limit may never reach a whole request: a full bucket will do then, and goes
        # below zero. The mean stays what it must be.
        self._request_need = min(1.0, self._request_cap)

    # --- the life of a request ---

    def admit(self, now: float, tokens: int) -> Refusal | None:
        """Charge one request of an estimated ``tokens`` (input and expected output), or say why not.

        What was admitted is given back once by ``release`` and corrected once by ``settle`` (or undone by
        ``undo``). A refused request costs nothing.
        """
        self.asked += 1.0
        elapsed = now - self._at
        if elapsed > 0.0:
            self._at = now
            left = self.requests + elapsed * self._request_rate
            self.requests = left if left < self._request_cap else self._request_cap
            left = self.tokens + elapsed * self._token_rate
            self.tokens = left if left < self._token_cap else self._token_cap
        if (
            self.in_flight + self.others >= self._max_in_flight
            or self.requests < self._request_need
            or self.tokens < (tokens if tokens < self._token_cap else self._token_cap)
            or tokens > (self.tokens_per_minute or _NO_LIMIT)
        ):
            return self._refuse(tokens)
        self.requests -= 1.0
        self.tokens -= tokens
        self.in_flight += 1
        return None

    def settle(self, now: float, estimated: int, used: int) -> None:
        """The engine has said what the request used, in tokens; ``estimated`` is what it was admitted with."""
        self._refill(now)
        left = self.tokens + estimated - used
        self.tokens = left if left < self._token_cap else self._token_cap

    def release(self) -> None:
        """The request has ended, however it ended."""
        self.in_flight -= 1

    def undo(self, now: float, estimated: int) -> None:
        """The router could not serve what was admitted (no capacity): nothing is charged. Releases it too."""
        self.settle(now, estimated, 0)
        left = self.requests + 1.0
        self.requests = left if left < self._request_cap else self._request_cap
        self.in_flight -= 1

    def too_long(self, max_tokens: int | None) -> Refusal | None:
        """Whether an answer of ``max_tokens`` (None: the request names no limit) passes the tenant's ceiling.

        A request without a limit is refused too: the router changes no byte of it, so nothing else would keep
        the answer below the ceiling.
        """
        ceiling = self.max_tokens
        if ceiling is None or (max_tokens is not None and max_tokens <= ceiling):
            return None
        said = "is not given" if max_tokens is None else f"is {max_tokens}"
        return Refusal(
            400, "max_tokens", "invalid_request_error", "max_tokens_exceeded",
            f"max_tokens {said}; answers for {self.name} have at most {ceiling} tokens: "
            f"send max_tokens of {ceiling} or less",
            "max_tokens",
        )  # fmt: skip

    def headers(self) -> bytes:
        """``x-ratelimit-*`` lines as of the last ``admit`` or ``settle``; empty without rate limits.

        Over all workers: what is left here is taken for our share of what is left in all. ``reset`` is the
        time until the bucket is full again.
        """
        share = self.share
        if self.requests_per_minute is None:
            if self.tokens_per_minute is None:
                return b""
            return self._template % (
                self.tokens / share if self.tokens > 0.0 else 0,
                (self._token_cap - self.tokens) * self._token_ms,
            )
        if self.tokens_per_minute is None:
            return self._template % (
                self.requests / share if self.requests > 0.0 else 0,
                (self._request_cap - self.requests) * self._request_ms,
            )
        return self._template % (
            self.requests / share if self.requests > 0.0 else 0,
            (self._request_cap - self.requests) * self._request_ms,
            self.tokens / share if self.tokens > 0.0 else 0,
            (self._token_cap - self.tokens) * self._token_ms,
        )

    # --- between workers ---

    def report(self, now: float) -> Report:
        """For the master. What was asked before counts half at each report, so that shares follow demand."""
        self._refill(now)
        found = Report(self.asked, self.requests, self.tokens, self.in_flight)
        self.asked = self.asked * 0.5 if self.asked > 0.01 else 0.0
        return found

    def grant(self, grant: Grant) -> None:
        """What the master says after a balance."""
        self.share, requests, tokens, self.others = grant  # a plain list, where it came as a message
        self.requests += requests
        self.tokens += tokens
        self._scale()

    # --- inside ---

    def _refill(self, now: float) -> None:
        elapsed = now - self._at
        if elapsed > 0.0:
            self._at = now
            self.requests = min(self._request_cap, self.requests + elapsed * self._request_rate)
            self.tokens = min(self._token_cap, self.tokens + elapsed * self._token_rate)

    def _refuse(self, tokens: int) -> Refusal:
        limit = self.tokens_per_minute
        if limit is not None and tokens > limit:
            return Refusal(
                429, "tenant_tokens", "tokens", "request_too_large",
                f"the request needs about {tokens} tokens (input and max_tokens), and {self.name} has {limit} "
                "per minute: make it smaller, waiting will not help",
                None, b"x-should-retry: false\r\n" + self.headers(),
            )  # fmt: skip
        if self.in_flight + self.others >= self._max_in_flight:
            message = (
                f"{self.name} has {self.max_in_flight} requests open, as many as it may; wait for one to end"
            )
            return self._later("tenant_in_flight", "requests", message, 1.0)
        if self.requests < self._request_need:
            wait = (self._request_need - self.requests) / self._request_rate
            message = f"{self.name} has used its {self.requests_per_minute} requests per minute"
            return self._later("tenant_requests", "requests", f"{message}; try again in {wait:.1f} s", wait)
        wait = (min(tokens, self._token_cap) - self.tokens) / self._token_rate
        message = (
            f"{self.name} has used its {limit} tokens per minute and this request needs about {tokens}; "
            f"try again in {wait:.1f} s"
        )
        return self._later("tenant_tokens", "tokens", message, wait)

    def _later(self, reason: str, kind: str, message: str, wait: float) -> Refusal:
        # Seconds are whole in Retry-After (RFC 9110); OpenAI's clients read the finer header first.
        lines = b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (math.ceil(wait), math.ceil(wait * 1000))
        return Refusal(429, reason, kind, "rate_limit_exceeded", message, None, lines + self.headers())


def balance(reports: Sequence[Mapping[str, Report]]) -> list[dict[str, Grant]]:
    """What each worker may give from now on, by tenant, from the workers' reports (in the same order).

    A tenant's limit is dealt out by demand, EVEN_PART of it evenly, and what is left in the buckets goes
    along: it is moved between workers, never made. A worker that knows no such tenant gets no part.
    """
    grants: list[dict[str, Grant]] = [{} for _ in reports]
    for name in dict.fromkeys(name for report in reports for name in report):
        known = [(i, Report(*report[name])) for i, report in enumerate(reports) if name in report]
        asked = sum(r.asked for _, r in known)
        requests = sum(r.requests for _, r in known)
        tokens = sum(r.tokens for _, r in known)
        in_flight = sum(r.in_flight for _, r in known)
        for i, r in known:
            by_demand = r.asked / asked if asked > 0.0 else 1.0 / len(known)
            share = EVEN_PART / len(known) + (1.0 - EVEN_PART) * by_demand
            grants[i][name] = Grant(
                share,
                requests * share - r.requests if math.isfinite(requests) else 0.0,
                tokens * share - r.tokens if math.isfinite(tokens) else 0.0,
                in_flight - r.in_flight,
            )
    return grants
