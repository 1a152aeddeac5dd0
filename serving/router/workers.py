"""The worker processes: started, watched, replaced. What is said to them is ``master.py``'s.

A worker's listening sockets and its number belong to its place here, so that the one that replaces it goes on with
the connections that wait there. One that dies at once again and again is started less often, and stops holding
connections meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from serving.router import listen
from serving.router.channel import Channel, ToMaster, pack
from serving.router.say import complain

SILENCE_SECONDS = (
    8.0  # a worker that gives no sign of life for this long is killed; it gives one 4 times a second
)
START_SECONDS = 60.0  # until it listens; a busy machine may take long to import
GOOD_LIFE_SECONDS = 5.0  # dead sooner, the next start waits: 0.1 s, doubling to BACKOFF_SECONDS
BACKOFF_SECONDS = 5.0
QUICK_DEATHS = 3  # in a row; then its sockets no longer take connections until it is up again
TICK_SECONDS = 0.1


class Place:
    """A worker's number, sockets and process, if there is one.

    state: starting, serving, stopping, waiting (for its next start), ended.
    """

    def __init__(self, number: int, sockets: list[socket.socket], shared: list[socket.socket]) -> None:
        self.number = number
        self.sockets = sockets
        self.shared = shared  # unix sockets, one for all workers
        self.state = "waiting"
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: Channel[ToMaster] | None = None
        self.started = 0.0  # monotonic
        self.heard = 0.0
        self.next_start = 0.0
        self.quick_deaths = 0
        self.restarts = {"died": 0, "frozen": 0}
        self.failed = ""  # its own words on why it can't start
        self.why = "died"
        self.ever_served = False
        self.cut: int | None = None  # requests that it cut when it stopped

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None


class Workers:
    """All places.

    take(place, message): a worker said something. died(place, how): its process is gone.
    first(place): what it gets before anything else, when it is started.
    """

    def __init__(
        self,
        places: list[Place],
        counts_fd: int,
        take: Callable[[Place, ToMaster], None],
        died: Callable[[Place, str], None],
        first: Callable[[Place], Any],
        silence: float = SILENCE_SECONDS,
        program: Sequence[str] = (sys.executable, "-m", "serving.router.worker_process"),
    ) -> None:
        self.places = places
        self._counts_fd = counts_fd
        self._take = take
        self._died = died
        self._first = first
        self._silence = silence
        self._program = program
        self._ticker: asyncio.TimerHandle | None = None
        self._last_tick = time.monotonic()
        self._spawning: set[asyncio.Task[None]] = set()
        self.stopping = False
        self.changed = asyncio.Event()  # set at every change of a state

    # --- talk ---

    def send(self, message: Any) -> None:
        """To all that run."""
        self.send_packed(pack(message))

    def send_packed(self, data: bytes, may_wait: bool = False) -> None:
        """``may_wait``: workers that have not read the last ones are spared this one."""
        for place in self.places:
            if place.channel is not None and not (may_wait and place.channel.behind):
                place.channel.send_packed(data)

    def serving(self) -> list[Place]:
        return [p for p in self.places if p.state == "serving"]

    # --- life ---

    async def start(self) -> None:
        """Start all of them. Returns at once; each says Ready."""
        for place in self.places:
            await self._spawn(place)
        self._tick()

    async def _spawn(self, place: Place) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        place.failed, place.why, place.started = "", "died", time.monotonic()
        place.heard = place.started
        self._enter(place, "starting")
        files = [s.fileno() for s in (*place.sockets, *place.shared)]
        argv = [
            *self._program,
            "--worker", str(place.number), "--workers", str(len(self.places)),
            "--channel", str(theirs.fileno()), "--counts", str(self._counts_fd), *map(str, files),
        ]  # fmt: skip
        try:
            # A fork and an exec of a few milliseconds; asyncio's own would need its child watcher.
            place.process = subprocess.Popen(  # noqa: ASYNC220
                argv, pass_fds=[theirs.fileno(), self._counts_fd, *files], stdin=subprocess.DEVNULL
            )
        except OSError as e:  # no room for a process
            ours.close()
            theirs.close()
            place.failed = f"no process: {e.strerror}"
            self._gone(place, place.failed)
            return
        theirs.close()
        channel: Channel[ToMaster] = Channel(
            ToMaster, lambda m: self._message(place, channel, m), lambda: self._lost(place, channel)
        )
        await loop.create_unix_connection(lambda: channel, sock=ours)
        place.channel = channel
        channel.send(self._first(place))

    def _message(self, place: Place, channel: Channel[ToMaster], message: ToMaster) -> None:
        if place.channel is channel:
            place.heard = time.monotonic()
            self._take(place, message)

    def _lost(self, place: Place, channel: Channel[ToMaster]) -> None:
        """The channel closes when the process ends; one that closes it otherwise is of no use any more."""
        if place.channel is not channel:
            return
        place.channel = None
        self._look(place)
        if place.process is not None:
            asyncio.get_running_loop().call_later(1.0, self._kill, place, place.process)

    def _kill(self, place: Place, process: subprocess.Popen[bytes]) -> None:
        if place.process is process:
            process.kill()

    def now_serving(self, place: Place) -> None:
        """It said Ready."""
        place.ever_served = True
        if place.state == "starting":
            self._enter(place, "serving")

    def _enter(self, place: Place, state: str) -> None:
        place.state = state
        self.changed.set()

    # --- watch ---

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        now = time.monotonic()
        stood_still, self._last_tick = now - self._last_tick > 2.0, now
        for place in self.places:
            self._look(place)
            if stood_still:
                # It was us (stopped, suspended): what they said meanwhile is still unread.
                place.heard = max(place.heard, now)
            limit = START_SECONDS if place.state == "starting" else self._silence
            if place.process is not None and now - place.heard > limit and place.why != "frozen":
                place.why = "frozen"
                complain(
                    f"worker {place.number} (pid {place.pid}): no sign of life for {limit:g} s: killed",
                )
                place.process.kill()
            if place.state == "waiting" and now >= place.next_start and not self.stopping:
                task = asyncio.get_running_loop().create_task(self._spawn(place))
                place.state = "starting"  # not twice
                self._spawning.add(task)
                task.add_done_callback(self._spawning.discard)

    def _look(self, place: Place) -> None:
        if place.process is not None and (status := place.process.poll()) is not None:
            self._gone(place, _said(status))

    def _gone(self, place: Place, how: str) -> None:
        life = time.monotonic() - place.started
        if place.channel is not None:
            channel, place.channel = place.channel, None
            channel.close()
        place.process = None
        if self.stopping:
            self._enter(place, "ended")
            self._died(place, how)
            return
        place.restarts[place.why] += 1
        place.quick_deaths = 0 if life >= GOOD_LIFE_SECONDS else place.quick_deaths + 1
        n = place.quick_deaths
        pause = min(BACKOFF_SECONDS, 0.1 * 2 ** (n - 1)) if n else 0.0
        place.next_start = time.monotonic() + pause
        if n >= QUICK_DEATHS:
            try:
                place.sockets = [listen.again(s) for s in place.sockets]
            except OSError as e:
                complain(f"worker {place.number}: its address is lost: {e.strerror}")
        self._enter(place, "waiting")
        self._died(place, how)

    # --- the end ---

    def stop_accepting(self) -> None:
        """Our copies of the listening sockets; a worker closes its own when it is told to stop."""
        self.stopping = True
        for place in self.places:
            for sock in (*place.sockets, *place.shared):
                sock.close()
            if place.process is None:
                self._enter(place, "ended")
            elif place.state == "starting":
                self._enter(place, "stopping")

    async def ended(self, seconds: float) -> bool:
        """Wait until all processes are gone; False if some are not after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while any(p.process is not None for p in self.places):
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True

    def kill(self) -> None:
        """All that are left, now."""
        for place in self.places:
            if place.process is not None:
                place.process.kill()

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for place in self.places:
            if place.process is not None:
                place.process.kill()
                place.process.wait()
        os.close(self._counts_fd)


def _said(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
