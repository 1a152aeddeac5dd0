"""Watches the load test's own process: is it fast enough to be believed?

Each second a sample: the share of a core it used, how late its timers were, how late requests went out, how many are
open. Not here: from where on that is too much (``_limits``), and the verdict (``_summary``).

A line of client.jsonl::

    {"at": Unix seconds, "worker": "0" | "master", "pid": …, "cpu": share of one core in the last second,
     "delays": [ms, … one each 100 ms, also for those that a stall left out], "lag_max": s, "in_flight": {profile: n}, "users": {profile: n},
     "offered": {"profile/phase": n so far}, "started": {"profile/phase": n so far}}
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import gevent

from loadtest._lib import _clock
from loadtest._lib._sender import Sender

TICK = 0.1
#: Ticks of one sample; an hour's stall is told well enough by its first.
_MOST = 36_000


class Watch:
    """Calls ``tell`` with a sample each second, from a greenlet, until it is stopped.

    sender: of this process, or None (a master). runner: locust's, for its users.
    """

    def __init__(
        self, worker: str, sender: Sender | None, runner: Any, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self._worker, self._sender, self._runner, self._tell = worker, sender, runner, tell
        self._delays: list[float] = []
        self._cpu = time.process_time()
        self._at = _clock.now()
        self._greenlet: Any = None

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._watch)

    def stop(self) -> None:
        """Stop, with a last sample of the second that is not over."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None
            self._tell(self._sample())

    def _watch(self) -> None:
        due = time.perf_counter() + TICK
        while True:
            gevent.sleep(max(0.0, due - time.perf_counter()))
            due = self._ticked(due, time.perf_counter())
            if len(self._delays) >= round(1 / TICK):
                self._tell(self._sample())

    def _ticked(self, due: float, now: float) -> float:
        """Note how late the timer of ``due`` is, and each that was due meanwhile. Returns when the next one is.

        A process that stood still for ten seconds was late a hundred times, not once: else a long stall would be a
        single outlier.
        """
        while due <= now:
            if len(self._delays) < _MOST:
                self._delays.append(round((now - due) * 1000, 3))
            due += TICK
        return due

    def _sample(self) -> dict[str, Any]:
        cpu, now = time.process_time(), _clock.now()
        sample: dict[str, Any] = {
            "at": now,
            "worker": self._worker,
            "pid": os.getpid(),
            "cpu": round((cpu - self._cpu) / max(now - self._at, 1e-3), 4),
            "delays": self._delays,
            "lag_max": 0.0,
            "in_flight": {},
            "users": self._users(),
            "offered": {},
            "started": {},
        }
        if self._sender is not None:
            sample["lag_max"], self._sender.lag_max = round(self._sender.lag_max, 6), 0.0
            sample["in_flight"] = self._sender.profiles_in_flight()
            sample["offered"], sample["started"] = dict(self._sender.offered), dict(self._sender.started)
        self._cpu, self._at, self._delays = cpu, now, []
        return sample

    def _users(self) -> dict[str, int]:
        users: defaultdict[str, int] = defaultdict(int)
        if self._sender is not None:
            for greenlet in self._runner.user_greenlets:
                user = greenlet.args[0] if greenlet.args else None
                if user is not None:
                    users[getattr(user, "profile_name", type(user).__name__)] += 1
        return dict(users)
