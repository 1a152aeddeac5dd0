"""Run pip so that a person sees how far it is, and what went wrong.

What is installed, and where, is decided by ``install.py`` and ``model.py``.
"""

from __future__ import annotations

import collections
import os
import queue
import re
import subprocess
import threading
import time
from pathlib import Path

from .building import BuildError, Progress

# pip says this for each package when a configured index is a local folder; it means nothing to the reader.
_NOISE = re.compile(r"WARNING: Location .* is ignored|^Looking in |^\s*$")
_TAIL_LINES = 12
_PROGRESS_EVERY = 5.0
_STILL_AT_IT_EVERY = 15.0


class PipError(BuildError):
    """pip ended with an error. ``tail``: its last lines."""

    def __init__(self, message: str, tail: str) -> None:
        super().__init__(message)
        self.tail = tail

    def missing(self, requirement: str) -> bool:
        """Whether pip found no distribution for ``requirement`` (as written in the requirements)."""
        return f"No matching distribution found for {requirement}" in self.tail


def run_pip(
    python: Path, arguments: list[str], what: str, progress: Progress, total: int | None = None
) -> None:
    """``python -m pip arguments``, with a progress line every 5 to 15 s.

    total: how many packages are expected, for the progress lines. pip's own configuration (index, cache,
    proxy) holds. Raises PipError with pip's last lines and a cure.
    """
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"PIP_PROGRESS_BAR": "off", "PYTHONUNBUFFERED": "1"},
        )
    except OSError as e:
        raise PipError(f"{what}: can't run {python}: {e.strerror}", "") from e
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
    try:
        _follow(lines, tail, what, progress, total)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code:
        text = "\n".join(tail)
        raise PipError(
            f"{what}: pip ended with status {code}. Its last lines:\n"
            + "\n".join(f"  | {line}" for line in tail)
            + f"\n{_cure(text)}",
            text,
        )


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.rstrip())
    lines.put(None)


def _follow(
    lines: queue.Queue[str | None],
    tail: collections.deque[str],
    what: str,
    progress: Progress,
    total: int | None,
) -> None:
    start = told = time.monotonic()
    seen, doing, said = 0, "asking the package index", ""
    while True:
        try:
            line = lines.get(timeout=1.0)
        except queue.Empty:
            line = ""
        if line is None:
            return
        if line and not _NOISE.search(line):
            tail.append(line)
            if line.startswith(("Collecting ", "Processing ")):
                seen += 1
                of = f"{seen} of {total}" if total else str(seen)
                # "Collecting torch==2.13.0 (from …)", "Processing /folder/torch-2.13.0-….whl (from …)"
                name = re.split(r"[=<>~!;]|-\d", Path(line.split()[1]).name)[0]
                doing = f"package {of}, {name}"
            elif line.startswith("Installing collected packages"):
                doing = "unpacking"
                told = 0.0
        now = time.monotonic()
        if now - told >= (_PROGRESS_EVERY if doing != said else _STILL_AT_IT_EVERY):
            told, said = now, doing
            progress(f"{what}: {doing} ({now - start:.0f} s)")


def _cure(text: str) -> str:
    if "No module named pip" in text:
        return "This Python has no pip: install it (Debian: apt install python3-pip python3-venv), then try again."
    if "No space left" in text:
        return (
            "The disk is full: make room, or set EXASERVE_HOME (and TMPDIR) to a larger disk, then try again."
        )
    if "No matching distribution" in text:
        return (
            "The package index that pip is configured for does not have it for this Python and machine: "
            "check `pip config list`, or use Python 3.11 on x86-64 Linux."
        )
    return "Check the network and pip's configuration (`pip config list`), then try again; nothing is left half-built."
