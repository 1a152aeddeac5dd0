"""Finds the processes of each replica on this node: the server and every process that works for it.

A replica is found by ExaServe's own record (``stack.json`` in the run folder), else by the command line of its
server, else by the titles that engines give their workers, gathered by container, pod or Slurm step (cgroup). To
it belong all descendants of the server, those of the server's session (they stay in it when their parent dies),
and engine processes that share a container with this one server only. What is measured of them is up to the
collectors. Reads ``settings.procfs`` only: with ``/host/proc`` it sees the node's processes from a container.

It takes about 0.05 ms for each process of the node. One that ends while it is read costs nothing.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from exporters import commandline, proctable
from exporters._replica_names import Leader, named
from exporters.proctable import Row
from exporters.settings import MAX_REPLICAS, Settings

#: Processes of one replica; 8 GPUs make about 20.
MAX_PROCESSES = 1024

_RECORD_BYTES = 4 * 2**20
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_SLURM = re.compile(r"job_(\d+)/step_(\w+)")


@dataclass(frozen=True, slots=True)
class Process:
    """One process. ticks: its start in clock ticks since boot (proc(5), stat), which tells it from a later one
    with the same pid. command: its name, at most 15 characters."""

    pid: int
    ticks: int
    command: str


@dataclass(frozen=True, slots=True)
class ReplicaProcesses:
    """The processes of one replica on this node.

    name: value of the label ``replica``: as in ``settings.replicas`` where host and port agree, else ExaServe's
    name of it, else ``host:port`` of its command line, else what it runs in.
    found_by: ``run_folder``, ``command_line`` or ``cgroup``.
    processes: its server first, then the others by pid; never empty, at most MAX_PROCESSES.
    """

    name: str
    found_by: str
    processes: tuple[Process, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(p.pid for p in self.processes)


def find(settings: Settings) -> list[ReplicaProcesses]:
    """The replicas of this node by name; empty if there are none or procfs can't be read. Raises nothing."""
    procfs = settings.procfs
    rows = proctable.rows(procfs)
    tree = _Tree(rows)
    leaders = _recorded(settings, rows)
    owned = {pid for leader in leaders for pid in tree.of_server(leader.row.pid)}
    lines = proctable.command_lines(procfs, [r for r in rows.values() if r.pid not in owned])
    leaders += _servers(tree, lines)
    members = {leader.row.pid: tree.of_server(leader.row.pid) for leader in leaders}
    owned = {pid for pids in members.values() for pid in pids}
    loose = {pid: argv for pid, argv in lines.items() if pid not in owned}
    leaders += _adopt(procfs, tree, members, loose)
    found = []
    for leader, name in zip(leaders, named(settings, leaders), strict=True):
        first = leader.row.pid
        pids = [first, *sorted(members[first] - {first})]
        processes = tuple(
            Process(p, rows[p].ticks, rows[p].command) for p in pids[:MAX_PROCESSES] if p in rows
        )
        found.append(ReplicaProcesses(name, leader.found_by, processes))
    return sorted(found, key=lambda r: r.name)[:MAX_REPLICAS]


def is_same(procfs: Path, process: Process) -> bool:
    """Whether this very process is still there: not gone, no zombie, and its pid is not another's by now."""
    now = proctable.row(procfs, process.pid)
    return now is not None and now.ticks == process.ticks


class _Tree:
    """The process table by parent and by session."""

    def __init__(self, rows: Mapping[int, Row]) -> None:
        self.rows = rows
        self._children: dict[int, list[int]] = defaultdict(list)
        self._sessions: dict[int, list[int]] = defaultdict(list)
        for row in rows.values():
            self._children[row.parent].append(row.pid)
            self._sessions[row.session].append(row.pid)

    def below(self, *pids: int) -> set[int]:
        """These processes and all their descendants."""
        begin, found = list(pids), set[int]()
        while begin:
            pid = begin.pop()
            if pid not in found:
                found.add(pid)
                begin += self._children.get(pid, ())
        return found

    def of_server(self, pid: int) -> set[int]:
        """The server with all its descendants, and the session that it leads with theirs."""
        leads = self.rows[pid].session == pid
        return self.below(pid, *(self._sessions[pid] if leads else ()))

    def above(self, pid: int) -> Iterable[int]:
        """Its parent, that one's parent and so on."""
        seen = {pid}
        while (row := self.rows.get(pid)) is not None and row.parent not in seen:
            pid = row.parent
            seen.add(pid)
            yield pid


