"""The dead-man: carries a fault's steps out, holds it, and takes it back when nobody else does.

A process of its own session, started by ``agent.py`` here or on a node. It speaks JSON lines over its standard
streams: one request, then ``do`` and ``undo`` for one that holds. It undoes at the word ``undo``, when its input ends
(whoever injected died of whatever: the kernel closes the pipe), when the duration is over, and at SIGTERM; whichever
comes first, also in the middle of ``do``. Standard library only, Python 3.8 (see ``undo.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

from chaos import identity, perform, undo

#: Seconds for the word to come. Nothing is in before it; other targets of the same fault may be put in and proven first.
_WORD = 600.0


class _Lines:
    """Lines of standard input, as they come. ended: nobody is there any more."""

    def __init__(self) -> None:
        self.ended, self._rest = False, b""

    def next(self, seconds: float) -> str | None:
        """The next line, or None if none came within the seconds or none will."""
        end = time.monotonic() + seconds
        while b"\n" not in self._rest and not self.ended:
            if not select.select([0], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            got = os.read(0, 65536)
            self.ended = not got
            self._rest += got
        line, mark, rest = self._rest.partition(b"\n")
        if not mark:
            return None
        self._rest = rest
        return line.decode("utf-8", "replace")

    def waiting(self) -> bool:
        """Whether there is a word, or an end, that nobody has heard yet."""
        if b"\n" not in self._rest and not self.ended and select.select([0], [], [], 0)[0]:
            got = os.read(0, 65536)
            self.ended = not got
            self._rest += got
        return self.ended or b"\n" in self._rest


def say(**words: Any) -> None:
    """One line of JSON; nobody need be there to hear it."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(words).encode() + b"\n")


def hold(path: str, record: dict[str, Any], lines: _Lines) -> None:
    """Keep the record, wait for ``do``, carry it out, hold it, undo it. Says what it does."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    record["deadman"] = identity.of(os.getpid())
    try:
        undo.write(path, record)
    except OSError as error:
        say(unwritten=f"{error.filename or path}: {error.strerror}")
        return
    say(ready=record["deadman"])
    end = time.monotonic() + _WORD
    controller, looked = record.get("controller"), [0.0]

    def over() -> bool:
        # The pipe tells at once; a child that the controller forked may hold its other end, so it is looked at too.
        now = time.monotonic()
        if controller and now - looked[0] >= 0.2:
            looked[0] = now
            if not identity.alive(controller):
                return True
        return bool(asked) or now >= end or lines.waiting()

    while not over():
        _pause(lines, end)
    failed, begun = "", False
    try:
        if not asked and lines.next(0) == "do":
            begun = True
            end = time.monotonic() + record["duration"]
            record["until"] = time.time() + record["duration"]
            failed = _do(path, record, over)
            if not failed:
                if record.get("momentary") and not record["undo"] and not record["spawned"]:
                    undo.forget(path)  # nothing is to be taken back, and what was done may end us too
                say(done=record["until"])
                while not over():
                    _pause(lines, end)
    finally:
        problems = undo.undo(path, record) if begun else undo.forget(path)
    say(undone=True, failed=failed, problems=problems)


def _pause(lines: _Lines, end: float) -> None:
    """Sleep until a word comes, but look around four times a second: a signal only sets a flag."""
    with contextlib.suppress(OSError):
        select.select([0], [], [], min(0.25, max(0.0, end - time.monotonic())))


def _do(path: str, record: dict[str, Any], over: Any) -> str:
    context = perform.Context(
        path, record["spawned"], undoing=False, keep=lambda: undo.write(path, record), stop=over
    )
    try:
        for step in record["do"]:
            if over():
                return "it was ended before it was in"
            perform.execute(context, step)
        record["state"] = "in"
        undo.write(path, record)
    except (perform.StepError, OSError) as error:
        return str(error)
    return ""


def take_back(path: str) -> list[str]:
    """Undo the record in the file, for a controller that recovers; what failed. No file: nothing is in."""
    try:
        record = undo.read(path)
        if undo.take_over(path, record):
            return []
        return undo.undo(path, undo.read(path))  # with what the dead-man added to it on its way
    except FileNotFoundError:
        return []
    except undo.Damaged as error:
        return [f"{path}: {error}; it is kept as it is"]


def take_back_all(folder: str) -> None:
    """Undo every record in the folder. Says which were undone, and what failed."""
    done: list[str] = []
    problems: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json") and not name.startswith("."):
                failed = take_back(os.path.join(folder, name))
                problems += failed
                done += [] if failed else [name[: -len(".json")]]
    say(undone=done, problems=problems)


def main() -> None:
    with contextlib.suppress(OSError):
        os.setsid()  # Ctrl-C or a closed terminal of the one who injects must not reach it
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    lines = _Lines()
    line = lines.next(30.0)
    if line is None:
        return
    request = json.loads(line)
    path = os.path.expanduser(request.get("path", ""))
    try:
        if request["op"] == "hold":
            hold(path, request["record"], lines)
        elif request["op"] == "take back":
            say(undone=True, problems=take_back(path))
        elif request["op"] == "take back all":
            take_back_all(path)
        elif request["op"] == "processes":
            say(**_processes(request))
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        sys.exit(1)


def _processes(request: dict[str, Any]) -> dict[str, Any]:
    """Which process serves each port, and all below it: ``{"listeners": {port: [identity...]}}``."""
    return {"listeners": {str(port): listener_tree(int(port)) for port in request["ports"]}}


def listener_tree(port: int) -> list[dict[str, Any]]:
    """The topmost process that listens on the TCP port, and all below it; empty if none can be seen."""
    tables = [identity.listeners(t) for t in ("/proc/net/tcp", "/proc/net/tcp6")]
    wanted = {inode for table in tables for inode, found in table.items() if found == port}
    holders = {pid for pid in identity.pids() if identity.sockets(pid) & wanted} if wanted else set()
    top = [pid for pid in holders if (identity.stat(pid) or ("", 0))[1] not in holders]
    return identity.tree(top[0]) if len(top) == 1 else []
