"""Which replicas the router has: named by hand or in a file, each with the number that all its processes use.

A replica that leaves keeps its number until every worker has nothing open on it any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from serving.config_router import DEFAULT_POOL
from serving.fleet.discovery import static
from serving.fleet.replica import Replica
from serving.router.shared import MAX_REPLICAS


class ReplicaSource(Protocol):
    """A file of replicas (fleet/discovery/file.py)."""

    error: str | None

    def changed(self) -> list[Replica] | None: ...

    def again(self) -> list[Replica] | None: ...


class Members:
    """current: what is served, in order. leaving: replica's number -> workers that still have it open.

    Raises ValueError if there are more than MAX_REPLICAS.
    """

    def __init__(self, replicas: Sequence[Replica], file: ReplicaSource | None = None) -> None:
        self.current: list[Replica] = []
        self.by_index: list[Replica | None] = []
        self.leaving: dict[int, set[int]] = {}
        self._file = file
        self._error: str | None = None
        self.take(replicas, [])

    def at(self, index: int) -> Replica | None:
        return self.by_index[index] if 0 <= index < len(self.by_index) else None

    def named(self, name: str) -> Replica | None:
        """Of the current ones."""
        return next((r for r in reversed(self.current) if r.name == name), None)

    def shown(self) -> list[Replica]:
        """For people and metrics: the current ones and those that leave; of one name only the newest."""
        leaving = [r for i in list(self.leaving) if (r := self.at(i)) is not None]
        newest = {r.name: r for r in (*leaving, *self.current)}
        return [
            *(r for r in self.current if newest[r.name] is r),
            *(r for r in leaving if newest[r.name] is r),
        ]

    def read(self, forced: bool) -> list[Replica] | None:
        """The replicas in the file, if it changed (``forced``: anyway) and is well. A large one takes a second."""
        if self._file is None:
            return None
        return self._file.again() if forced else self._file.changed()

    def complaint(self) -> str | None:
        """What is wrong with the file, once."""
        error = self._file.error if self._file is not None else None
        new, self._error = error != self._error, error
        return error if new else None

    def bridge(self, new: Sequence[Replica]) -> list[Replica]:
        """``new``, and all that are here now if none of ``new`` is known to take requests yet."""
        known = {(r.name, r.url): r for r in self.current}
        after = {(r.name, r.url) for r in new}
        if any(key in known and known[key].in_rotation for key in after) or not new:
            return list(new)
        return [*(r for key, r in known.items() if key not in after), *new]

    def take(self, new: Sequence[Replica], workers: Sequence[int]) -> tuple[list[Replica], list[Replica]]:
        """(added, removed). ``workers``: those that know the removed ones. Raises ValueError, changing nothing."""
        removed, added = self._differences(new)
        merged = static.merge(self.current, new)
        if len(merged) + len(self.leaving) + len(removed) > MAX_REPLICAS:
            raise ValueError(f"{len(merged)} replicas are more than a router takes ({MAX_REPLICAS})")
        for replica in removed:
            self.leaving[replica.index] = set(workers)
        free = iter([i for i, r in enumerate(self.by_index) if r is None])
        for replica in added:
            replica.index = next(free, len(self.by_index))
            if replica.index == len(self.by_index):
                self.by_index.append(replica)
            else:
                self.by_index[replica.index] = replica
        self.current = merged
        return added, removed

    def _differences(self, new: Sequence[Replica]) -> tuple[list[Replica], list[Replica]]:
        before = {(r.name, r.url) for r in self.current}
        after = {(r.name, r.url) for r in new}
        removed = [r for r in self.current if (r.name, r.url) not in after]
        return removed, [r for r in new if (r.name, r.url) not in before]

    def forgotten(self, worker: int, index: int) -> Replica | None:
        """That worker has nothing open there any more. The replica, if it was the last one."""
        waited = self.leaving.get(index)
        if waited is None:
            return None
        waited.discard(worker)
        if waited:
            return None
        del self.leaving[index]
        replica, self.by_index[index] = self.by_index[index], None
        return replica

    def by_pool(self, pools: Mapping[str, Any]) -> dict[str, list[Replica]]:
        """Replicas of each pool by its patterns; without pools all are the pool ``default``."""
        if not pools:
            return {DEFAULT_POOL: list(self.current)}
        return {name: [r for r in self.current if pool.takes(r.name)] for name, pool in pools.items()}
