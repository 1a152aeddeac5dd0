"""Keeps the parts of the stack running: start side by side, watch, restart with back-off, end in order.

One thread that looks at everything a few times a second. It says what happens through ``say`` and keeps
``run/stack.json`` current. What the parts are is ``serving/parts.py``; what a user sees around it is
``serving/stack.py``.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from serving import fetch
from serving.config import Fleet
from serving.launch.local import Process, bound, tail
from serving.parts import Part
from serving.record import PartRecord, Record, logs_folder, run_folder

TICK = 0.1  # seconds between two looks; a waitpid and a socket each, about 1 % of a core in all
_FLEET_EVERY = 0.5
_SERVICES_EVERY = 2.0
_BOUND_EVERY = 2.0
_BACKOFF_MAX = 60.0
_GOOD_LIFE = 60.0  # a part that lived this long starts again with the first, short pause
_KILL_SECONDS = 5.0  # after SIGKILL; who lives then is held by the kernel, which may take for ever
_START_TRIES = 2  # a required part that dies this often before it was ever ready ends the start

Say = Callable[[str], None]


class StartError(Exception):
    """The stack can't come up; the message says which part, its last lines and the cure."""


@dataclass
class Running:
    """A part while the supervisor has it. Times are monotonic seconds."""

    part: Part
    record: PartRecord
    backoff: float
    process: Process | None = None
    next_start: float | None = 0.0
    ready: bool = False
    ever_ready: bool = False
    deaths: int = 0
    bad_since: float | None = None

    def age(self) -> float:
        return time.monotonic() - self.process.started if self.process else 0.0


