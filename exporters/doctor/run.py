"""Runs the checks of one node side by side, each in a thread of its own and within its time limit.

A check that hangs costs only itself: what it found so far stays, and one row says that it was cut. One that
breaks gives one row that says so. Nothing here raises.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
import time
from collections.abc import Iterable
from dataclasses import replace

from exporters.doctor.check import CHECKS, Check, Finding, Node

#: Rows of one check that are kept: a machine with thousands of devices still gives a table one can read.
MAX_FINDINGS = 2000


def load() -> dict[str, Check]:
    """Every check of ``exporters/doctor/checks``, by name. One that can't be loaded is there, and says so."""
    package = importlib.import_module("exporters.doctor.checks")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("_"):
            continue
        try:
            importlib.import_module(f"exporters.doctor.checks.{module.name}")
        except Exception as error:
            CHECKS[module.name] = _unloadable(module.name, error)
    return dict(sorted(CHECKS.items()))


def _unloadable(name: str, error: Exception) -> Check:
    said = f"the check could not be loaded: {error!r}"
    return Check(name, said, lambda _: [Finding("check", said, "unknown")], 1.0)


def run(checks: Iterable[Check], node: Node, factor: float = 1.0) -> list[Finding]:
    """The findings of all checks in the order of ``checks``, at the latest when the slowest limit is over.

    factor: multiplies every time limit.
    """
    runs = [_Run(check, node, check.seconds * factor) for check in checks]
    return [finding for one in runs for finding in one.findings()]


class _Run:
    def __init__(self, check: Check, node: Node, seconds: float) -> None:
        self._check, self._node, self._seconds = check, node, seconds
        self._found: list[Finding] = []
        self._done = threading.Event()
        self._ends = time.monotonic() + seconds
        # A daemon: a thread that hangs does not keep the process from ending.
        threading.Thread(target=self._work, name=f"check-{check.name}", daemon=True).start()

    def _work(self) -> None:
        try:
            for finding in self._check.run(self._node):
                self._found.append(finding)
                if len(self._found) >= MAX_FINDINGS:
                    break
        except Exception as error:
            said = f"the check broke: {type(error).__name__}: {error}"
            self._found.append(
                Finding("check", said, "unknown", cure="report it; --skip leaves the check out")
            )
        self._done.set()

    def findings(self) -> list[Finding]:
        self._done.wait(max(0.0, self._ends - time.monotonic()))
        cut = not self._done.is_set()
        found = [replace(f, check=self._check.name) for f in list(self._found)]
        if cut:
            said = f"no answer within {self._seconds:g} s"
            cure = "something that it reads hangs; --time-factor gives more time"
            found.append(Finding("check", said, "unknown", "an answer", cure, check=self._check.name))
        return found
