"""What storage faults need to know of a node: what is mounted, and what a read, a write or a listing gives there.

Runs ``storage_probe.py`` on the node and reads ``/proc/self/mountinfo`` (proc(5)) there; changes nothing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.place import Node

#: Seconds that the node gets beyond the probe's own limit, to start Python or to answer over ssh; where it is busy it
#: needs more than the tenth of one that this takes otherwise.
_SLACK = 8.0
#: ``limit`` of what is read before a fault: nothing is to hang there yet, and half a reading compares with nothing.
BEFORE = 10.0
_PROBE = Path(__file__).with_name("storage_probe.py")
# The alarm ends it where the file system hangs.
_FIND = """
import fnmatch, os, signal, sys
signal.alarm(4)
seen, best = 0, (0, "")
for folder, folders, files in os.walk(sys.argv[1]):
    for name in files:
        path = os.path.join(folder, name)
        short = os.path.relpath(path, sys.argv[1])
        seen += 1
        if fnmatch.fnmatchcase(short, sys.argv[2]) and os.path.isfile(path) and not os.path.islink(path):
            best = max(best, (os.path.getsize(path), short))
    if seen > 4096:
        break
print(best[1])
"""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. device: ``major:minor``. options: per mount; super_options: of the file system."""

    point: str
    root: str
    device: str
    fs_type: str
    source: str
    options: tuple[str, ...]
    super_options: tuple[str, ...]


def python(node: Node) -> str:
    """The interpreter on the node; on this machine ours, elsewhere Debian's."""
    return "python3" if node.remote else sys.executable


def measure(node: Node, folder: str, *do: str, limit: float = 1.5, **ask: Any) -> dict[str, Any]:
    """What the probe found (see ``storage_probe.py``); ``{"hung": None, "errors": {"node": text}}`` if it can't run.

    limit: seconds after which an operation counts as hung.
    """
    question = json.dumps({"folder": folder, "do": do, "limit": limit, **ask})
    argv = [python(node), "-I", "-c", _PROBE.read_text(), question]
    said = node.read(argv, timeout=limit + _SLACK)
    try:
        answer: dict[str, Any] = json.loads(said.stdout)
        return answer
    except ValueError:
        words = said.stderr.strip().splitlines()
        return {"hung": None, "errors": {"node": words[-1] if words else f"exit {said.returncode}"}}


def mounts(node: Node) -> list[Mount]:
    """Everything mounted as the node sees it, in the order of mounting; empty if it can't be read."""
    said = node.read(["cat", "/proc/self/mountinfo"])
    return [found for line in said.stdout.splitlines() if (found := _parse(line)) is not None]


def mount_at(node: Node, path: str) -> Mount | None:
    """The topmost mount exactly at the path; None if it is no mount point."""
    found = [m for m in mounts(node) if m.point == path]
    return found[-1] if found else None


def mount_of(node: Node, path: str) -> Mount | None:
    """The mount that the path lies on."""
    best: Mount | None = None
    for mount in mounts(node):
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def some_file(node: Node, folder: str, pattern: str = "*") -> str | None:
    """The largest regular file below the folder whose relative path fits; None without one that holds anything.

    The pattern is a shell pattern in which ``*`` also matches ``/``. Looks at up to 4096 files, for 4 s.
    """
    said = node.read([python(node), "-I", "-c", _FIND, folder, pattern], timeout=4.0 + _SLACK)
    return said.stdout.strip() or None


def _parse(line: str) -> Mount | None:
    left, dash, right = line.partition(" - ")
    words, kind = left.split(), right.split()
    if not dash or len(words) < 6 or len(kind) < 2:
        return None
    point, root, source = plain(words[4]), plain(words[3]), plain(kind[1])
    superblock = tuple(kind[2].split(",")) if len(kind) > 2 else ()
    return Mount(point, root, words[2], kind[0], source, tuple(words[5].split(",")), superblock)


def plain(text: str) -> str:
    """mountinfo writes blanks, tabs, line ends and backslashes as octal."""
    for octal, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, char)
    return text
