"""Undo records: written before a fault, carried out after it, from any state and any number of times.

Standard library only and Python 3.8: it runs in ``exaserve chaos recover``, in the dead-man process (``deadman.py``),
and on the nodes of a cluster, to which it is sent as text (``agent.py``). A record is one JSON file::

    {"version": 1, "id", "fault", "kind", "engine", "target", "place", "claims": [text...], "created": unix seconds,
     "duration": seconds, "until": unix seconds or null, "controller": identity, "deadman": identity or null,
     "state": "planned" | "in" | "undoing", "do": [step...], "undo": [step...], "spawned": {key: identity},
     "problems": [text...], "remote": {"host": argv prefix, "path": record on the node} or null,
     "momentary": whether nothing is held once it is done}

Steps are ``perform.py``'s, identities ``identity.py``'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import time
from typing import Any

from chaos import identity, perform

#: Seconds for which a failing step of an undo is tried again before the record is left with what was said.
PERSIST = 5.0
#: Bytes of a record at most; real ones have some thousands.
MAX_BYTES = 4 * 2**20
_MAYBE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "fault": (str,),
    "target": (str,),
    "place": (str,),
    "state": (str,),
    "created": (int, float),
    "duration": (int, float),
    "until": (int, float, _MAYBE),
    "claims": (list,),
    "do": (list,),
    "undo": (list,),
    "problems": (list,),
    "spawned": (dict,),
    "controller": (dict, _MAYBE),
    "deadman": (dict, _MAYBE),
    "remote": (dict, _MAYBE),
}


class Damaged(Exception):
    """A record that can't be understood; it is left where it is."""


def read(path: str) -> dict[str, Any]:
    """The record in the file. Raises Damaged, FileNotFoundError.

    A file that another user could have written is damaged, too: its steps would be carried out with our rights.
    """
    try:
        record: dict[str, Any] = json.loads(_own_bytes(path))
        if record["version"] != 1:
            raise Damaged(f"it has version {record['version']!r}, this program knows 1")
        for key, kinds in _KINDS.items():
            if not isinstance(record[key], kinds):
                raise Damaged(f"{key} is no {kinds[0].__name__}")
        for step in [*record["do"], *record["undo"]]:
            if step["op"] not in perform.OPS:
                raise Damaged(f"it has an unknown step {step['op']!r}")
        for text in [*record["claims"], *record["problems"]]:
            if not isinstance(text, str):
                raise Damaged(f"it has {text!r} for a text")
        for who in [record["controller"], record["deadman"], *record["spawned"].values()]:
            if who is not None and not identity.well_formed(who):
                raise Damaged(f"{who!r} names no process")
        if record["remote"] is not None:
            _check_remote(record["remote"])
        return record
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"it is no undo record ({type(error).__name__}: {error})") from None


def _own_bytes(path: str) -> bytes:
    """Of a file, and nothing else: neither a link nor a pipe, which would never end. Raises OSError, Damaged."""
    if os.path.islink(path):
        raise Damaged("it is a link")
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise Damaged("it is no file")
    with os.fdopen(handle, "rb") as f:
        if about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022:
            raise Damaged("another user could have written it (its owner or its mode)")
        if about.st_size > MAX_BYTES:
            raise Damaged(f"it has {about.st_size} bytes, more than any record")
        return f.read(MAX_BYTES)


def _check_remote(remote: dict[str, Any]) -> None:
    if not all(isinstance(remote[key], str) for key in ("node", "path")):
        raise Damaged("it does not say where on which node its other half lies")
    host = remote["host"]
    if not isinstance(host, list) or not host or not all(isinstance(word, str) for word in host):
        raise Damaged("it does not say how its node is reached")


def write(path: str, record: dict[str, Any]) -> None:
    """Keep the record, on the disk. Raises OSError: without a record there is no fault."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    perform.write_whole(path, json.dumps(record, indent=1) + "\n", 0o600)


def undo(path: str, record: dict[str, Any], persist: float = PERSIST) -> list[str]:
    """Carry out the record's undo, every step of it even if one fails; then the file goes.

    What fails is tried again for ``persist`` seconds. Returns what failed to the end, as texts: then the record is
    kept, with them in it; an empty list when all is as before.
    """
    record["state"] = "undoing"
    with contextlib.suppress(OSError):
        write(path, record)  # a full disk must keep nobody from healing
    for who, _ in identity.helpers(path, mark=identity.STEP):
        with contextlib.suppress(PermissionError):  # or it would do again what is undone here
            identity.send(who, signal.SIGKILL)
    context = perform.Context(path, record["spawned"], undoing=True)
    stopped = {step.get("key") for step in record["undo"] if step["op"] == "stop"}
    left = [{"op": "stop", "key": key} for key in record["spawned"] if key not in stopped] + record["undo"]
    end = time.monotonic() + persist
    while True:
        failed, problems = [], []
        for step in left:
            try:
                perform.execute(context, step)
            except perform.StepError as error:
                failed.append(step)
                problems.append(str(error))
        left = failed
        if not left or time.monotonic() >= end:
            break
        time.sleep(0.2)
    if left:
        record["problems"] = problems
        with contextlib.suppress(OSError):
            write(path, record)
        return problems
    return forget(path)


def held(record: dict[str, Any]) -> bool:
    """Whether somebody is there who takes the fault out: its dead-man; for one on another machine, who put it in."""
    return identity.alive(record["controller"] if record.get("remote") else record["deadman"])


def forget(path: str) -> list[str]:
    """Remove the record of what is undone, or was never done; why it can't be, as texts."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [f"all is undone, but its record can't be removed: {error.strerror}"]
    return []


def take_over(path: str, record: dict[str, Any], patience: float = 8.0) -> bool:
    """End the record's dead-man, so that not two undo it: it is asked first, then killed.

    Returns True if the record went with it, undone.
    """
    deadman = record.get("deadman")
    if not deadman or not identity.alive(deadman):
        return not os.path.exists(path)
    identity.send(deadman, signal.SIGTERM)
    if not identity.until(lambda: not identity.alive(deadman), patience):
        identity.send(deadman, signal.SIGKILL)
        identity.until(lambda: not identity.alive(deadman), 3.0)
    return not os.path.exists(path)
