"""The audit log's writing side: a queue that the router fills and a thread that empties it onto the disk.

The hot path only appends a tuple (``record.Record``). A thread makes lines of them and writes them in batches,
every PAUSE seconds or as soon as BATCH have come together. While the disk takes nothing, the queue fills;
then further records are dropped and counted, and once it works again the file says how many are missing.
Nothing else of the router waits for it or fails because of it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from serving.audit.file import AuditFile
from serving.audit.record import Encoder, Record
from serving.config_base import size_in_bytes
from serving.config_router import Audit as Settings
from serving.home import home

PAUSE = 0.25  # seconds; what a killed process may lose
RETRY = 1.0  # seconds between two attempts while the disk takes nothing
#: Records of one batch: encoded in one go, with the interpreter held (about half a millisecond).
BATCH = 256


class Sink(Protocol):
    """Where lines go: all of ``data`` or nothing and OSError."""

    path: Path

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class NoAudit:
    """Where no audit log is wanted."""

    written = 0
    dropped = 0
    problem = ""

    def put(self, record: Record) -> None:
        pass

    def start(self) -> None:
        pass

    def close(self, seconds: float = 0.0) -> None:
        pass

    def __len__(self) -> int:
        return 0


class Audit(NoAudit):
    """Writes one line for each record. ``put`` from one thread; the rest from any.

    queue: records that may wait; beyond it the newest are dropped. say: told when writing fails and when it
    works again. written, dropped: records so far. problem: why nothing is written now, or "".
    """

    def __init__(
        self, sink: Sink, queue: int = 10_000, say: Callable[[str], None] | None = None
    ) -> None:  # fmt: skip
        self.written = 0
        self.problem = ""
        self._sink = sink
        self._say = say or _to_stderr
        self._queue: deque[Record] = deque()
        self._limit = queue
        self._refused = 0  # by put, which alone writes it
        self._abandoned = 0  # at close
        self._told = 0  # lost records that the file knows of
        self._batch = 0  # records in _data
        self._data = b""  # lines that the disk has not taken yet
        self._encoder = Encoder()
        self._opened = False  # so that a folder that can't be written is said before the first request
        self._wake = threading.Event()
        self._stop_at = 0.0  # monotonic time by which the thread has to end; 0: not asked to
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    @property
    def dropped(self) -> int:  # type: ignore[override]
        return self._refused + self._abandoned + self._encoder.broken

    def __len__(self) -> int:
        """Records that wait."""
        return len(self._queue) + self._batch

    def put(self, record: Record) -> None:
        """Take one record. Never blocks, never raises; dropped and counted if the queue is full."""
        queue = self._queue
        waiting = len(queue)
        if waiting < self._limit:
            queue.append(record)
            if waiting == BATCH - 1:
                self._wake.set()
        else:
            self._refused += 1

    def start(self) -> None:
        self._thread.start()
        self._wake.set()

    def close(self, seconds: float = 5.0) -> None:
        """Write everything that was put, then end. Blocks, ``seconds`` at most; what is left then is counted
        as dropped. Records put afterwards are dropped too."""
        self._limit = 0
        self._stop_at = time.monotonic() + seconds
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(seconds + 1.0)
        left = len(self)
        if left:
            self._abandoned += left
            self._say(
                f"audit: {left} records could not be written ({self.problem or 'the disk is too slow'})"
            )

    # --- the thread ---

    def _run(self) -> None:
        while not self._stop_at:
            self._wake.wait(RETRY if self.problem else PAUSE)
            self._wake.clear()
            self._drain()
        while not self._drain() and time.monotonic() < self._stop_at:
            time.sleep(0.05)
        self._sink.close()

    def _drain(self) -> bool:
        """Write what waits, in batches. False when the disk takes nothing."""
        queue = self._queue
        try:
            while queue or self._data or not self._opened:
                if not self._data:
                    records = [queue.popleft() for _ in range(min(BATCH, len(queue)))]
                    self._batch = len(records)
                    before = self._encoder.broken
                    self._data = self._encoder.lines(records)
                    self._batch -= self._encoder.broken - before
                self._sink.write(self._data)
                self._opened = True
                self._data = b""
                self.written += self._batch
                self._batch = 0
            lost = self.dropped
            if lost > self._told:
                self._sink.write(self._encoder.lost(time.time(), lost - self._told))
                self._told = lost
        except OSError as error:
            self._failed(f"{error.filename or self._sink.path}: {error.strerror or error}")
            return False
        except Exception as error:  # out of memory, say: the thread must outlive it
            self._failed(f"{type(error).__name__}: {error}")
            return False
        if self.problem:
            self.problem = ""
            self._say(f"audit: writes again to {self._sink.path}; {lost} records are missing so far")
        return True

    def _failed(self, problem: str) -> None:
        if problem != self.problem:
            self._say(f"audit: {problem}; up to {self._limit} records wait, further ones are dropped")
        self.problem = problem


def open_audit(settings: Settings, worker: int = 0) -> NoAudit:
    """The audit log that the configuration asks for, started. A folder that can't be written is said on
    stderr and tried again; it does not keep the router from serving."""
    if not settings.enabled:
        return NoAudit()
    sink = AuditFile(folder_of(settings), worker, size_in_bytes(settings.max_bytes), settings.keep)
    audit = Audit(sink, settings.queue)
    audit.start()
    return audit


def folder_of(settings: Settings) -> Path:
    """Where the files lie."""
    return Path(settings.folder) if settings.folder else home() / "audit"


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
