"""KV blocks of the simulated engine and the prefix cache in them, as vLLM manages them.

A full block is known by the hash of all tokens up to its end. A block that nobody uses any more keeps its
content until it is needed for something else, least recently used first; a prompt that begins with what such
blocks hold need not compute it again. Which request gets blocks when is decided in ``scheduler.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Unused blocks that are remembered for the prefix cache, at most: about 100 bytes each.
MAX_REMEMBERED = 8192


class Blocks:
    """The blocks of one engine.

    total: blocks that requests can use. size: tokens a block. free: blocks that nobody uses, those that still
    hold something for the prefix cache among them.
    """

    __slots__ = ("_idle", "_remembered", "_users", "caching", "free", "size", "total")

    def __init__(self, total: int, size: int, caching: bool) -> None:
        self.total = self.free = total
        self.size = size
        self.caching = caching
        self._users: dict[int, int] = {}  # hash of a block in use -> requests that use it
        self._idle: dict[int, None] = {}  # hashes of unused blocks, least recently used first
        self._remembered = min(total, MAX_REMEMBERED)

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return 1.0 - self.free / self.total

    def take(self, count: int) -> bool:
        """Get ``count`` empty blocks; False, and nothing taken, if there are not so many."""
        if count > self.free:
            return False
        self.free -= count
        idle = self._idle
        while len(idle) > self.free:
            del idle[next(iter(idle))]
        return True

    def found(self, hashes: Sequence[int], limit: int) -> tuple[int, int]:
        """How many of the first ``limit`` hashes are here without a gap, and how many of those are unused."""
        count = unused = 0
        for value in hashes[:limit]:
            if value in self._idle:
                unused += 1
            elif value not in self._users:
                break
            count += 1
        return count, unused

    def share(self, hashes: Sequence[int]) -> None:
        """Use the blocks of these hashes, which ``found`` has found, too."""
        for value in hashes:
            if value in self._idle:
                del self._idle[value]
                self._users[value] = 1
                self.free -= 1
            else:
                self._users[value] += 1

    def publish(self, value: int) -> bool:
        """A block taken before is full: others may share it. False if another one holds the same already."""
        if value in self._users or value in self._idle:
            return False
        self._users[value] = 1
        return True

    def give_back(self, shared: Sequence[int], plain: int) -> None:
        """Stop using the blocks of the hashes ``shared`` (shared or published) and ``plain`` others."""
        self.free += plain
        users, idle = self._users, self._idle
        for value in reversed(shared):  # the end of a prompt is of use to fewer others than its beginning
            left = users[value] - 1
            if left:
                users[value] = left
            else:
                del users[value]
                idle[value] = None
                self.free += 1
        while len(idle) > self._remembered:
            del idle[next(iter(idle))]


def hashes_of(prompt: Sequence[str | int], size: int, before: Sequence[int] = ()) -> list[int]:
    """The hash of each full block of ``prompt`` (tokens or pieces of text), after those in ``before``.

    Each depends on all tokens up to its end. Hashes of one process only.
    """
    found = list(before)
    previous = found[-1] if found else 0
    for start in range(len(found) * size, len(prompt) - size + 1, size):
        previous = hash((previous, *prompt[start : start + size]))
        found.append(previous)
    return found
