"""Processes moved into a control group of ours and back to where they were (cgroup v1)."""

from __future__ import annotations

import re
from pathlib import Path

from chaos import steps
from chaos.fault import Target
from chaos.steps import Step

ROOT = "/sys/fs/cgroup"
# $1: our group, $2: where unknown processes (children born in it) go, the rest: pid=group.
BACK = (
    'g=$1 other=$2; shift 2; [ -d "$g" ] || exit 0; for p in $(cat "$g/cgroup.procs"); do h=$other;'
    ' for a in "$@"; do [ "${a%%=*}" = "$p" ] && h=${a#*=}; done; echo "$p" > "$h/cgroup.procs"; done; rmdir "$g"'
)
# A process may have ended since; the others count.
MOVE = 'g=$1; shift; for p in "$@"; do [ ! -d "/proc/$p" ] || echo "$p" > "$g/cgroup.procs"; done'


def name(target: Target, what: str) -> str:
    """Of a group for a node; ``exaserve lab down`` removes those of its lab by that name."""
    assert target.node is not None
    place = target.place.name.rpartition(":")[2]
    return f"exal-{re.sub(r'[^A-Za-z0-9.-]', '-', f'{place}-{target.node.name}')}-{what}"


def group_of(pid: int, controller: str) -> str | None:
    """Folder of the process's group in the v1 hierarchy of the controller; None if it is gone or there is none."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return f"{ROOT}/{controller}{path}".rstrip("/")
    return None


def move(group: str, pids: list[int]) -> Step:
    return steps.run(["sh", "-c", MOVE, "sh", group, *map(str, pids)])


def back(group: str, homes: dict[int, str]) -> Step:
    """homes: pid -> folder of the group that it came from. Processes born in ours go where the first came from."""
    pairs = [f"{pid}={home}" for pid, home in homes.items()]
    return steps.run(["sh", "-c", BACK, "sh", group, next(iter(homes.values())), *pairs])
