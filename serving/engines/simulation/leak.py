"""Memory that a simulated replica takes and does not give back while its fault ``leak`` lasts."""

from __future__ import annotations

import asyncio

_TICK = 0.1  # seconds between two pieces
_MIB = 2**20


class Leak:
    """Grows on the running event loop. Its pages are written to, so the process's resident memory grows by as much."""

    __slots__ = ("_limit", "_pieces", "_rate", "_taken", "_timer")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None
        self._rate = self._limit = 0.0

    def set(self, values: dict[str, float] | None) -> None:
        """Begin anew with ``mib_per_second`` up to ``limit_mib``; None: give all back and stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pieces.clear()
        self._taken = 0
        if values is not None:
            self._rate, self._limit = values["mib_per_second"] * _MIB, values["limit_mib"] * _MIB
            self._grow()

    def _grow(self) -> None:
        size = int(min(self._rate * _TICK, self._limit - self._taken))
        if size > 0:
            self._pieces.append(b"\x01" * size)
            self._taken += size
            self._timer = asyncio.get_running_loop().call_later(_TICK, self._grow)
