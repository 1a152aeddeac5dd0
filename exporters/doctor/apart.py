"""Runs a child process within limits of time and output, and never waits for one that can't be killed.

A read of a stuck mount or of a lost GPU can sleep in the kernel where no signal reaches it. In a thread of ours it
would keep this process from ending, too; in a child it stays behind alone.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

#: Bytes of standard output that are read; of standard error the same, of which the end matters.
MAX_OUTPUT = 8 << 20
#: Seconds between two looks whether it has ended.
_TICK = 0.1

#: Children that are waited for.
_running: set[subprocess.Popen[bytes]] = set()

_PROBES = Path(__file__).parent / "probes"


class Outcome(NamedTuple):
    """code: exit status, None where the child did not end in time or could not be started.

    problem: "" or why there is no exit status.
    """

    code: int | None
    out: bytes
    err: bytes
    problem: str = ""


def run(argv: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> Outcome:
    """Standard output and error of ``argv`` and how it ended. Raises nothing.

    After ``seconds`` the child and what it started are killed and left alone.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ) if environ is not None else None,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Outcome(None, b"", b"", f"can't start {argv[0]}: {getattr(error, 'strerror', None) or error}")
    _running.add(child)
    try:
        out, err, problem = _read(child, seconds)
        if not problem:
            try:
                return Outcome(child.wait(max(0.1, seconds / 10)), out, err)
            except subprocess.TimeoutExpired:
                problem = f"did not end within {seconds:g} s"
        _kill(child)
    finally:
        _running.discard(child)
    return Outcome(None, out, err, problem)


def _read(child: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bytes, str]:
    pipes: dict[IO[bytes], bytearray] = {pipe: bytearray() for pipe in (child.stdout, child.stderr) if pipe}
    problem, ends = "", time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for pipe, data in pipes.items():
            selector.register(pipe, selectors.EVENT_READ, data)
        while selector.get_map() and not problem:
            left = ends - time.monotonic()
            ended = child.poll() is not None
            ready = selector.select(min(left, _TICK)) if left > 0 else []
            # What it left running (ssh's shared connection) may hold the pipes open for ever.
            if not ready and ended:
                break
            if left <= 0:
                problem = f"no answer within {seconds:g} s"
            for key, _ in ready:
                piece = os.read(key.fd, 65536)
                key.data.extend(piece)
                if not piece:
                    selector.unregister(key.fileobj)
                if len(key.data) > MAX_OUTPUT:
                    problem = f"its output is longer than {MAX_OUTPUT} bytes"
    read = [bytes(data) for data in pipes.values()]
    for pipe in pipes:
        pipe.close()
    return read[0], read[1], problem


@atexit.register
def _end() -> None:
    """After Ctrl-C: what still runs is ended, without waiting for it."""
    for child in list(_running):
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)


def _kill(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(0.2)
    except (OSError, subprocess.TimeoutExpired):
        return


def probe(name: str, arguments: Sequence[str], seconds: float, environ: Mapping[str, str]) -> Any:
    """What ``probes/NAME.py`` printed, as JSON. Raises ProbeError: it hung, died or printed something else."""
    # -P: its own folder is not where its imports come from.
    argv = [sys.executable, "-P", str(_PROBES / f"{name}.py"), *arguments]
    outcome = run(argv, seconds, environ)
    if outcome.problem:
        raise ProbeError(outcome.problem, hung=outcome.problem.startswith("no answer"))
    try:
        return json.loads(outcome.out)
    except (ValueError, RecursionError):
        last = outcome.err.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise ProbeError(last or f"ended with {outcome.code} and said nothing") from None


class ProbeError(Exception):
    """hung: it did not answer in time, which says something about what it asked."""

    def __init__(self, said: str, hung: bool = False) -> None:
        super().__init__(said)
        self.hung = hung
