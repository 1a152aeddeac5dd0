"""``exaserve chaos recover``: everything that faults left is put right, from any state and any number of times.

Every undo record is carried out; one that can't be understood is named and kept. What is left without a record is
looked for by name: helpers with our mark, and what engines know of themselves (``leftovers`` in ``chaos/engines``).
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import pkgutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import identity, undo
from chaos.fault import ActivityFailed, Refused
from chaos.place import Node, Place

#: Seconds after which a file that was being written is nobody's any more.
_STALE = 10.0


@dataclass
class Recovered:
    """undone: ids of the records carried out. failed: (record's path, why) of those kept. leftovers: what was there
    without a record, and has been cleared away unless its text says otherwise."""

    undone: list[str] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


def folder() -> Path:
    """Where undo records lie: ``chaos/undo`` in ``$EXASERVE_HOME``, else in ``~/.exaserve``."""
    home = Path(os.environ.get("EXASERVE_HOME") or Path.home() / ".exaserve")
    return home.expanduser().absolute() / "chaos" / "undo"


def records() -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """Every record by file, oldest first; a text that says why, for one that can't be understood.

    A folder that is not there has none. Raises Refused if it can't be read.
    """
    found = []
    try:
        for entry in os.scandir(folder()):
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # undone just now; the others are still there
                    found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name, Path(entry.path)))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise Refused(f"undo records: {folder()}: {error.strerror}") from None
    for _, _, path in sorted(found):
        try:
            yield path, undo.read(str(path))
        except FileNotFoundError:
            continue
        except undo.Damaged as error:
            yield path, str(error)


@contextlib.contextmanager
def alone(what: str, seconds: float = 60.0) -> Iterator[None]:
    """Only one process at a time does it (``plan``: targets are chosen and claimed; ``recover``). Raises Refused."""
    path = folder().with_name(f"{what}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        why = "no undo record, so no fault" if what == "plan" else what
        raise Refused(f"{why}: {error.filename or path}: {error.strerror}; nothing was done") from None
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= end:
                    raise Refused(f"another process has held {path} for {seconds:g} s; try again") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def recover(place: Place | None = None) -> Recovered:
    """Undo every record, newest first, then clear what is left without one. Raises nothing for a single failure.

    Two at the same time take turns. Raises Refused if the records can't be read, or another one does not end.
    """
    result = Recovered()
    if not os.path.lexists(folder()):
        _clear(place, result)
        return result
    # Nobody puts one in meanwhile: what its record claims would be cleared as if it had none.
    with alone("recover", 120.0), alone("plan", 120.0):
        _all_records(result)
        _clear(place, result)
    return result


def _all_records(result: Recovered) -> None:
    for path, record in reversed(list(records())):
        if isinstance(record, str):
            result.failed.append((path, f"{record}; it is kept as it is"))
            continue
        problems = one(path)
        if problems:
            result.failed.append((path, "; ".join(problems)))
        else:
            result.undone.append(record["id"])


def _clear(place: Place | None, result: Recovered) -> None:
    """What is left without a record."""
    _sweep()
    result.leftovers += _helpers()
    if place is not None:
        _nodes_own(place, result)
    for module in engine_modules():
        clear = getattr(module, "clear_leftovers", None)
        if clear is not None and place is not None:
            try:
                result.leftovers += clear(place)
            except Exception as error:  # one that can't look must not keep the others from it
                result.leftovers.append(f"{module.__name__.rpartition('.')[2]} could not look: {error}")


def one(path: Path) -> list[str]:
    """Undo one record; what failed, as texts. Its dead-man is ended first, so that not two undo it."""
    try:
        record = undo.read(str(path))
        if record.get("remote"):
            return _on_node(path, record)
        if undo.take_over(str(path), record):
            return []
        return undo.undo(str(path), undo.read(str(path)))
    except FileNotFoundError:
        return []
    except undo.Damaged as error:
        return [f"{error}; it is kept as it is"]


def engine_modules() -> list[Any]:
    """The modules of ``chaos/engines``; those that know leftovers have ``leftovers`` and ``clear_leftovers``."""
    from chaos import engines

    return [
        importlib.import_module(f"chaos.engines.{m.name}") for m in pkgutil.iter_modules(engines.__path__)
    ]


def _on_node(path: Path, record: dict[str, Any]) -> list[str]:
    from chaos import agent

    remote = record["remote"]
    node = Node(remote["node"], prefix=list(remote["host"]), remote=True)
    try:
        answer = agent.ask(
            node, {"op": "take back", "path": remote["path"]}, seconds=agent.START + undo.PERSIST
        )
    except Refused as error:
        until = record.get("until") or record["created"] + record["duration"]
        hint = " (its dead-man has undone it by now)" if time.time() > until + 10 else ""
        return [f"{error}{hint}; run recover again once it can be reached"]
    if not answer.get("problems"):
        path.unlink(missing_ok=True)
    return list(answer.get("problems", []))


def _nodes_own(place: Place, result: Recovered) -> None:
    """Records that remote nodes have and this machine does not: of a controller that lost its disk."""
    from chaos import agent

    try:
        nodes = [node for node in place.nodes() if node.remote and not node.control]
    except ActivityFailed as error:
        result.leftovers.append(f"{place.name} could not be looked at: {error}")
        return
    for node in nodes:
        try:
            answer = agent.ask(
                node, {"op": "take back all", "path": node.state_folder}, agent.START + undo.PERSIST
            )
        except Refused as error:
            result.failed.append((Path(node.state_folder), f"{node.name}: {error}"))
            continue
        result.undone += [f"{name} ({node.name})" for name in answer.get("undone", [])]
        result.failed += [
            (Path(node.state_folder), f"{node.name}: {why}") for why in answer.get("problems", [])
        ]


def _sweep() -> None:
    """Half-written records of writers that died: the rename never came, so nothing was done for them."""
    with contextlib.suppress(OSError):
        for path in folder().glob(".*.json.*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE:
                    path.unlink()


def _helpers() -> list[str]:
    """Helper processes whose record is gone; those of records that are there were ended with them."""
    ended = []
    for who, record in identity.helpers(folder=str(folder())):
        if not Path(record).exists():
            with contextlib.suppress(PermissionError):
                identity.send(who, signal.SIGKILL)
            ended.append(f"helper process {who['pid']} of {Path(record).stem} had no record; it was ended")
    return ended