def _recorded(settings: Settings, rows: Mapping[int, Row]) -> list[Leader]:
    """Replicas of ExaServe's own stack (``serving/record.py`` writes the file) that run now."""
    if settings.run_folder is None:
        return []
    text = proctable.read(settings.run_folder / "stack.json", _RECORD_BYTES)
    try:
        parts = json.loads(text or "{}").get("parts") or []
        entries = [p for p in parts if isinstance(p, dict) and isinstance(p.get("identity"), dict)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []
    boot, known = proctable.boot_id(settings.procfs), {r.name for r in settings.replicas}
    found = []
    for part in entries[:MAX_REPLICAS]:
        name, identity = str(part.get("name"))[:100], part["identity"]
        pid = identity.get("pid")
        row = rows.get(pid) if isinstance(pid, int) else None
        if not (name.startswith("replica-") or name in known) or row is None:
            continue
        # Another process with this pid: one after it, one after a reboot, one of another pid namespace.
        if row.ticks != identity.get("ticks") or (boot and identity.get("boot") not in (boot, "", None)):
            continue
        found.append(Leader(row, "run_folder", name, str(part.get("address") or ""), None))
    return found


def _servers(tree: _Tree, lines: Mapping[int, list[str]]) -> list[Leader]:
    """Servers by command line. A forked child has its parent's: only the topmost counts."""
    servers = {pid: server for pid, argv in lines.items() if (server := commandline.server_of(argv))}
    return [
        Leader(tree.rows[pid], "command_line", "", "", server)
        for pid, server in servers.items()
        if not any(above in servers for above in tree.above(pid))
    ]


def _adopt(
    procfs: Path, tree: _Tree, members: dict[int, set[int]], loose: Mapping[int, list[str]]
) -> list[Leader]:
    """Engine processes below no server: added to the one server of their container, else replicas themselves.

    ``members`` is added to. Gives the new replicas, one a container (a tree of processes where there is none).
    """
    titled = {pid for pid, argv in loose.items() if commandline.is_title(argv)}
    rays = {pid for pid, argv in loose.items() if commandline.is_ray_worker(argv)}
    if not titled | rays:
        return []
    homes: dict[str, list[int]] = defaultdict(list)
    for leader in members:
        homes[_home(procfs, leader)].append(leader)
    fresh: dict[str, set[int]] = defaultdict(set)
    for pid in sorted(titled | rays):
        home = _home(procfs, pid)
        found_here = tree.below(pid)
        hosts = homes.get(home, []) if home else []
        if len(hosts) == 1:
            members[hosts[0]] |= found_here
        elif pid in titled and not hosts:
            top = next((a for a in reversed([pid, *tree.above(pid)]) if a in titled), pid)
            above = tree.rows[top].parent
            fresh[home or f"pid-{above if above > 1 and above in tree.rows else top}"] |= found_here
    found = []
    for home, pids in fresh.items():
        first = min(pids, key=lambda p: (tree.rows[p].ticks, p))
        members[first] = pids
        found.append(Leader(tree.rows[first], "cgroup", home, "", None))
    return found


def _home(procfs: Path, pid: int) -> str:
    """The container, pod or Slurm step that a process is in, short enough for a label; empty if none is told."""
    text = proctable.read(f"{procfs}/{pid}/cgroup", 16_384) or ""
    if found := _CONTAINER.findall(text):
        return str(found[-1])[:12]
    if pod := _POD.search(text):
        return f"pod-{pod[1].replace('_', '-')}"
    if step := _SLURM.search(text):
        return f"slurm-{step[1]}.{step[2][:40]}"
    return ""
