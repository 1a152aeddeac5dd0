"""Plays this process's share of a schedule: each request is sent when it is due, whatever became of those before it.

One Dispatcher a process. It makes the whole schedule, as every process does, and sends each n-th request of it; which
ones, ``_conduct`` says by a message (``_play``), and says anew when processes come or go or a search goes on. A request
has a greenlet of its own, so that none waits for another's answer. Due times are absolute: being late once makes
nothing after it late.

A session that has a turn to ask is taken before a new one begins, and a turn's think time is not waited for: when
requests come is the schedule's alone. What is asked next is made before it is due.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event

from loadtest._lib import _clock
from loadtest._lib._ask import Answer, Ask, Session
from loadtest._lib._plan import Plan
from loadtest._lib._play import Due, Play, dues
from loadtest._lib._record import TOO_SLOW
from loadtest._lib._run import Run
from loadtest._lib._sessions import Sessions
from loadtest._lib._trace_prompts import TracePrompts

if TYPE_CHECKING:
    from loadtest._lib._sender import Sender  # brings locust, which patches the whole process

#: Requests are begun in a row before those begun get to send; about half a millisecond.
_ROW = 20
#: Shorter waits than this are not slept: a timer is no finer.
_SOON = 0.0002
#: Seconds: by how much clocks that are kept together may differ, and how long a message may take on its way.
_CLOCKS_AGREE, _MESSAGE = 0.005, 1.0


class Dispatcher:
    """profiles: name → what makes its sessions. report: called each second with how it goes."""

    def __init__(
        self,
        run: Run,
        sender: Sender,
        plan: Plan,
        profiles: dict[str, Callable[..., Session]],
        worker: int,
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self._run, self._sender, self._plan, self._report = run, sender, plan, report
        self._pools = {
            name: _Pool(Sessions(profile, run, f"{worker}/open/{name}")) for name, profile in profiles.items()
        }
        self._prompts = (
            TracePrompts(plan.trace, run.seed, plan.clip, plan.until_end)
            if plan.kind == "trace" and plan.trace
            else None
        )
        self._plays: deque[Play] = deque()
        self._play: Play | None = None
        self._rest: Iterator[Due] = iter(())
        self._ahead: deque[Due] = deque()
        self._skipped: list[
            Due
        ] = []  # other processes' ones since the last of ours, for when the shares change
        self._woken = Event()
        self._greenlets: set[gevent.Greenlet] = set()
        self._made: tuple[int, Ask] | None = None
        self._zero: float | None = None
        self._upto = -math.inf
        self._stopped = False
        self.due = self.unsent = 0
        self.lag = 0.0
        self._loop = gevent.spawn(self._guarded)
        self._reporter = gevent.spawn(self._reports)

    def play(self, message: dict[str, Any]) -> None:
        """A message of the conductor's."""
        play = Play(**message)
        if play.run != self._run.name or self._stopped:
            return
        if self._zero is None:
            self._zero = _start(play)
        self._plays.append(play)
        self._woken.set()

    def stop(self, grace: float) -> None:
        """Send nothing more; wait up to ``grace`` seconds for open requests, then give them up. Blocks."""
        if self._stopped:
            return
        self._stopped = True
        elapsed = self.elapsed()
        self._loop.kill()
        self._missed(elapsed)
        # That is accounted for here: a conductor that loses this process keeps what comes after it.
        self._upto = max(self._upto, elapsed)
        gevent.joinall(list(self._greenlets), timeout=grace)
        gevent.killall(list(self._greenlets), timeout=5)
        self._reporter.kill()
        self._tell()

    def elapsed(self) -> float:
        """Seconds since the run's start; -inf before the first message."""
        return -math.inf if self._zero is None else _clock.now() - self._zero

    # --- the schedule ---

    def _guarded(self) -> None:
        try:
            self._go_on()
        except gevent.GreenletExit:
            raise
        except Exception:
            logging.exception("the schedule broke off; what was due from here on is not sent")

    def _go_on(self) -> None:
        row = 0
        while True:
            due = self._peek()
            border = self._plays[0].since if self._plays else math.inf
            if due is None or due[0] >= border:
                if due is not None:
                    self._upto = border
                if self._plays:
                    self._adopt(self._plays.popleft())
                else:
                    self._upto = math.inf
                    self._tell()
                    self._sleep(None)
                continue
            assert self._play is not None
            if due[1] % self._play.of != self._play.share:
                self._skipped.append(self._ahead.popleft())
                continue
            self._prepare(due)
            assert self._zero is not None
            wait = self._zero + due[0] - _clock.now()
            if wait > _SOON:
                self._upto = due[0]
                row = 0
                self._sleep(wait)
                continue
            self._ahead.popleft()
            self._begin(due, self._zero + due[0])
            self._skipped = []
            self._upto = due[0]
            row += 1
            if row >= _ROW:
                gevent.sleep(0)
                row = 0

    def _peek(self) -> Due | None:
        if not self._ahead:
            found = next(self._rest, None)
            if found is None:
                return None
            self._ahead.append(found)
        return self._ahead[0] if self._play and self._play.of else None

    def _adopt(self, play: Play) -> None:
        before = self._play
        if before is not None and before.begin == play.begin and before.kind == play.kind:
            self._ahead = deque(due for due in [*self._skipped, *self._ahead] if due[0] >= play.since)
        else:
            self._rest, self._ahead = dues(play, self._plan), deque()
            for number, due in enumerate(self._rest):
                if due[0] >= play.since:
                    self._ahead.append(due)
                    break
                if number % 1000 == 999:  # a late comer: what is over is not ours
                    gevent.sleep(0)
        self._skipped = []
        self._play = play

    def _sleep(self, seconds: float | None) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    def _missed(self, elapsed: float) -> None:
        """What was due before the end and has not been begun: this process was too slow."""
        for number in count():
            due = self._peek()
            if due is None or (self._plays and due[0] >= self._plays[0].since):
                if not self._plays or self._plays[0].since > elapsed:
                    return
                self._adopt(self._plays.popleft())
                continue
            if due[0] >= elapsed:
                return
            self._ahead.popleft()
            assert self._play is not None
            assert self._zero is not None
            if due[1] % self._play.of == self._play.share:
                self.due += 1
                self._not_sent(due, self._zero + due[0], "the client was too slow to begin it", TOO_SLOW)
            if number % 1000 == 999:
                gevent.sleep(0)

    # --- single requests ---

    def _prepare(self, due: Due) -> None:
        """Make what is asked, so that making it takes no time when it is due."""
        if self._prompts is not None:
            if self._made is None or self._made[0] != due[1]:
                self._made = due[1], self._prompts.ask(due[1])
        else:
            self._pools[due[2]].prepare()

    def _begin(self, due: Due, at: float) -> None:
        self.due += 1
        if len(self._greenlets) >= self._plan.max_open:
            self._not_sent(due, at, f"{self._plan.max_open} requests were open in this process (--max-open)")
            return
        pool: _Pool | None = None
        if self._prompts is not None:
            assert self._made is not None
            session, ask = None, self._made[1]
        else:
            pool = self._pools[due[2]]
            session, ask = pool.take()
        assert self._play is not None
        ask.step, ask.phase = self._play.step(due), self._play.phase(due, self._run)
        greenlet = gevent.Greenlet(self._ask, pool, session, ask, at)
        self._greenlets.add(greenlet)
        greenlet.link(self._greenlets.discard)
        greenlet.start()

    def _ask(self, pool: _Pool | None, session: Session | None, ask: Ask, at: float) -> None:
        self.lag = max(self.lag, _clock.now() - at)
        answer = self._sender.send(ask, at)
        if pool is not None and session is not None:
            pool.answered(session, answer)

    def _not_sent(self, due: Due, at: float, why: str, reason: str | None = None) -> None:
        self.unsent += 1
        assert self._play is not None
        ask = Ask(due[2], {}, step=self._play.step(due), phase=self._play.phase(due, self._run))
        self._sender.unsent(ask, at, why, reason)

    # --- how it goes ---

    def _reports(self) -> None:
        while True:
            gevent.sleep(1)
            self._tell()

    def _tell(self) -> None:
        elapsed = self.elapsed()
        self._report(
            {
                "run": self._run.name,
                "upto": self._upto if self._upto == math.inf else max(-1e9, min(self._upto, elapsed)),
                "due": self.due,
                "open": len(self._greenlets),
                "unsent": self.unsent,
                "lag": self.lag,
            }
        )
        self.lag = 0.0


def _start(play: Play) -> float:
    """When the run began, by this process's clock.

    That of the sender is believed where the message seems to have taken no time or a moment, as on one machine or where
    clocks are kept together; else only the difference is used, and this process is late by what the message took.
    """
    now = _clock.now()
    took = now - (play.zero + play.elapsed)
    return play.zero if -_CLOCKS_AGREE <= took <= _MESSAGE else now - play.elapsed


class _Pool:
    """Sessions of one profile: those with a turn to ask, and one that has not begun."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._ready: deque[tuple[Session, Ask]] = deque()
        self._new: tuple[Session, Ask] | None = None

    def prepare(self) -> None:
        if not self._ready and self._new is None:
            self._new = self._begun()

    def take(self) -> tuple[Session, Ask]:
        if self._ready:
            return self._ready.popleft()
        found, self._new = self._new or self._begun(), None
        return found

    def answered(self, session: Session, answer: Answer) -> None:
        with suppress(StopIteration):
            self._ready.append((session, session.send(answer)))

    def _begun(self) -> tuple[Session, Ask]:
        session = self._sessions.next()
        return session, next(session)
