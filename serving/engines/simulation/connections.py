"""The open connections of a process of simulated replicas, and whom each belongs to.

Bytes on them are in ``http.py``.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .http import Connection, HttpRequest

#: uvicorn, which vLLM runs on, closes an idle connection after this long. A router has to live with that.
KEEP_ALIVE_SECONDS = 5.0


class Connections:
    """The open connections of one process, closed when they idle too long.

    One look at all of them every half second is cheaper than a timer for every request.
    """

    def __init__(self) -> None:
        self._all: set[Connection] = set()
        self._timer: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: Connection) -> None:
        self._all.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(0.5, self._sweep)

    def discard(self, connection: Connection) -> None:
        self._all.discard(connection)

    def close(self) -> None:
        """Close every one once what is written has gone out."""
        for connection in list(self._all):
            connection.close()

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection in [c for c in self._all if c.expires < now]:
            connection.expire()
        self._timer = asyncio.get_running_loop().call_later(0.5, self._sweep) if self._all else None


class Owner:
    """Who answers on a connection: a replica, or the control port.

    keep_alive: seconds that an idle connection is kept; a connection closes at once after its answer if 0.
    """

    keep_alive = KEEP_ALIVE_SECONDS
    frozen = False

    def __init__(self) -> None:
        self.connections: set[Connection] = set()

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer one request, now or later."""
        raise NotImplementedError
