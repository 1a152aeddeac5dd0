"""A ring of virtual nodes for consistent hashing: a key's replicas in an order that hardly changes with the fleet.

Points follow from names alone, by hashes that are the same in every process and after every restart. Whether
a replica may take a request, and how loaded it is, belongs to the policy that walks the ring.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from serving.fleet.replica import Replica

#: Virtual nodes of a replica: shares of the keys vary by 1 / sqrt of it, 12 % (1 standard deviation).
POINTS = 64
#: The low bits of a point name its owner's slot, the others are its place.
_OWNER_BITS = 16
OWNER_MASK = (1 << _OWNER_BITS) - 1
_PLACE_MASK = np.uint64(0xFFFF_FFFF_FFFF_FFFF ^ OWNER_MASK)
_64 = 0xFFFF_FFFF_FFFF_FFFF
#: Multipliers that spread 64-bit numbers (the finaliser of splitmix64).
_GOLDEN, _M1, _M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def seed_of(name: str) -> int:
    """64 bits that follow from the name."""
    return int.from_bytes(
        hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )


def _places(seeds: list[int]) -> np.ndarray:
    """len(seeds) x POINTS places on the ring, 64 bits each."""
    steps = np.arange(1, POINTS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    z = np.array(seeds, dtype=np.uint64)[:, None] + steps[None, :]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
    return z ^ (z >> np.uint64(31))


class Ring:
    """Replicas on a ring.

    ``points`` are sorted, ``owners[point & OWNER_MASK]`` is a point's replica, ``salts`` its seed for thinning.
    ``update`` alone writes them. Up to 65,536 replicas.
    """

    __slots__ = ("_first", "_seats", "_shift", "_sorted", "owners", "points", "salts")

    def __init__(self) -> None:
        self.owners: list[Replica | None] = []
        self.salts: list[int] = []
        self.points: array[int] = array("Q")
        self._seats: dict[str, int] = {}
        self._sorted = np.empty(0, dtype=np.uint64)
        self._first: array[int] = array("I")
        self._shift = 64

    def __len__(self) -> int:
        """Number of replicas."""
        return len(self._seats)

    def update(self, replicas: Sequence[Replica]) -> None:
        """Make ``replicas`` the members; of two of one name the last counts. Raises ValueError above 65,536.

        Only points of those that came or went change, so only their keys move.
        """
        wanted = {r.name: r for r in replicas}
        if len(wanted) > OWNER_MASK + 1:
            raise ValueError(f"{len(wanted)} replicas; a ring holds at most {OWNER_MASK + 1}")
        gone = [seat for name, seat in self._seats.items() if name not in wanted]
        points = self._sorted
        if gone:
            leaving = np.zeros(OWNER_MASK + 1, dtype=bool)
            leaving[gone] = True
            points = points[~leaving[(points & np.uint64(OWNER_MASK)).astype(np.int64)]]
            for seat in gone:
                self.owners[seat] = None
            self._seats = {name: seat for name, seat in self._seats.items() if name in wanted}
        free = [seat for seat, owner in enumerate(self.owners) if owner is None]
        seeds, seats = [], []
        for name, replica in wanted.items():
            seat = self._seats.get(name, -1)
            if seat < 0:
                seat = free.pop() if free else len(self.owners)
                if seat == len(self.owners):
                    self.owners.append(replica)
                    self.salts.append(0)
                self._seats[name] = seat
                self.salts[seat] = seed_of(name)
                seeds.append(self.salts[seat])
                seats.append(seat)
            self.owners[seat] = replica
        if seats:
            new = (_places(seeds) & _PLACE_MASK) | np.array(seats, dtype=np.uint64)[:, None]
            new = np.sort(new.ravel())
            points = np.insert(points, np.searchsorted(points, new), new) if len(points) else new
        if seats or gone:
            self._publish(points)

    def _publish(self, points: np.ndarray) -> None:
        self._sorted = points
        self.points = array("Q", points.tobytes())
        # Where each of many equal parts of the ring begins: finding a key's place takes one look here and about
        # three steps, however many replicas there are. (Smaller parts: fewer steps, but more memory to miss.)
        bits = max(1, len(points).bit_length() - 2)
        self._shift = 64 - bits
        counts = np.bincount((points >> np.uint64(self._shift)).astype(np.int64), minlength=1 << bits)
        first = np.zeros(1 << bits, dtype=np.uint32)
        np.cumsum(counts[:-1], out=first[1:])
        self._first = array("I", first.tobytes())

    def start(self, key: int) -> int:
        """Index into ``points`` of the first point at or after ``key`` (0 to 2**64 - 1). The ring is not empty."""
        points = self.points
        i = self._first[key >> self._shift]
        n = len(points)
        while i < n and points[i] < key:
            i += 1
        return i if i < n else 0


def accepts(key: int, salt: int, share: float) -> bool:
    """Whether a replica with this share (0-1) of a full weight takes the key: for ``share`` of all keys, always
    the same ones, and more of them as the share grows. So a weight moves no other key, and rebuilds nothing."""
    mixed = ((key ^ salt) * _M1) & _64
    mixed = ((mixed ^ (mixed >> 29)) * _M2) & _64
    return (mixed >> 11) < share * 9007199254740992.0  # 2**53
