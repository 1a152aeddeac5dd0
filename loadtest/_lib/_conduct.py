"""Has a plan played by all processes of a run: who sends which share, what comes next, and when it is over.

The process that holds the run (locust's master, or the only process) has a Conductor; those that send have a
``_dispatch.Dispatcher``. They talk by locust's messages, so it is the same on one machine and on several:

===============  =======================================================================================
exaserve_here    a worker is there and has read what it needs
exaserve_play    to each worker: what to play, which share of it, from where on (``_play``)
exaserve_pace    from each worker, each second: how far it is, how many were due, open and not sent, lag
===============  =======================================================================================

A worker that comes or goes changes the shares a moment ahead. What a lost one had still to send is kept as unsent, so
every request of the schedule is in the records or was on its way in the lost process. What joins this to locust's
events is in ``_open_loop``.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import gevent

from loadtest._lib import _clock, _steps
from loadtest._lib._arrivals import Stage
from loadtest._lib._ask import Ask
from loadtest._lib._plan import Plan
from loadtest._lib._play import Play, dues
from loadtest._lib._record import Record
from loadtest._lib._run import Run

HERE, PLAY, PACE = "exaserve_here", "exaserve_play", "exaserve_pace"
#: Seconds from a message to what it says: several heartbeats of a busy event loop.
LEAD = 1.0
_START = 0.5
_WAIT = 60.0  # for workers to read their trace
_PROGRESS = 5.0
#: After the end of a schedule, for processes that are late with it; the run is void then anyway.
_LATE = 5.0


class Conductor:
    """Of one run. Its ``go`` is a greenlet of its own; ``over`` is called when the schedule has ended by itself."""

    def __init__(
        self,
        runner: Any,
        run: Run,
        plan: Plan,
        classes: list[list[Any]],
        unsent: Callable[..., Any],
        over: Callable[[], None],
    ) -> None:
        self._runner = runner
        #: Of a master: its workers.
        self._clients = getattr(runner, "clients", None)
        self._run, self._plan, self._classes, self._unsent, self._over = run, plan, classes, unsent, over
        self._here: set[str] = set()
        self._shares: list[str] = []
        self._play: Play | None = None
        self._zero = 0.0
        self._told = 0.0
        self.pace: dict[str, dict[str, Any]] = {}
        self._lost: set[str] = set()
        self._gone = {"due": 0, "unsent": 0}  # of those
        #: Records that came from each worker, by its number.
        self.received: Counter[int] = Counter()
        self.on_record: Callable[[Record], None] | None = None
        self.broken = False
        self.greenlet = gevent.spawn(self._guarded)

    # --- messages ---

    def here(self, node: str, data: dict[str, Any]) -> None:
        if data["run"] == self._run.name and node not in self._lost:
            self._here.add(node)

    def paced(self, node: str, data: dict[str, Any]) -> None:
        if data["run"] != self._run.name:
            return
        if node in self._lost:
            # It was only slow. What it had to send is accounted for already; it gets nothing any more.
            self._send(node, {"since": -1e9, "share": 0, "of": 0})
            return
        self.pace[node] = data

    # --- what steps need ---

    def elapsed(self) -> float:
        """Seconds since the schedule's start."""
        return _clock.now() - self._zero

    def total(self, key: str) -> int:
        """due, open or unsent, of all processes."""
        return sum(int(pace[key]) for pace in self.pace.values()) + self._gone.get(key, 0)

    def play(
        self, stages: list[Stage], begin: float, steps: list[int | None], phases: list[str | None]
    ) -> Play:
        """Have a schedule played from ``begin`` on. Returns it (with no share)."""
        self._play = Play(
            run=self._run.name, kind=self._plan.kind, seed=self._run.seed, begin=begin, since=begin, elapsed=0.0,
            share=0, of=1, cv=self._plan.cv,
            stages=[[s.start, s.end, None if math.isinf(s.seconds) else s.seconds] for s in stages],
            steps=steps, phases=phases, classes=self._classes,
        )  # fmt: skip
        self._divide(begin)
        return self._play

    def count(self, play: Play, stage: int | None = None) -> int:
        """Requests of a play, or of one stage of it, all processes together. For one that has an end."""
        found = 0
        for number, due in enumerate(dues(play, self._plan)):
            found += stage is None or due[3] == stage
            if number % 1000 == 999:
                gevent.sleep(0)
        return found

    def watch(self, until: Callable[[], bool], words: Callable[[], str]) -> None:
        """Wait, with the shares kept right and a line on the screen now and then."""
        while not until():
            gevent.sleep(0.1)
            if self._run.stopping is not None:
                raise gevent.GreenletExit  # the time is up, by -t or by hand
            members = self._members()
            if members != self._shares and members:
                self._changed(members)
            if _clock.now() - self._told >= _PROGRESS:
                self.tell(words())

    def tell(self, words: str) -> None:
        self._told = _clock.now()
        lag = max((pace["lag"] for pace in self.pace.values()), default=0.0)
        unsent = self.total("unsent")
        logging.info(
            "%s; %s due, %s open, %slag up to %.0f ms",
            words, f"{self.total('due'):,}", f"{self.total('open'):,}", f"{unsent:,} unsent, " if unsent else "", lag * 1000,
        )  # fmt: skip

    # --- the run ---

    def _guarded(self) -> None:
        try:
            self._go()
        except gevent.GreenletExit:
            raise
        except Exception:
            logging.exception("the schedule broke off")
            self.broken = True
        self._over()

    def _go(self) -> None:
        self._wait_for_all()
        self._zero = _clock.now() + _START
        self._run.warmup_until = self._zero + self._run.warmup["seconds"]
        logging.info("%s", self._plan.words())
        if self._plan.search is not None:
            _steps.search(self, self._run, self._plan)
            return
        _steps.schedule(self, self._run, self._plan)

    def finish(self, end: float) -> None:
        """Wait until every process has begun what was due before ``end``, where the run's time is up."""
        deadline = end + _LATE
        self.watch(
            lambda: (
                self.elapsed() >= deadline
                or (self.elapsed() >= end and all(self._reached(end, node) for node in self._shares))
            ),
            lambda: "open loop: at its end",
        )
        self._run.stopping = self._zero + end

    def _reached(self, end: float, node: str) -> bool:
        return node in self.pace and self.pace[node]["upto"] >= end

    def _wait_for_all(self) -> None:
        begun = _clock.now()
        while (missing := len(self._nodes()) - len(self._members())) or not self._members():
            if _clock.now() - begun > _WAIT and self._members():
                logging.warning(
                    "%s workers are not ready after %.0f s; they are left out till then", missing, _WAIT
                )
                return
            gevent.sleep(0.05)

    def _nodes(self) -> list[str]:
        if self._clients is None:
            return ["local"]
        states = ("ready", "spawning", "running")
        return [node for node, client in self._clients.items() if client.state in states]

    def _members(self) -> list[str]:
        return [node for node in self._nodes() if node in self._here]

    def _changed(self, members: list[str]) -> None:
        assert self._play is not None
        before, since = self._shares, self.elapsed() + LEAD
        lost = [node for node in before if node not in members]
        new = len([node for node in members if node not in before])
        play = self._play
        self._divide(max(since, play.begin), members)
        logging.warning(
            "workers: %s lost, %s new; %s play on from %.1f s", len(lost), new, len(members), since
        )
        for node in lost:
            self._account(play, before.index(node), len(before), node, since)

    def _account(self, play: Play, share: int, of: int, node: str, since: float) -> None:
        """Keep what a lost worker had still to send as unsent."""
        pace = self.pace.pop(node, None) or {"upto": play.begin, "due": 0, "unsent": 0}
        self._here.discard(node)
        self._lost.add(node)
        self._gone["due"] += pace["due"]
        self._gone["unsent"] += pace["unsent"]
        number = self._runner.get_worker_index(node)
        self._run.lost_workers = sorted({*self._run.lost_workers, number})
        with_it = pace["due"] - self.received[number]
        if with_it > 0:
            self._run.arrivals["lost_with_workers"] = self._run.arrivals.get("lost_with_workers", 0) + with_it
            logging.warning("%s requests were on their way in it and are in no record", with_it)
        for number, due in enumerate(dues(play, self._plan)):
            if due[0] >= since:
                break
            if number % 1000 == 999:
                gevent.sleep(0)
            if due[1] % of == share and due[0] > pace["upto"]:
                self._gone["due"] += 1
                self._gone["unsent"] += 1
                ask = Ask(due[2], {}, step=play.step(due), phase=play.phase(due, self._run))
                self._unsent(ask, self._zero + due[0], "the worker that had to send it was lost")

    def _divide(self, since: float, members: list[str] | None = None) -> None:
        assert self._play is not None
        self._shares = self._members() if members is None else members
        for share, node in enumerate(self._shares):
            self._send(node, {"since": since, "share": share, "of": len(self._shares)})

    def _send(self, node: str, part: dict[str, Any]) -> None:
        assert self._play is not None
        message = self._play.as_dict() | part | {"zero": self._zero, "elapsed": self.elapsed()}
        self._runner.send_message(PLAY, message, None if self._clients is None else node)
