"""The locust command of a level, and how it is run. Plain functions; options are ``_cli``'s."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1]


def locustfile(profile: str) -> str:
    """Path of a profile's file, relative where that is shorter to read. Raises KeyError for a profile that is none."""
    names = profiles()
    if profile not in names:
        raise KeyError(f"{profile!r} is no profile; there are {', '.join(names)}")
    path = _FOLDER / f"{profile}.py"
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def profiles() -> list[str]:
    """Names of all locustfiles, chat first."""
    names = [path.stem for path in _FOLDER.glob("*.py") if not path.stem.startswith("_")]
    return sorted(names, key=lambda name: (name != "chat", name))


def command(
    profile_names: Sequence[str], host: str, *options: str | float | None, processes: int = 1
) -> list[str]:
    """``locust`` and its arguments. options: name and value in turn; a value of None or "" leaves its option out.

    More than one process: they meet at a port of their own, since locust's default is one for all runs of a machine.
    """
    given = [
        "locust",
        "-f",
        ",".join(map(locustfile, profile_names)),
        "--headless",
        "--only-summary",
        "-H",
        host,
    ]
    for name, value in zip(options[::2], options[1::2], strict=True):
        if value not in (None, ""):
            given += [str(name), f"{value:g}" if isinstance(value, float) else str(value)]
    if processes > 1:
        port = str(_free_port())
        given += ["--processes", str(processes), "--master-bind-host", "127.0.0.1"]
        given += ["--master-bind-port", port, "--master-port", port]
    return given


def shown(words: Sequence[str]) -> str:
    """As it can be typed again."""
    return shlex.join(words)


def run(words: Sequence[str]) -> int:
    """Run it to its end with this terminal; its exit code. A signal is passed on, so that it ends as locust does."""
    process = subprocess.Popen([sys.executable, "-m", *words])
    before = signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    try:
        while True:
            try:
                return _code(process.wait())
            except KeyboardInterrupt:
                # The terminal sends Ctrl-C to locust too, which lets open requests end; a second one it heeds itself.
                continue
    finally:
        signal.signal(signal.SIGTERM, before)


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _code(status: int) -> int:
    return status if status >= 0 else 128 - status


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
