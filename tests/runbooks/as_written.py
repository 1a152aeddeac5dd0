"""Runs the commands of a runbook as they are written: only default ports are replaced by those of a running stack."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.runbooks.runbook_text import RUNBOOKS, command_lines

#: Default port in runbooks -> the part of the stack that has another one.
PORTS = {
    "8000": "router",
    "8001": "admin",
    "9090": "prometheus",
    "9093": "alertmanager",
    "9420": "exporter",
}


def run(stack: Any, line: str) -> str:
    """Standard output of one line. Raises RuntimeError if bash or a program does not know what it is asked.

    stack: a ``tests.conftest.Stack``. Status 1 is a grep that found nothing, or a query without an answer.
    """
    for port, part in PORTS.items():
        there = getattr(stack, part).rpartition(":")[2]
        line = re.sub(rf"(127\.0\.0\.1|sport = ):{port}\b", rf"\1:{there}", line)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, **stack.env, "PATH": path}
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=stack.config.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{line}: status {done.returncode}: {done.stderr}")
    return done.stdout


def diagnosis(stack: Any, runbook: str) -> dict[str, str]:
    """Output of every command of a runbook's diagnosis, by the line as it is written."""
    lines = command_lines(RUNBOOKS[runbook].read_text(), "Diagnosis")
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(lines, pool.map(lambda line: run(stack, line), lines), strict=True))
