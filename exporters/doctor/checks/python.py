"""Python and ExaServe as they run here."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from exporters.doctor import versions
from exporters.doctor.check import Finding, Node, register


def python(_: Node) -> Iterator[Finding]:
    enough = sys.version_info >= (3, 11)
    cure = "" if enough else "install Python 3.11 or newer and ExaServe in an environment of it"
    expected = "3.11 or newer, the same on every node"
    yield Finding("version", versions.python(), "ok" if enough else "fail", expected, cure, compare="warn")
    installed = versions.exaserve() or "runs from its folder"
    yield Finding("ExaServe", installed, "ok", "the same on every node", compare="warn")


register("python", "versions of Python and of ExaServe", python)
