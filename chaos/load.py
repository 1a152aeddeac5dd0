"""A bounded background load: a few users that stream chat completions, and how each request ended.

For experiments, which need traffic while something breaks. Measuring belongs to ``loadtest/``. The users are
daemon threads: the load ends at its deadline, when it is stopped, or with the process, whatever kills that.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx

MAX_USERS = 64
MAX_SECONDS = 3600.0
_LIMIT = 60.0  # seconds without a byte after which one request has failed


@dataclass(frozen=True, slots=True)
class Ended:
    """One request. sent, ended: unix seconds. replica: who answered, None if nobody did. failure: None if
    good.

    begun: at least one event had arrived that is no error, so that nobody could retry it unseen.
    """

    sent: float
    ended: float
    replica: str | None
    begun: bool
    failure: str | None


class Load:
    """``users`` closed-loop streams for at most ``seconds``. ``stop`` may be called twice."""

    def __init__(self, router: str, users: int, seconds: float, max_tokens: int = 48) -> None:
        self._url = f"{router.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._max_tokens = max_tokens
        self._deadline = time.monotonic() + seconds
        self._stopping = threading.Event()
        self.ended: list[Ended] = []
        self._threads = [
            threading.Thread(target=self._user, args=(i,), name=f"chaos-load-{i}", daemon=True)
            for i in range(users)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, wait: float = 30.0) -> dict[str, Any]:
        """Let the open requests end, for at most ``wait`` seconds; the summary of all."""
        self._stopping.set()
        end = time.monotonic() + wait
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """``requests``, ``failed``, ``cut`` (failed when begun), ``reasons``, ``replicas`` (counts)."""
        ended = list(self.ended)
        bad = [r for r in ended if r.failure]
        return {
            "requests": len(ended),
            "failed": len(bad),
            "cut": sum(r.begun for r in bad),
            "reasons": dict(Counter(r.failure for r in bad)),
            "replicas": dict(Counter(r.replica or "none" for r in ended)),
            "still_open": sum(t.is_alive() for t in self._threads),
        }

    def _user(self, number: int) -> None:
        with httpx.Client(timeout=_LIMIT, trust_env=False) as client:
            serial = 0
            while not self._stopping.is_set() and time.monotonic() < self._deadline:
                serial += 1
                result = self._ask(
                    client, f"{number}-{serial}-{time.time_ns():x}: tell a story about the sea."
                )
                self.ended.append(result)
                if result.failure and not result.begun:
                    self._stopping.wait(0.2)

    def _ask(self, client: httpx.Client, prompt: str) -> Ended:
        sent, replica, begun, done, failure = time.time(), None, False, False, None
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self._max_tokens,
            "stream": True,
        }
        try:
            with client.stream("POST", self._url, json=body) as answer:
                replica = answer.headers.get("x-exaserve-replica")
                if answer.status_code != 200:
                    failure = f"HTTP {answer.status_code}"
                for line in answer.iter_lines() if not failure else ():
                    if line == "data: [DONE]":
                        done = True
                    elif line.startswith("data: "):
                        failure = failure or _error(line[6:])
                        begun = begun or not failure
                    if time.monotonic() > self._deadline + _LIMIT:
                        failure = "no end"
                        break
            if not failure and not done:
                failure = "ended without [DONE]"
        except httpx.HTTPError as error:
            failure = type(error).__name__
        except httpx.InvalidURL:
            failure = "not an address"
        return Ended(sent, time.time(), replica, begun, failure)


def _error(payload: str) -> str | None:
    """The code of an error event, None for any other."""
    if '"error"' not in payload:
        return None
    try:
        error = json.loads(payload).get("error")
    except (ValueError, AttributeError):
        return "broken event"
    if not error:
        return None
    return str((error.get("code") or error.get("type")) if isinstance(error, dict) else error)[:80]


_running: Load | None = None


def start(router: str, users: int, seconds: float) -> Load:
    """Start the load of this process; one that runs already is stopped first, without waiting."""
    global _running
    if _running is not None:
        _running.stop(wait=0)
    _running = Load(router, users, seconds)
    return _running


def current() -> Load | None:
    return _running


def stop() -> dict[str, Any] | None:
    """Stop it; its summary, or None if none runs."""
    global _running
    load, _running = _running, None
    return load.stop() if load is not None else None
