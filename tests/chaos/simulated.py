"""A simulated replica as a child process, for the tests of faults: started with or without ``--faults``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from chaos import identity
from tests.chaos.framework import Here

ROOT = Path(__file__).parents[2]


@dataclass
class Simulated:
    process: subprocess.Popen[str]
    url: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def state(self) -> str:
        """Its process's state, proc(5)."""
        found = identity.stat(self.pid)
        return found[0] if found else ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def place(self, name: str = "replica-0", **addresses: str) -> Here:
        """A place of this replica and of one that is never touched, so that it is not the last one."""
        return Here({name: (self.url, self.pid), "other": ("http://127.0.0.1:9", os.getpid())}, **addresses)


@contextmanager
def simulated(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Simulated]:
    """Started and ready; ended with the block."""
    argv = [sys.executable, "-m", "serving.engines.simulated", "--port", "0", "--model", "m", *arguments]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **(env or {})}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " on http://" in line, line
        yield Simulated(process, line.split()[-1])
    finally:
        process.kill()
        process.communicate()
