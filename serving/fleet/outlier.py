"""Passive health: replicas whose answers fail, or begin much later than their pool's, are out for a while.

Probes find what is broken for everybody; this finds what is broken for clients although the probe passes. Judged
by the poller, from the outcomes that all processes report:

- share of failed answers in the window (of the last ``min_requests`` at least), or failures one after another;
- typical (geometric mean) time to first token against the median of the pool.

An ejection ends by time and by traffic (see ANSWERS_FOR_TRIAL), then the replica is on trial: one request at a
time, the first failure ejects it for twice as long. Its weight grows from a tenth to one over ``slow_start``, also
after a restart, since its caches are cold. Never more than ``max_share`` of a pool is out this way, nor the last one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import exp
from statistics import median_low

from serving.config_router import Ejection
from serving.fleet.outcomes import STEP, score_limit
from serving.fleet.replica import Replica

#: Good answers that end a trial.
TRIAL_ANSWERS = 3
#: Besides its time, an ejection lasts this many good answers of the others in a pool: where requests are rare, the
#: request of a trial, which may fail, would be a large share of them. They double with it, MOST_ANSWERS at most, and
#: are waited for LONGEST times max_duration at most.
ANSWERS_FOR_TRIAL = 40
MOST_ANSWERS = 320
LONGEST = 5
#: Good answers without an ejection, after which one of those before is forgotten.
FORGIVEN_AFTER = 20
FIRST_WEIGHT = 0.1
WEIGHT_STEP = 0.05
#: Replicas with enough answers that a median needs.
MIN_PEERS = 3
#: Nobody minds a first token this fast, however much faster the others are.
SLOW_SECONDS = 0.05
#: The window moves in this many steps.
STEPS = 10
#: Between two looks at all replicas for slow ones; at 3,072 a look takes about 3 ms.
SWEEP_SECONDS = 1.0


class _Window:
    """Sums over the last ``seconds``, and however old over the last ``least`` answers: good, failed, first tokens,
    sum of logarithms of their seconds."""

    __slots__ = ("errors", "first_tokens", "log_seconds", "ok", "parts", "score")

    def __init__(self) -> None:
        self.parts: deque[list[float]] = deque()
        self.ok = self.errors = self.first_tokens = 0.0
        self.log_seconds = 0.0
        self.score = 0.0

    def add(self, now: float, seconds: float, least: int, values: Sequence[float]) -> None:
        step = now // (seconds / STEPS)
        if not self.parts or self.parts[-1][0] != step:
            self.parts.append([step, 0, 0, 0, 0.0])
        part = self.parts[-1]
        for i, value in enumerate(values, 1):
            part[i] += value
        self._count(values, 1)
        self.expire(now, seconds, least)

    def expire(self, now: float, seconds: float, least: int) -> None:
        oldest = now // (seconds / STEPS) - STEPS
        while self.parts and self.parts[0][0] <= oldest:
            first = self.parts[0]
            if self.ok + self.errors - first[1] - first[2] < least and len(self.parts) <= STEPS + least:
                break
            self._count(self.parts.popleft()[1:], -1)
        if not self.parts:
            self.log_seconds = 0.0  # no rounding errors pile up

    def is_fresh(self, now: float, seconds: float) -> bool:
        """Whether anything came in the last ``seconds``."""
        return bool(self.parts) and self.parts[-1][0] > now // (seconds / STEPS) - STEPS

    def clear(self) -> None:
        self.parts.clear()
        self.ok = self.errors = self.first_tokens = self.log_seconds = self.score = 0.0

    def _count(self, values: Sequence[float], sign: int) -> None:
        self.ok += sign * values[0]
        self.errors += sign * values[1]
        self.first_tokens += sign * values[2]
        self.log_seconds += sign * values[3]


class _Pool:
    def __init__(self, members: Sequence[Replica]) -> None:
        self.members = list(members)
        self.answers = 0  # good ones, ever


class _Probation:
    """After an ejection: one is forgiven after so much time and so many good answers without another."""

    __slots__ = ("answers", "seconds", "until")

    def __init__(self, now: float, seconds: float) -> None:
        self.seconds = seconds
        self.until = now + seconds
        self.answers = FORGIVEN_AFTER


class Outliers:
    """Judges replicas. ``on_state(replica)`` follows each change of ejection, trial or weight.

    now: the clock, time.monotonic() or one of a test.
    """

    def __init__(
        self,
        settings: Ejection,
        on_state: Callable[[Replica], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.on_state = on_state
        self.now = now
        self._windows: dict[Replica, _Window] = {}
        self._pools: dict[Replica, list[_Pool]] = {}
        self._all: list[_Pool] = []
        self._ejected: dict[
            Replica, tuple[float, list[tuple[_Pool, int]]]
        ] = {}  # last end, answers to wait for
        self._ramping: dict[Replica, float] = {}  # since when
        self._swept = 0.0
        self._forgiving: dict[Replica, _Probation] = {}
        self._trials: dict[Replica, int] = {}  # good answers that are still wanted

    def set_pools(self, pools: Mapping[str, Sequence[Replica]]) -> None:
        """Who is compared with whom. What is known of replicas that stay is kept."""
        self._all = [_Pool(members) for members in pools.values()]
        self._pools = {}
        for pool in self._all:
            for replica in pool.members:
                self._pools.setdefault(replica, []).append(pool)
        for known in (self._windows, self._ejected, self._ramping, self._forgiving, self._trials):
            for replica in [r for r in known if r not in self._pools]:
                del known[replica]
        # The counters began anew.
        for replica, (last_end, _) in self._ejected.items():
            self._ejected[replica] = (last_end, self._answers_wanted(replica, replica.ejections))

    # --- what comes in ---

    def observe(
        self, replica: Replica, ok: int, errors: int, first_tokens: int = 0, log_seconds: float = 0.0
    ) -> None:
        """Outcomes since the last call: answers below 500, failures, and of ``first_tokens`` of them the sum of the
        natural logarithms of their seconds. ``ok`` may be negative: an answer counted as good broke off."""
        pools = self._pools.get(replica)
        if pools is None:
            return  # it was removed meanwhile
        for pool in pools:
            pool.answers += ok
        if replica in self._ejected or not replica.in_rotation:
            return  # answers to what was asked before: all that is open on one that dies fails, whatever it is worth
        s = self.settings
        window = self._windows.get(replica)
        if window is None:
            window = self._windows[replica] = _Window()
        window.add(self.now(), s.window, s.min_requests, (ok, errors, first_tokens, log_seconds))
        self._show(replica, window)
        if ok > 0:
            window.score *= (1 - STEP) ** ok
            if replica in self._forgiving:
                self._forgiving[replica].answers -= ok
        if errors > 0:
            window.score = 1 - (1 - window.score) * (1 - STEP) ** errors
        if replica in self._trials:
            self._tried(replica, ok, errors)
            return
        answers = window.ok + window.errors
        if answers >= s.min_requests and window.errors >= s.error_rate * answers and window.errors > 0:
            self.eject(replica, f"{window.errors:g} of its last {answers:g} answers failed")
        elif window.score >= score_limit(s.error_rate):
            self.eject(replica, "answers fail one after another")

    def _tried(self, replica: Replica, ok: int, errors: int) -> None:
        if errors > 0:
            self.eject(replica, "failed again in its trial")
            return
        if ok <= 0:
            return
        # Its own count: in the process of the answers ``replica.trial`` has gone down already.
        left = self._trials[replica] = max(0, self._trials[replica] - ok)
        replica.trial = min(replica.trial, left)
        if left == 0:
            del self._trials[replica]
            slow = [self._slow(replica, self._median(pool)) for pool in self._pools[replica]]
            if any(slow):
                self.eject(replica, f"in its trial: {next(s for s in slow if s)}")
                return
        self.on_state(replica)

    def eject(self, replica: Replica, why: str) -> bool:
        """Take it out. False if that is switched off, or too many others are out, or it is out already."""
        s = self.settings
        if (
            not s.enabled
            or replica not in self._pools
            or replica in self._ejected
            or not self._spared(replica)
        ):
            return False
        now = self.now()
        level = replica.ejections + 1
        seconds = self._seconds(level)
        self._ejected[replica] = (
            now + LONGEST * max(s.max_duration, seconds), self._answers_wanted(replica, level)
        )  # fmt: skip
        self._ramping.pop(replica, None)
        self._forgiving.pop(replica, None)
        self._trials.pop(replica, None)
        window = self._windows.get(replica)
        if window is not None:
            window.clear()
        replica.trial = 0
        replica.ejections_total += 1
        replica.eject(f"{why}; ejected for {seconds:g} s ({level} in a row)", now + seconds, level)
        self.on_state(replica)
        return True

    def restarted(self, replica: Replica) -> None:
        """It answers again after it was down or frozen: an ejection is over, and its share grows slowly."""
        if replica not in self._pools:
            return
        self._ramping[replica] = self.now()
        if replica in self._ejected:
            self._readmit(replica)
        elif self.settings.slow_start:
            replica.weight = replica.base_weight * FIRST_WEIGHT
            self.on_state(replica)

    # --- what time does ---

    def tick(self) -> None:
        """A few times a second: ends of ejections, weights that grow, ejections that are forgiven, slow ones."""
        now = self.now()
        for replica, (last_end, wanted) in list(self._ejected.items()):
            others_answered = any(pool.answers >= answers for pool, answers in wanted)
            if now >= replica.ejected_until and (others_answered or now >= last_end):
                self._readmit(replica)
        self._ramp(now)
        for replica, probation in list(self._forgiving.items()):
            if now >= probation.until and probation.answers <= 0:
                replica.ejections -= 1
                if replica.ejections > 0:
                    self._forgiving[replica] = _Probation(now, probation.seconds / 2)
                else:
                    del self._forgiving[replica]
        if now >= self._swept + SWEEP_SECONDS:
            self._swept = now
            for replica, window in self._windows.items():
                if window.parts:
                    window.expire(now, self.settings.window, self.settings.min_requests)
                    self._show(replica, window)
            if self.settings.enabled:
                self._eject_slow()

    def _readmit(self, replica: Replica) -> None:
        now = self.now()
        del self._ejected[replica]
        self._forgiving[replica] = _Probation(now, self._seconds(replica.ejections))
        self._ramping[replica] = now
        self._trials[replica] = TRIAL_ANSWERS
        replica.readmit(TRIAL_ANSWERS, FIRST_WEIGHT if self.settings.slow_start else 1.0)
        self.on_state(replica)

    def _ramp(self, now: float) -> None:
        for replica, since in list(self._ramping.items()):
            passed = (now - since) / self.settings.slow_start if self.settings.slow_start else 1.0
            share = min(1.0, FIRST_WEIGHT + (1 - FIRST_WEIGHT) * passed)
            weight = replica.base_weight * share
            if share >= 1.0:
                del self._ramping[replica]
            elif abs(weight - replica.weight) < WEIGHT_STEP * replica.base_weight:
                continue
            if weight != replica.weight:
                replica.weight = weight
                self.on_state(replica)

    def _eject_slow(self) -> None:
        for pool in self._all:
            median = self._median(pool)
            if median is None:
                continue
            for replica in pool.members:
                if self._counts(replica) and replica.in_rotation and not replica.trial:
                    why = self._slow(replica, median)
                    if why:
                        self.eject(replica, why)

    def _slow(self, replica: Replica, median: float | None) -> str:
        """How slow, in words; "" when it is not, or when nothing can be said."""
        seconds = replica.first_token_seconds
        if seconds is None or median is None or seconds < SLOW_SECONDS:
            return ""
        if seconds < self.settings.slow_factor * median:
            return ""
        return f"first token after {seconds * 1000:.0f} ms where the pool's median is {median * 1000:.0f} ms"

    def _median(self, pool: _Pool) -> float | None:
        """Of the members' typical times; None while too few have enough answers."""
        times = [
            r.first_token_seconds
            for r in pool.members
            if r.first_token_seconds is not None and self._counts(r)
        ]
        return median_low(times) if len(times) >= MIN_PEERS else None

    def _counts(self, replica: Replica) -> bool:
        window = self._windows.get(replica)
        return (
            window is not None
            and window.first_tokens >= self.settings.min_requests
            and window.is_fresh(self.now(), self.settings.window)
        )

    def _show(self, replica: Replica, window: _Window) -> None:
        n = window.first_tokens
        replica.first_token_seconds = exp(window.log_seconds / n) if n > 0 else None

    def _seconds(self, level: int) -> float:
        s = self.settings
        return min(s.duration * 2.0 ** min(level - 1, 30), max(s.max_duration, s.duration))

    def _answers_wanted(self, replica: Replica, level: int) -> list[tuple[_Pool, int]]:
        wanted = min(ANSWERS_FOR_TRIAL * 2 ** min(level - 1, 30), MOST_ANSWERS)
        return [(pool, pool.answers + wanted) for pool in self._pools[replica]]

    def _spared(self, replica: Replica) -> bool:
        """Whether every pool can do without it."""
        for pool in self._pools[replica]:
            out = sum(1 for r in self._ejected if pool in self._pools[r])
            if out + 1 > self.settings.max_share * len(pool.members):
                return False
            if not any(r.in_rotation for r in pool.members if r is not replica):
                return False
        return True
