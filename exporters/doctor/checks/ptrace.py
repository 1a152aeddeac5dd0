"""Whether py-spy can look into a replica (`exaserve inspect`): the ptrace scope and the program itself.

Documentation/admin-guide/LSM/Yama.rst: 0 the same user may, 1 only parents, 2 only with CAP_SYS_PTRACE, 3 nobody.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import number, text

_CAP_SYS_PTRACE = 19


def ptrace(node: Node) -> Iterator[Finding]:
    yield _scope(node)
    beside = Path(sys.executable).parent
    found = shutil.which("py-spy", path=os.pathsep.join([str(beside), node.environ.get("PATH", "")]))
    if found:
        yield Finding("py-spy", found, "ok", "on the PATH")
    else:
        cure = "pip install py-spy: shows where a hanging replica stands"
        yield Finding("py-spy", "not installed", "warn", "on the PATH", cure)


def _scope(node: Node) -> Finding:
    scope = number(node.procfs / "sys/kernel/yama/ptrace_scope")
    if scope is None:
        return Finding("scope", "the kernel has no Yama", "ok", "0, or CAP_SYS_PTRACE")
    can = _has_capability(text(node.procfs / "self/status") or "")
    value = f"{scope}{', with CAP_SYS_PTRACE' if can else ''}"
    if scope == 0 or (can and scope < 3):
        return Finding("scope", value, "ok", "0, or CAP_SYS_PTRACE")
    cure = (
        "run py-spy as root"
        if scope < 3
        else "boot without kernel.yama.ptrace_scope=3: it can't be taken back"
    )
    return Finding("scope", value, "warn", "0, or CAP_SYS_PTRACE", cure)


def _has_capability(status: str) -> bool:
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            try:
                return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
            except (IndexError, ValueError):
                return False
    return False


register("ptrace", "whether py-spy can look into a replica", ptrace)
