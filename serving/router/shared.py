"""What workers see of each other's open requests: one row a worker in memory that all of them map.

Each worker writes only its own row, one cell when it assigns a request or releases it, and reads the others'
every REFRESH_SECONDS. So a count is exact for one's own requests and up to that old for the others'. A worker
that dies leaves its row as it was; the master empties it. Linux only (memfd).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serving.fleet.replica import Replica

if TYPE_CHECKING:
    import numpy as np

#: Cells of a row. Pages that nobody writes take no memory, so the room is there from the start.
MAX_REPLICAS = 8192
REFRESH_SECONDS = 0.02
_INT, _FLOAT = 4, 8


class Counts:
    """Rows of open requests (int32) and of their estimated work in tokens (float64), by worker and replica.

    cells, work: this worker's own row, by ``replica.index``; writing ``cells[index]`` is all that a request costs.
    """

    def __init__(self, memory: memoryview, workers: int, mine: int | None) -> None:
        size = workers * MAX_REPLICAS
        work = memory[: size * _FLOAT].cast("d")
        cells = memory[size * _FLOAT : size * (_FLOAT + _INT)].cast("i")
        self.workers = workers
        self.mine = mine
        self._all = (cells, work)
        start = (mine or 0) * MAX_REPLICAS
        self.work = work[start : start + MAX_REPLICAS]
        self.cells = cells[start : start + MAX_REPLICAS]
        self._arrays: tuple[Any, Any] | None = None
        self._seen: Any = ()
        self._seen_work: Any = ()

    @classmethod
    def create(cls, workers: int) -> tuple[Counts, int]:
        """The master's view, without a row of its own, and the file that workers attach to. Raises OSError."""
        fd = os.memfd_create("exaserve-counts")
        os.truncate(fd, _bytes(workers))
        return cls._of(fd, workers, None), fd

    @classmethod
    def attach(cls, fd: int, workers: int, mine: int) -> Counts:
        """A worker's view. Raises OSError or ValueError if ``fd`` is not such a file."""
        return cls._of(fd, workers, mine)

    @classmethod
    def local(cls) -> Counts:
        """For one process alone."""
        return cls(memoryview(bytearray(_bytes(1))), 1, 0)

    @classmethod
    def _of(cls, fd: int, workers: int, mine: int | None) -> Counts:
        return cls(memoryview(mmap.mmap(fd, _bytes(workers))), workers, mine)

    def _rows(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Both tables as arrays. A worker without others never gets here, and is spared numpy: 130 ms, 13 MiB."""
        if self._arrays is None:
            import numpy as np

            cells, work = self._all
            shape = (self.workers, MAX_REPLICAS)
            self._arrays = (
                np.frombuffer(cells, np.int32).reshape(shape),
                np.frombuffer(work, np.float64).reshape(shape),  # type: ignore[arg-type]
            )
        return self._arrays

    def empty(self, worker: int) -> None:
        """That worker has no request open any more: it is gone."""
        for rows in self._rows():
            rows[worker] = 0

    def clear(self, index: int) -> None:
        """That replica's number gets a new owner."""
        for rows in self._rows():
            rows[:, index] = 0

    def refresh(self, by_index: Sequence[Replica | None]) -> None:
        """Set ``others`` and ``others_work`` of the replicas (``by_index[i].index == i``; None where there is none).

        For the master, which has no row, the others are all workers. Only replicas whose sums changed are touched.
        """
        n = len(by_index)
        all_cells, all_work = self._rows()
        cells = all_cells[:, :n].sum(axis=0, dtype="int64")
        work = all_work[:, :n].sum(axis=0)
        if self.mine is not None:
            cells -= all_cells[self.mine, :n]
            work -= all_work[self.mine, :n]
        if len(self._seen) != n:
            self._seen, self._seen_work = cells - 1, work - 1.0  # all differ
        changed = ((cells != self._seen) | (work != self._seen_work)).nonzero()[0]
        self._seen, self._seen_work = cells, work
        for i, others, others_work in zip(
            changed.tolist(), cells[changed].tolist(), work[changed].tolist(), strict=True
        ):
            replica = by_index[i]
            if replica is not None:
                replica.others = others
                # The row may have changed between the two sums: never below nothing.
                replica.others_work = others_work if others_work > 0.0 else 0.0

    def open(self, worker: int) -> int:
        """All open requests of one worker."""
        return int(self._rows()[0][worker].sum())


def _bytes(workers: int) -> int:
    return workers * MAX_REPLICAS * (_FLOAT + _INT)
