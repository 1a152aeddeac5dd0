"""One replica as the router sees it: plain data, no I/O.

``attempts`` is the process's only record of what it has open on a replica; ``in_flight`` is its size, so that
the count can't drift from the truth. What probes found, an ejection and a drain are kept apart, and ``state``
is settled from the three, so that each can end without knowing of the others.
"""

from __future__ import annotations

import time
from typing import Any

STATES = ("starting", "ready", "degraded", "ejected", "draining", "down", "frozen")
OUTCOMES = ("ok", "error", "failed", "cut", "aborted")
PROBE_RESULTS = ("ok", "slow", "busy", "timeout", "refused", "error")


class Replica:
    """A replica: where it is, how it does, what is open on it.

    scheme, path: "http" or "https"; the path of its unix socket, then host is "" and port 0.
    index: its row in what processes share; -1 outside of a fleet.
    running, waiting, kv_usage (0-1): as the engine last reported, None when unknown.
    heard: pieces of bytes received from it on any connection; the watchdog compares two samples.
    kv_tokens: what its KV cache holds, None when unknown.
    tokens: prompt and generation tokens that the engine has counted, None when unknown.
    work, others_work: tokens of estimated work of the open requests, this process's and the other ones'.
    weight: share of traffic against others; base_weight times the ramp of the slow start.
    penalty: tokens of work added for recent failures. score (0-1): how much failed lately, per request.
    trial: good answers that it still has to give after an ejection, one request at a time; 0: none.
    refused: the last that was heard is that nobody listens there.
    ejected_until: time.monotonic() of its return, 0 when it is not ejected; ejections: how often in a row,
        ejections_total: ever, as the poller counts.
    first_token_seconds: typical (geometric mean) over the window of passive health, None without answers.
    """

    __slots__ = (
        "attempts", "base_weight", "consecutive_failures", "draining", "ejected_until", "ejected_why", "ejections", "ejections_total",
        "errors", "first_token_seconds", "first_tokens", "heard", "host", "idle", "index", "kv_tokens", "kv_usage",
        "log_seconds", "model", "models", "name", "ok", "others", "others_work", "outcomes", "path", "penalty",
        "port", "probe_results", "probe_seconds", "probed", "probed_why", "reached", "reason", "refused", "running",
        "scheme", "score", "since", "state", "tokens", "trial", "url", "waiting", "weight", "work",
    )  # fmt: skip

    def __init__(
        self, name: str, url: str, host: str, port: int, *, scheme: str = "http", path: str = "",
        weight: float = 1.0, model: str = "",
    ) -> None:  # fmt: skip
        self.name = name
        self.url = url
        self.host = host
        self.port = port
        self.scheme = scheme
        self.path = path
        self.index = -1
        self.model = model
        self.models: list[dict[str, Any]] = []
        self.reached: Any = None  # the address of a name that answered last (connect.py)
        self.state = self.probed = "starting"
        self.since = time.time()
        self.reason = self.probed_why = "not probed yet"
        self.draining = False
        self.ejected_until = 0.0
        self.ejected_why = ""
        self.ejections = 0
        self.ejections_total = 0
        self.trial = 0
        self.refused = False
        self.attempts: set[Any] = set()
        self.idle: list[Any] = []
        self.others = 0
        self.work = 0.0
        self.others_work = 0.0
        self.base_weight = weight
        self.weight = weight
        self.penalty = 0.0
        self.score = 0.0
        self.running: int | None = None
        self.waiting: int | None = None
        self.kv_usage: float | None = None
        self.kv_tokens: int | None = None
        self.tokens: float | None = None
        self.heard = 0
        self.probe_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.consecutive_failures = 0
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.probe_results = dict.fromkeys(PROBE_RESULTS, 0)
        # Outcomes that were not collected yet (outcomes.py).
        self.ok = self.errors = self.first_tokens = 0
        self.log_seconds = 0.0

    @property
    def address(self) -> str:
        """``host:port`` as URLs write it; ``unix:/path`` for a unix socket."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """What the Host header says; a unix socket has no name of its own."""
        return "localhost" if self.path else self.address

    @property
    def in_flight(self) -> int:
        return len(self.attempts)

    @property
    def in_rotation(self) -> bool:
        """Whether it may get new requests, limits of queue and KV cache aside."""
        return self.state == "ready" or self.state == "degraded"

    @property
    def may_take(self) -> bool:
        """In rotation; during the trial after an ejection with one request at a time."""
        return self.in_rotation and not (self.trial and self.attempts)

    @property
    def reachable(self) -> bool:
        """Out, though somebody may listen there: in a panic better than no replica at all."""
        return self.state in ("ejected", "down", "frozen") and not self.refused and not self.draining

    # --- what changes its state ---

    def enter(self, state: str, reason: str) -> None:
        """What probes and the watchdog found: starting, ready, degraded, down or frozen."""
        self.probed, self.probed_why = state, reason
        if state == "ready" or state == "degraded":
            self.refused = False
        self._settle()

    def eject(self, why: str, until: float, level: int) -> None:
        """Out until then (time.monotonic()), for what answers showed; ``level``: ejections in a row."""
        self.ejected_why, self.ejected_until, self.ejections = why, until, level
        self._settle()

    def readmit(self, trial: int, weight: float) -> None:
        """The ejection is over: ``trial`` good answers are wanted, with ``weight`` of its usual share."""
        self.ejected_why, self.ejected_until = "", 0.0
        self.trial, self.weight = trial, self.base_weight * weight
        self._settle()

    def drain(self, on: bool) -> None:
        """No new requests while on; what is open may end. Probes don't change it."""
        self.draining = on
        self._settle()

    def _settle(self) -> None:
        """down, frozen, starting > draining > ejected > ready, degraded. ``since`` moves with the state only."""
        state, self.reason = self.probed, self.probed_why
        if state == "ready" or state == "degraded":
            if self.draining:
                state, self.reason = "draining", "drained by an operator"
            elif self.ejected_until:
                state, self.reason = "ejected", self.ejected_why
        if state != self.state:
            self.state = state
            self.since = time.time()

    # --- between processes ---

    def state_news(self) -> list[Any]:
        """All that ``take_state`` needs in another process; plain values."""
        return [
            self.probed, self.probed_why, self.since, self.draining, self.ejected_why, self.ejected_until,
            self.ejections, self.trial, self.weight, self.refused, self.probe_seconds, self.first_token_seconds,
        ]  # fmt: skip

    def take_state(self, news: list[Any]) -> bool:
        """True if its state is another now."""
        before = self.state
        (
            self.probed, self.probed_why, since, self.draining, self.ejected_why, self.ejected_until,
            self.ejections, self.trial, self.weight, self.refused, self.probe_seconds, self.first_token_seconds,
        ) = news  # fmt: skip
        self._settle()
        self.since = since
        return self.state != before

    def load_news(self) -> list[Any]:
        return [self.running, self.waiting, self.kv_usage, self.kv_tokens]

    def take_load(self, news: list[Any]) -> None:
        self.running, self.waiting, self.kv_usage, self.kv_tokens = news

    def view(self) -> dict[str, Any]:
        """What /fleet shows of it; None where unknown."""
        left = self.ejected_until - time.monotonic() if self.ejected_until else 0.0
        return {
            "name": self.name,
            "url": self.url,
            "model": self.model or None,
            "state": self.state,
            "since": self.since,
            "reason": self.reason,
            "in_flight": self.in_flight + self.others,
            "running": self.running,
            "waiting": self.waiting,
            "kv_usage": self.kv_usage,
            "weight": round(self.weight, 3),
            "draining": self.draining,
            "ejected_until": time.time() + left if self.ejected_until else None,
            "ejected_why": self.ejected_why or None,
            "ejections_in_a_row": self.ejections,
            "trial_answers_left": self.trial,
            "first_token_seconds": self.first_token_seconds,
            "probe_seconds": self.probe_seconds,
            "consecutive_failures": self.consecutive_failures,
        }
