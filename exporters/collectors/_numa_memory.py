"""Adds up the memory of a replica's processes by node: what is mapped by several of them once, and what is remote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exporters.collectors._numa_maps import Key, Reading


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a replica. by_node: bytes by (node, kind ``own`` or ``file``). remote: bytes by kind.

    at: monotonic time of its oldest reading. seconds: what the readings took together.
    """

    at: float
    seconds: float
    by_node: Mapping[tuple[int, str], int] = field(default_factory=dict)
    remote: Mapping[str, int] | None = None

    def share(self, *kinds: str) -> float | None:
        """Remote bytes of these kinds (0-1 of all bytes of them); None if there are none, or it is not known."""
        total = sum(size for (_, kind), size in self.by_node.items() if kind in kinds)
        if self.remote is None or total == 0:
            return None
        return sum(self.remote.get(kind, 0) for kind in kinds) / total


def add_up(parts: Sequence[tuple[Reading, frozenset[int] | None]]) -> Memory:
    """The memory of all processes: the reading of each, and the nodes whose memory is local to it (None: not known).

    Of a file that several map, the process counts that has the most of it in its page table: which pages each has
    is not told, and the sum would count most of them twice. Local to it is what is local to any of them.
    """
    by_node: dict[tuple[int, str], int] = defaultdict(int)
    remote: dict[str, int] = defaultdict(int)
    known = all(local is not None for _, local in parts)
    files: dict[Key, Mapping[tuple[int, str], int]] = {}
    near: dict[Key, set[int]] = defaultdict(set)

    def count(pages: Mapping[tuple[int, str], int], local: frozenset[int] | set[int]) -> None:
        for (node, kind), size in pages.items():
            by_node[node, kind] += size
            if node not in local:
                remote[kind] += size

    for reading, local in parts:
        count(reading.private, local or frozenset())
        for key, pages in reading.shared.items():
            near[key] |= local or frozenset()
            if sum(pages.values()) > sum(files.get(key, {}).values()):
                files[key] = pages
    for key, pages in files.items():
        count(pages, near[key])
    return Memory(
        min(reading.at for reading, _ in parts),
        sum(reading.seconds for reading, _ in parts),
        dict(by_node),
        dict(remote) if known else None,
    )