class Supervisor:
    """The parts and what is done about them.

    fleet_url: the router's ``/fleet``; None where it is not known. say: takes one line for the user.
    remote_router: the router runs on another machine, so replicas that it can't tell of are asked themselves.
    """

    def __init__(
        self,
        parts: list[Part],
        record: Record,
        fleet: Fleet,
        fleet_url: str | None,
        say: Say,
        remote_router: bool = False,
    ) -> None:
        self.record, self.fleet, self.fleet_url, self.say = record, fleet, fleet_url, say
        self._remote_router = remote_router
        self.running = [
            Running(
                part,
                PartRecord(part.name, part.address, log=str(logs_folder() / f"{part.name}.log")),
                fleet.restart_backoff,
            )
            for part in parts
        ]
        record.parts = [r.record for r in self.running]
        self.up = False
        self._width = max(len(p.name) for p in parts)
        self._begin = time.monotonic()
        self._next_fleet = self._next_services = self._next_bound = 0.0
        self._written: str | None = None

    # --- while it runs -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look at everything once. Raises StartError if the start has failed."""
        for r in self.running:
            self._watch(r)
        now = time.monotonic()
        if now >= self._next_fleet:
            self._next_fleet = now + _FLEET_EVERY
            self._look_at_replicas()
        if now >= self._next_services:
            self._next_services = now + _SERVICES_EVERY
            self._look_at_services()
        if now >= self._next_bound:
            self._next_bound = now + _BOUND_EVERY
            for r in self.running:
                bound(logs_folder() / f"{r.part.name}.log")
        self.save()

    def all_ready(self) -> bool:
        """Every required part is ready, and the others are too or have died once."""
        return all(r.ready or (not r.part.required and r.deaths > 0) for r in self.running)

    def save(self) -> None:
        """Write the record if it changed. A full disk must not end the fleet: then it stays old."""
        state = repr(self.record)
        if state == self._written:
            return
        try:
            self.record.write()
        except OSError as error:
            if self._written is not None:
                self.say(
                    f"run/stack.json can't be written ({error.strerror}); exaserve status is out of date"
                )
        self._written = state

    def _watch(self, r: Running) -> None:
        now = time.monotonic()
        if r.process is None:
            if r.next_start is not None and now >= r.next_start:
                self._start(r)
            return
        status = r.process.ended()
        if status is not None:
            self._died(r, said(status))
            return
        if r.ready:
            return
        if r.age() > self.fleet.start_timeout:
            self._event(r, f"not ready after {self.fleet.start_timeout:g} s (fleet.start_timeout): killed")
            r.process.kill()
        elif r.part.kind == "service":
            found = fetch.get(r.part.ready_url, timeout=0.5)
            if found is not None and found[0] == 200:
                self._is_ready(r)
        elif r.record.state == "starting" and r.process.has_written():
            self._state(r, "loading")

    def _start(self, r: Running) -> None:
        r.next_start, r.ready, r.bad_since = None, False, None
        try:
            launch = r.part.launch()
            r.process = Process(launch.argv, launch.env, logs_folder() / f"{r.part.name}.log", run_folder())
        except OSError as error:
            self._died(r, f"could not be started ({error.strerror}: {error.filename})")
            return
        except (ValueError, subprocess.SubprocessError) as error:  # a NUL in an argument; no room to fork
            self._died(r, f"could not be started ({error})")
            return
        r.record.identity = r.process.identity
        self._state(r, "starting")

    def _is_ready(self, r: Running) -> None:
        r.ready = r.ever_ready = True
        r.bad_since = None
        r.record.ready_seconds = round(r.age(), 1)
        self._state(r, "ready", f"in {r.age():.1f} s")

    def _died(self, r: Running, how: str) -> None:
        life = r.age()
        log, start = logs_folder() / f"{r.part.name}.log", r.process.log_start if r.process else 0
        last = tail(log, 12, start) if r.process else []
        r.process, r.record.identity, r.ready = None, None, False
        r.deaths += 1
        if life >= _GOOD_LIFE:
            r.backoff = self.fleet.restart_backoff
        pause, r.backoff = r.backoff, min(_BACKOFF_MAX, 2 * r.backoff)
        if not r.ever_ready:
            self.say(f"  {r.part.name} {how} before it was ready; its last lines:")
            for line in last or ["(none)"]:
                self.say(f"    | {line[:300]}")
            if not self.up and r.part.required and r.deaths >= _START_TRIES:
                hint = f"{r.part.cure}; " if r.part.cure else ""
                raise StartError(f"{r.part.name} {how} at every start; {hint}whole log: {log}")
        r.record.restarts += 1
        r.next_start = time.monotonic() + pause
        self._state(
            r, "restarting", f"{how} after {life:.1f} s; restart {r.record.restarts} in {pause:.1f} s"
        )

    def _look_at_services(self) -> None:
        """A router that is stopped or stuck is alive as a process, and every client of it hangs."""
        for r in self.running:
            if r.part.kind == "service" and r.ready and r.process:
                answers = fetch.get(r.part.ready_url, timeout=1.0) is not None
                self._judge(
                    r, "ready" if answers else "frozen", "" if answers else f"{r.part.ready_url} is silent"
                )

    def _look_at_replicas(self) -> None:
        replicas = [r for r in self.running if r.part.kind == "replica" and r.process]
        if not replicas:
            return
        view = _by_name(fetch.get_json(self.fleet_url, timeout=1.0)) if self.fleet_url else {}
        for r in replicas:
            seen = view.get(r.part.name, {})
            if self._remote_router and seen.get("state") in (None, "down"):
                # Down may be the way to it: a replica that answers here is not killed for a cut link.
                seen = _own_word(r.part)
            state = seen.get("state")
            if not r.ready:
                self._not_yet(r, state in ("ready", "degraded"))
            elif isinstance(state, str):
                self._judge(r, state, str(seen.get("reason") or ""))

    def _not_yet(self, r: Running, in_rotation: bool) -> None:
        # The router may not have noticed yet that the one before died: ask the port too.
        if not listens(r.part):
            return
        if in_rotation:
            self._is_ready(r)
        elif r.record.state != "probing":
            self._state(r, "probing")

    def _judge(self, r: Running, state: str, reason: str) -> None:
        """A part that was ready, and what is seen of it now: by the router if it is a replica."""
        if state != r.record.state:
            self._state(r, state, reason)
        if state not in ("frozen", "down"):
            r.bad_since = None
            return
        now = time.monotonic()
        r.bad_since = r.bad_since or now
        if now - r.bad_since >= self.fleet.restart_frozen_after and r.process:
            self._event(r, f"{state} for {now - r.bad_since:.0f} s: killed")
            r.process.kill()
            r.bad_since = None

    # --- the end -------------------------------------------------------------------------------------

    def stop(self, at_once: Callable[[], bool]) -> None:
        """End everything in order: router (drains), replicas, the rest. ``at_once`` is asked all the time.

        What even SIGKILL does not end is said and left: see ``left``.
        """
        self.record.phase = "stopping"
        for r in self.running:
            r.next_start = None
        for rank in sorted({r.part.stop_rank for r in self.running}):
            self._end([r for r in self.running if r.part.stop_rank == rank and r.process], at_once)

    def _end(self, group: list[Running], at_once: Callable[[], bool]) -> None:
        begin = time.monotonic()
        for r in group:
            assert r.process is not None
            r.process.terminate()
            r.record.state = "stopping"
        self.save()
        killed: dict[str, float] = {}
        while group:
            group = [r for r in group if not self._is_over(r, begin, killed, at_once)]
            time.sleep(0.02)

    def _is_over(
        self, r: Running, begin: float, killed: dict[str, float], at_once: Callable[[], bool]
    ) -> bool:
        """Whether nothing of a part is waited for any more. killed: when each got its first SIGKILL, by name."""
        assert r.process is not None
        now = time.monotonic()
        if r.process.ended() is not None:
            r.process, r.record.identity = None, None
            self._state(r, "ended", f"in {now - begin:.1f} s")
            return True
        if r.part.name not in killed and not at_once() and now - begin <= r.part.stop_seconds:
            return False
        r.process.kill()  # again and again: its group may have grown
        if now - killed.setdefault(r.part.name, now) <= _KILL_SECONDS:
            return False
        self._state(
            r, "stuck", f"pid {r.process.pid} lives {_KILL_SECONDS:g} s after SIGKILL; going on without"
        )
        return True

    def left(self) -> list[PartRecord]:
        """After ``stop``: what did not end."""
        return [r.record for r in self.running if r.process]

    # --- what is said --------------------------------------------------------------------------------

    def _state(self, r: Running, state: str, more: str = "") -> None:
        r.record.state = state
        self._event(r, f"{state:<10} {more}".rstrip())

    def _event(self, r: Running, text: str) -> None:
        at = time.strftime("%H:%M:%S") if self.up else f"{time.monotonic() - self._begin:6.1f} s"
        self.say(f"  {at}  {r.part.name:<{self._width}}  {text}")


def listens(part: Part) -> bool:
    """Whether the part takes connections on its port."""
    return fetch.listens(urlsplit(part.address).hostname or "127.0.0.1", part.port)


def _own_word(part: Part) -> dict[str, Any]:
    """A replica's state by its own ``/health``, in the words of ``/fleet``. A stuck engine may still answer it."""
    answer = fetch.get(f"{part.address}/health", timeout=0.5)
    if answer is None:
        return {"state": "frozen", "reason": "/health is silent, and the router tells nothing of it"}
    if answer[0] != 200:
        return {"state": "down", "reason": f"/health says {answer[0]}"}
    return {"state": "ready"}


def said(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        try:
            return f"ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"ended by signal {-status}"
    return f"ended with status {status}"


def _by_name(fleet: Any) -> dict[str, dict[str, Any]]:
    """Replicas of a /fleet answer by name; empty if it is not one."""
    replicas = fleet.get("replicas") if isinstance(fleet, dict) else None
    if not isinstance(replicas, list):
        return {}
    return {str(r.get("name")): r for r in replicas if isinstance(r, dict)}
