"""Second stage as the router calls it: a question to another process, with a time limit.

The transformer takes milliseconds, so it runs in a process of its own (``worker.py``); the event loop only
writes a text and reads an answer. Whatever goes wrong there, ``classify`` gives None in time and the first
stage's answer stands. What the process computes is in ``encoder.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import cast

from serving.intent.ngram import HEAD, TAIL

LENGTH, ANSWER = struct.Struct("<I"), struct.Struct("<If")
"""What goes over the socket: a text's length in bytes; an answer's label number and confidence."""

TIME_LIMIT = 0.008
"""Seconds that a request may wait for an answer (``router.intent.time_limit``)."""

MAX_WAITING = 4
"""Questions at the process at a time. It answers one after the other, so more could not be in time anyway."""

_STUCK = 5.0
"""Seconds after which a process that owes an answer is killed and started anew."""

_PAUSE, _MAX_PAUSE = 1.0, 60.0
"""Seconds before a process that died is started again; doubled each time it dies before its first answer."""


class SecondStage:
    """Starts its process at the first question and again after it died; ``close`` ends it.

    Counters, all only growing: ``asked``, ``answered``, ``timeouts`` (too late), ``overloaded`` (too many at the
    process), ``failures`` (no process: starting, dead, died over it), ``starts``.
    """

    def __init__(
        self,
        labels: list[str],
        model: Path,
        encoder: Path,
        time_limit: float = TIME_LIMIT,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.labels = labels
        self.time_limit = time_limit
        self.max_waiting = max_waiting
        self.asked = self.answered = self.timeouts = self.overloaded = self.failures = self.starts = 0
        self._files = model, encoder
        self._process: subprocess.Popen[bytes] | None = None
        self._link: _Link | None = None
        self._starting: asyncio.Task[bool] | None = None
        self._closed = False
        self._pause, self._not_before = _PAUSE, 0.0

    @property
    def ready(self) -> bool:
        """Whether the process is up and has read its model."""
        return self._link is not None and self._link.ready

    @property
    def pid(self) -> int | None:
        """The process, or None while there is none."""
        return self._process.pid if self._process else None

    async def start(self, limit: float = 30.0) -> bool:
        """Start the process unless it runs, and wait until it answers. False if it does not in ``limit`` seconds."""
        if self.ready:
            return True
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        try:
            return await asyncio.wait_for(asyncio.shield(self._starting), limit)
        except TimeoutError:
            return False

    async def classify(self, text: str) -> tuple[str, float] | None:
        """Label and confidence, or None: too late, too many waiting, or no process. Never raises, never hangs."""
        self.asked += 1
        link = self._link
        if link is None or not link.ready:
            self.failures += 1
            self._start_later()
            return None
        if len(link.waiting) >= self.max_waiting:
            self.overloaded += 1
            self._end_if_stuck(link)
            return None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[int, float] | None] = loop.create_future()
        link.ask(text, answer, loop.time())
        timer = loop.call_later(self.time_limit, _give_up, answer)
        try:
            found = await answer
        finally:
            timer.cancel()
        if found is None:
            if link.gone:
                self.failures += 1
            else:
                self.timeouts += 1
                self._end_if_stuck(link)
            return None
        self.answered += 1
        self._pause = _PAUSE
        number, confidence = found
        return (self.labels[number], confidence) if number < len(self.labels) else None

    async def close(self) -> None:
        """End the process, at the latest two seconds from now by force. Later questions get None."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await self._starting
        if self._link is not None:
            self._link.close()
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            await asyncio.to_thread(_reap, process)

    def _start_later(self) -> None:
        if self._starting is None and not self._closed and time.monotonic() >= self._not_before:
            self._starting = asyncio.get_running_loop().create_task(self._start())

    def _end_if_stuck(self, link: _Link) -> None:
        oldest = link.waiting[0][1] if link.waiting else None
        if oldest is not None and asyncio.get_running_loop().time() - oldest > _STUCK and self._process:
            self._process.kill()

    async def _start(self) -> bool:
        """One process, from start to ready. Cleans up what an earlier one left."""
        loop = asyncio.get_running_loop()
        try:
            old, self._process = self._process, None
            if old is not None:
                old.kill()
                await asyncio.to_thread(_reap, old)
            self.starts += 1
            pause, self._pause = self._pause, min(self._pause * 2, _MAX_PAUSE)
            self._not_before = time.monotonic() + pause
            ours, theirs = socket.socketpair()
            try:
                ours.setblocking(False)
                self._process = await asyncio.to_thread(_spawn, theirs, self._files)
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            link = _Link()
            await loop.create_unix_connection(lambda: link, sock=ours)
            self._link = link
            if await link.up:
                return True
            # From its death on: it may take longer than the pause to find that it can't run.
            self._not_before = time.monotonic() + pause
            return False
        except OSError:
            return False
        finally:
            self._starting = None


class _Link(asyncio.Protocol):
    """The socket to the process: answers come in the order of the questions."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[asyncio.Future[tuple[int, float] | None], float]] = deque()
        self.up: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.ready = self.gone = False
        self._rest = b""
        self._transport: asyncio.WriteTransport | None = None

    def ask(self, text: str, answer: asyncio.Future[tuple[int, float] | None], now: float) -> None:
        if len(text) > HEAD + TAIL:
            text = f"{text[:HEAD]} {text[-TAIL:]}"
        data = text.encode("utf-8", "surrogatepass")
        self.waiting.append((answer, now))
        assert self._transport is not None
        self._transport.write(LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is of no asyncio class

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) - len(data) % ANSWER.size
        self._rest = data[whole:]
        for number, confidence in ANSWER.iter_unpack(data[:whole]):
            if not self.ready:
                self.ready = True
                if not self.up.done():
                    self.up.set_result(True)
            elif self.waiting:
                answer, _ = self.waiting.popleft()
                if not answer.done():
                    answer.set_result((number, confidence))

    def connection_lost(self, error: Exception | None) -> None:
        self.ready, self.gone = False, True
        if not self.up.done():
            self.up.set_result(False)
        while self.waiting:
            _give_up(self.waiting.popleft()[0])


def _give_up(answer: asyncio.Future[tuple[int, float] | None]) -> None:
    if not answer.done():
        answer.set_result(None)


def _spawn(channel: socket.socket, files: tuple[Path, Path]) -> subprocess.Popen[bytes]:
    number = channel.fileno()
    command = [sys.executable, "-m", "serving.intent.worker", str(number), *map(str, files)]
    # As in the encoder: one thread for the little that numpy does.
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number], env=os.environ | one)


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
