"""The model on a local disk: copied there from shared storage before a replica starts. Run as a program.

    python -m serving.engines.weights SOURCE CACHE -- COMMAND…

Fills ``CACHE/<name of SOURCE>`` and becomes COMMAND, in whose arguments SOURCE is replaced by that folder. The
copy appears whole or not at all; one process copies while others wait. Shared storage that is silent does not
keep a replica from starting whose cache is whole; a local disk that takes nothing does not either (the model is
then read where it lies). Nothing but the standard library: it runs at every start of a replica.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from . import Launch

#: Written last into a copy: its files with size and time. What does not match it is not whole.
MANIFEST = ".exaserve-cache.json"
#: Seconds that shared storage may take to say what it has, where the cache is whole anyway.
PATIENCE = 5.0


def through_cache(launch: Launch, source: Path, cache: Path) -> Launch:
    """``launch`` with the copying in front of it."""
    argv = [sys.executable, "-m", "serving.engines.weights", str(source), str(cache), "--", *launch.argv]
    return Launch(argv, launch.env)


def fill(source: Path, cache: Path) -> Path:
    """The folder to read the model from: the copy, made or renewed if need be, or ``source`` itself.

    Raises OSError if neither can be read.
    """
    copy = cache / source.name
    have = _whole(copy)
    if have is not None:
        wanted = _listing_in_time(source)
        if wanted is None:
            _say(f"{source} does not answer; starting from the copy in {copy}")
        if wanted in (None, have):
            return copy
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = os.open(cache / f".{source.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return _without(source, cache, error)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _listing(source)
        if _whole(copy) != wanted:  # whoever held the lock may have made it
            _copy(source, copy, wanted)
        return copy
    except OSError as error:
        return _without(source, cache, error)
    finally:
        os.close(lock)


def _without(source: Path, cache: Path, error: OSError) -> Path:
    """Source, if it can be read: then it was the cache that failed. Raises the error otherwise."""
    try:
        _listing(source)
    except OSError:
        raise error from None
    _say(f"can't copy the model into {cache} ({error.strerror or error}); reading it from {source}")
    return source


def _copy(source: Path, copy: Path, listing: dict[str, list[int]]) -> None:
    size = sum(entry[0] for entry in listing.values())
    _say(f"copying {source} into {copy} ({size / 1e6:.0f} MB)")
    for old in copy.parent.glob(f".{copy.name}.copying-*"):  # of one that was killed; we hold the lock
        shutil.rmtree(old, ignore_errors=True)
    if copy.exists():
        shutil.rmtree(copy)
    scratch = Path(tempfile.mkdtemp(dir=copy.parent, prefix=f".{copy.name}.copying-"))
    try:
        for name in listing:
            target = scratch / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target)
        (scratch / MANIFEST).write_text(json.dumps(listing))
        scratch.rename(copy)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _whole(copy: Path) -> dict[str, list[int]] | None:
    """What the copy holds; None if it is not there, or not as its manifest says."""
    try:
        listing: dict[str, list[int]] = json.loads((copy / MANIFEST).read_bytes())
        return listing if _listing(copy) == listing else None
    except (OSError, ValueError):
        return None


def _listing(folder: Path) -> dict[str, list[int]]:
    """Every file below ``folder``: size and time of its last change in nanoseconds. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    found = {}
    for place, _, names in os.walk(folder, onerror=fail):
        for name in names:
            path = Path(place) / name
            if name != MANIFEST:
                stat = path.stat()
                found[str(path.relative_to(folder))] = [stat.st_size, stat.st_mtime_ns]
    if not found:
        raise FileNotFoundError(2, "there is no model in it", str(folder))
    return found


def _listing_in_time(folder: Path) -> dict[str, list[int]] | None:
    """The same within ``PATIENCE`` seconds; None if it does not come or can't be had."""
    found: list[dict[str, list[int]]] = []

    def look() -> None:
        try:
            found.append(_listing(folder))
        except OSError:
            return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return found[0] if found else None


def _say(text: str) -> None:
    print(f"model cache: {text}", flush=True)


def main(arguments: Sequence[str]) -> NoReturn:
    """Become the command. Exit status 1 if the model or the command can't be had, 2 for bad arguments."""
    if len(arguments) < 4 or arguments[2] != "--":
        print("usage: python -m serving.engines.weights SOURCE CACHE -- COMMAND…", file=sys.stderr)
        raise SystemExit(2)
    source, command = Path(arguments[0]), list(arguments[3:])
    try:
        model = fill(source, Path(arguments[1]))
        command = [str(model) if word == str(source) else word for word in command]
        os.execvp(command[0], command)  # noqa: S606 - an argument list of ours
    except OSError as error:
        print(f"model cache: {error.filename or source}: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(sys.argv[1:])
