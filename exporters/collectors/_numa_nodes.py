"""The NUMA nodes of a machine, as sysfs tells them, and what is near to what.

Node numbers have gaps; a node may have memory and no CPUs (memory expanders, GPU memory) or CPUs and no memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exporters.proctable import read

#: Nodes that are looked at; the kernel's own limit on x86.
MAX_NODES = 1024
#: Highest number in a list of CPUs or nodes that is believed; the kernel's limit is 8,192 CPUs.
_HIGHEST = 65_536

_FILE_BYTES = 65_536
_MEMORY = re.compile(r"\b(MemTotal|MemFree):\s*(\d+) kB")


@dataclass(frozen=True, slots=True)
class Node:
    """cpus: those online, None if not told. total, free: bytes, None if not told. allocations: numastat's numbers.
    distances: to every node by number, 10 for itself; empty if not told."""

    cpus: frozenset[int] | None = None
    total: int | None = None
    free: int | None = None
    allocations: Mapping[str, int] = field(default_factory=dict)
    distances: Mapping[int, int] = field(default_factory=dict)


def nodes(sysfs: Path) -> dict[int, Node]:
    """The online nodes by number; empty on a kernel without NUMA."""
    folder = sysfs / "devices/system/node"
    try:
        names = [p.name for p in folder.iterdir() if re.fullmatch(r"node\d{1,5}", p.name)]
    except OSError:
        return {}
    numbers = sorted(int(name[4:]) for name in names)[:MAX_NODES]
    return {number: _node(f"{folder}/node{number}", numbers) for number in numbers}


def _node(folder: str, numbers: list[int]) -> Node:
    cpus = read(f"{folder}/cpulist", _FILE_BYTES)
    memory = {k: int(v) * 1024 for k, v in _MEMORY.findall(read(f"{folder}/meminfo", _FILE_BYTES) or "")}
    allocations = {}
    for line in (read(f"{folder}/numastat", _FILE_BYTES) or "").splitlines():
        name, _, number = line.partition(" ")
        if number.isascii() and number.isdigit():
            allocations[name] = int(number)
    # One number for each online node, in their order: with gaps, the place is not the node's number.
    distances = (read(f"{folder}/distance", _FILE_BYTES) or "").split()
    told = len(distances) == len(numbers) and all(d.isascii() and d.isdigit() for d in distances)
    return Node(
        None if cpus is None else parse_list(cpus),
        memory.get("MemTotal"),
        memory.get("MemFree"),
        allocations,
        dict(zip(numbers, map(int, distances), strict=True)) if told else {},
    )


def parse_list(text: str) -> frozenset[int] | None:
    """The numbers of a kernel list like ``0-3,8``; None if it is something else. Empty text is an empty list."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            return None
        begin, end = int(first), int(last or first)
        if end >= _HIGHEST:
            return None
        found.update(range(begin, end + 1))
    return frozenset(found)


class Machine:
    """The nodes, and which are near to a device or to CPUs. Numbers that are no online node are not known."""

    def __init__(self, found: Mapping[int, Node]) -> None:
        self.nodes = found
        self.with_cpus = frozenset(n for n, node in found.items() if node.cpus)
        self.with_memory = frozenset(n for n, node in found.items() if node.total)
        self._of_cpu = {cpu: n for n, node in found.items() for cpu in node.cpus or ()}
        self._by_list: dict[str, frozenset[int] | None] = {}

    @property
    def single(self) -> bool:
        """Whether all CPUs and all memory are one node's."""
        return len(self.with_cpus | self.with_memory) == 1

    def of_cpus(self, text: str) -> frozenset[int] | None:
        """The nodes of a list of CPUs; those that are offline don't count. None if it can't be read."""
        if text not in self._by_list:
            cpus = parse_list(text)
            of = self._of_cpu
            self._by_list[text] = None if cpus is None else frozenset(of[c] for c in cpus if c in of)
        return self._by_list[text]

    def cpus_near(self, homes: Iterable[int]) -> frozenset[int]:
        """The nodes whose CPUs are local to ``homes``: themselves, or the nearest if one has no CPUs."""
        found: set[int] = set()
        for home in homes:
            found |= {home} if home in self.with_cpus else self._nearest(home, self.with_cpus)
        return frozenset(found)

    def memory_near(self, homes: Iterable[int]) -> frozenset[int]:
        """The nodes whose memory is local to ``homes``.

        Themselves and the nodes without CPUs that are nearest to them; for one that has neither, the nearest
        with memory.
        """
        found: set[int] = set()
        bare = self.with_memory - self.with_cpus
        for home in homes:
            near = {m for m in bare if home in self._nearest(m, self.with_cpus)}
            near |= {home} & self.with_memory
            found |= near or self._nearest(home, self.with_memory)
        return frozenset(found)

    def _nearest(self, node: int, among: frozenset[int]) -> set[int]:
        distances = self.nodes[node].distances if node in self.nodes else {}
        there = {n: distances[n] for n in among if n in distances}
        return {n for n, d in there.items() if d == min(there.values())} if there else set()
