"""Stop a replica's processes with SIGSTOP: its sockets accept and nothing answers, which probes must notice.

Healing does not depend on the process that injects: before the first SIGSTOP an undo record is written and a
dead-man process (``chaos/deadman.py``) stands ready, which continues the processes when the duration is over
or when the injecting process has gone, whichever comes first. ``recover`` heals from the record alone.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from chaoslib.exceptions import ActivityFailed

from chaos import deadman, processes
from chaos.fleet import Replica

#: Longest freeze in seconds; also the record's promise to whoever finds it.
MAX_DURATION = 600.0
_deadmen: dict[str, subprocess.Popen[bytes]] = {}


def folder() -> Path:
    """Where undo records lie: one JSON file for each frozen replica."""
    return processes.run_folder() / "chaos"


def inject(replica: Replica, duration: float, scope: str = "tree") -> dict[str, Any]:
    """Freeze the replica for at most ``duration`` seconds (over 0, at most 600). Returns at once.

    scope: ``tree``, the listening process and all below it; ``process``, the listening one alone;
    ``children``, all but the listening one (an engine stuck behind a front end that answers).
    Returns ``{"replica", "pids", "until"}`` (unix seconds). Raises ActivityFailed, with nothing left stopped.
    """
    if not 0 < duration <= MAX_DURATION:
        raise ActivityFailed(f"duration must be over 0 and at most {MAX_DURATION:g} s, not {duration:g}")
    process = processes.of_replica(replica)
    tree = processes.with_children(process)
    targets = {"tree": tree, "process": tree[:1], "children": tree[1:]}.get(scope)
    if not targets:
        raise ActivityFailed(
            f"{replica.name}: nothing to freeze with scope {scope!r} (tree, process, children)"
        )
    record = folder() / f"replica_freeze-{replica.name.replace('/', '_')}.json"
    if record.exists():
        raise ActivityFailed(f"{replica.name} is already frozen ({record}); thaw it first")
    until = time.time() + duration
    body = {"replica": replica.name, "until": until, "processes": [[p.pid, p.create_time()] for p in targets]}
    _write(record, body)
    try:
        _deadmen[replica.name] = _start_deadman(record)
        for target in targets:
            target.suspend()
        for target in targets:
            if not _stopped(target):
                raise ActivityFailed(f"{replica.name}: process {target.pid} did not stop")
    except (ActivityFailed, OSError, psutil.Error) as error:
        undo(replica.name)
        raise ActivityFailed(f"{replica.name} was not frozen: {error}") from None
    return {"replica": replica.name, "pids": [p.pid for p in targets], "until": until}


def undo(name: str) -> list[int]:
    """Continue the replica's processes and clear the record; those that ended meanwhile are nothing to undo.

    Returns the pids that were continued: an empty list if it is not frozen (any more), so it may be called
    twice.
    """
    record = folder() / f"replica_freeze-{name.replace('/', '_')}.json"
    continued = deadman.heal(record)
    watcher = _deadmen.pop(name, None)
    if watcher is not None and watcher.stdin is not None:
        watcher.stdin.close()
        try:
            watcher.wait(5)
        except subprocess.TimeoutExpired:
            watcher.kill()
            watcher.wait()
    return continued


def recover() -> dict[str, list[int]]:
    """Undo every freeze that has a record, whoever injected it: replica -> pids continued."""
    names = [p.stem.removeprefix("replica_freeze-") for p in sorted(folder().glob("replica_freeze-*.json"))]
    return {name: undo(name) for name in names}


def _start_deadman(record: Path) -> subprocess.Popen[bytes]:
    """The dead-man process, ready. It has its own session, so that Ctrl-C or a closed terminal spares it."""
    watcher = subprocess.Popen(
        [sys.executable, "-P", deadman.__file__, str(record)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    assert watcher.stdout is not None
    with watcher.stdout:
        if select.select([watcher.stdout], [], [], 10)[0] and watcher.stdout.readline() == b"ready\n":
            return watcher
    watcher.kill()
    watcher.wait()
    raise ActivityFailed("its dead-man process did not start")


def _stopped(process: psutil.Process) -> bool:
    end = time.monotonic() + 2
    while time.monotonic() < end:
        if process.status() == psutil.STATUS_STOPPED:
            return True
        time.sleep(0.01)
    return False


def _write(path: Path, body: dict[str, Any]) -> None:
    """Whole or not at all: the record is what heals when everything else is gone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        with temporary.open("w") as f:
            json.dump(body, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise ActivityFailed(f"no undo record, so no fault: {path}: {error.strerror}") from None
