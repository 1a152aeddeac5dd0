"""One replica as the router sees it: plain data, no I/O.

``attempts`` is the router's only record of what is open on a replica; ``in_flight`` is its size, so that the
count can't drift from the truth.
"""

from __future__ import annotations

import time
from typing import Any

STATES = ("starting", "ready", "degraded", "down", "frozen")
OUTCOMES = ("ok", "error", "failed", "cut", "aborted")
PROBE_RESULTS = ("ok", "slow", "busy", "timeout", "refused", "error")


class Replica:
    """A replica: where it is, how it does, what is open on it.

    running, waiting, kv_usage (0-1): as the engine last reported, None when unknown.
    heard: pieces of bytes received from it on any connection; the watchdog compares two samples.
    tokens: prompt and generation tokens that the engine has counted, None when unknown.
    """

    __slots__ = (
        "attempts", "consecutive_failures", "heard", "host", "idle", "kv_usage", "model", "models", "name",
        "outcomes", "port", "probe_results", "probe_seconds", "reason", "running", "since", "state", "tokens",
        "url", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, url: str, host: str, port: int) -> None:
        self.name = name
        self.url = url
        self.host = host
        self.port = port
        self.model = ""
        self.models: list[dict[str, Any]] = []
        self.state = "starting"
        self.since = time.time()
        self.reason = "not probed yet"
        self.attempts: set[Any] = set()
        self.idle: list[Any] = []
        self.running: int | None = None
        self.waiting: int | None = None
        self.kv_usage: float | None = None
        self.tokens: float | None = None
        self.heard = 0
        self.probe_seconds: float | None = None
        self.consecutive_failures = 0
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.probe_results = dict.fromkeys(PROBE_RESULTS, 0)

    @property
    def address(self) -> str:
        """``host:port`` as URLs write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def in_flight(self) -> int:
        return len(self.attempts)

    @property
    def in_rotation(self) -> bool:
        """Whether it may get new requests, limits of queue and KV cache aside."""
        return self.state == "ready" or self.state == "degraded"

    def enter(self, state: str, reason: str) -> None:
        """Go to ``state``; ``since`` moves only when the state changes."""
        if state != self.state:
            self.state = state
            self.since = time.time()
        self.reason = reason

    def view(self) -> dict[str, Any]:
        """What /fleet shows of it; None where unknown."""
        return {
            "name": self.name,
            "url": self.url,
            "model": self.model or None,
            "state": self.state,
            "since": self.since,
            "reason": self.reason,
            "in_flight": self.in_flight,
            "running": self.running,
            "waiting": self.waiting,
            "kv_usage": self.kv_usage,
            "probe_seconds": self.probe_seconds,
            "consecutive_failures": self.consecutive_failures,
        }
