"""Brings results of other nodes: by the system's ``ssh``, or from files that pdsh, srun or Ansible brought.

Nothing here raises for what a node does: one that can't be reached, hangs or prints nonsense is a result with a
problem. Exporters' pages are read by ``pages.py``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from exporters.doctor import apart
from exporters.doctor.files import printable
from exporters.doctor.hosts import Host
from exporters.doctor.result import NodeResult, parse
from exporters.doctor.side_by_side import each

#: Bytes of one file of results.
MAX_BYTES = 16 << 20
_NOT_FOUND = 127
_SSH_FAILED = 255

Progress = Callable[[NodeResult], None]


def by_ssh(
    hosts: Sequence[Host],
    command: str,
    seconds: float,
    parallel: int,
    environ: Mapping[str, str],
    progress: Progress = lambda _: None,
) -> list[NodeResult]:
    """The results of ``command`` on every host, in the order of ``hosts``; ``parallel`` at a time.

    seconds: for one host, the connection included. progress: called for each host as it comes, by several threads.
    """

    def one(host: Host) -> NodeResult:
        result = _ask(host, command, seconds, environ)
        progress(result)
        return result

    return each(one, hosts, parallel)


def ssh_argv(host: Host, command: str, seconds: float) -> list[str]:
    """No question is ever asked (BatchMode), no forwarding is set up. The host's own options come first, and ssh
    takes the first value of each."""
    connect = max(1, min(15, int(seconds / 2)))
    options = ("BatchMode=yes", f"ConnectTimeout={connect}", "ClearAllForwardings=yes", "ControlMaster=no")
    ours = [word for option in options for word in ("-o", option)]
    return ["ssh", *host.options, *ours, "-T", "-x", "--", host.name, command]


def remote_command(options: Sequence[str]) -> str:
    """What is run on each node: the doctor with the options that it was given here."""
    return shlex.join(["exaserve", "doctor", "--json", *options])


def _ask(host: Host, command: str, seconds: float, environ: Mapping[str, str]) -> NodeResult:
    outcome = apart.run(ssh_argv(host, command, seconds), seconds, environ)
    try:
        # Whatever way it ended: a remote process that can't end (a stuck mount) has still printed its result.
        return parse(outcome.out, host.name)
    except ValueError as error:
        return NodeResult(host.name, problem=_problem(outcome, str(error)))


def _problem(outcome: apart.Outcome, said: str) -> str:
    lines = outcome.err.decode(errors="replace").strip().splitlines()
    last = printable("; ".join(lines[-2:]))[-300:]
    if outcome.problem:
        return f"ssh: {outcome.problem}"
    if outcome.code == _NOT_FOUND:
        return "exaserve is not on its PATH; --remote-command '/path/to/exaserve doctor --json'"
    if outcome.code == _SSH_FAILED:
        return f"ssh: {last.removeprefix('ssh: ') or 'failed without a word'}"
    if not outcome.out.strip():
        return f"ended with {outcome.code}: {last or 'printed nothing'}"
    return said


def from_files(paths: Sequence[Path]) -> list[NodeResult]:
    """The results in files, or in all ``*.json`` of folders. Raises ValueError if no file holds one.

    A file that holds none beside others that do is a node without a result, by the file's name: one of 256 that died
    while it wrote must not cost the others theirs. A second result of one node replaces the first if it is newer.
    """
    every: list[Path] = []
    for path in paths:
        every += sorted(path.glob("*.json")) if os.path.isdir(path) else [path]
    if not every:
        raise ValueError(f"no *.json in {paths[0]}")
    found: dict[str, NodeResult] = {}
    problems: dict[Path, str] = {}
    for path in every:
        try:
            result = _from_file(path)
        except (OSError, ValueError) as error:
            problems[path] = getattr(error, "strerror", None) or str(error)
            continue
        before = found.get(result.node)
        if before is None or (result.time or 0) >= (before.time or 0):
            found[result.node] = result
    if not found:
        path, problem = next(iter(problems.items()))
        raise ValueError(f"{path}: {problem}")
    for path, problem in problems.items():
        found.setdefault(path.stem, NodeResult(path.stem, problem=problem))
    return list(found.values())


def _from_file(path: Path) -> NodeResult:
    """Raises OSError, ValueError."""
    with path.open("rb") as f:
        raw = f.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES} bytes")
    return parse(raw)
