"""What a connection to a replica carries: a request (``exchange.py``), or the hedge of one (``hedge.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.fleet.replica import Replica
    from serving.router.pools import Pool
    from serving.router.upstream import Upstream


class Attempt:
    """What the connection and the server have to know of it; subclasses fill it in and say what becomes of it.

    head, body: what goes to the replica. replica: whose answer it waits for, None = nobody's. work: token
    equivalents that count there. chunks: pieces of the answer so far. done: nobody waits for it any more.
    """

    head = b""
    body = b""
    method = b""
    http10 = False
    work = 0
    chunks = 0
    done = False
    pool: Pool | None = None
    replica: Replica | None = None
    upstream: Upstream | None = None

    def sending(self, now: float) -> None:
        """It goes out to the replica now (time.monotonic())."""
        raise NotImplementedError

    def may_go_elsewhere(self, status: int) -> bool:
        """Whether an answer that says "not me" is dropped for another replica's."""
        raise NotImplementedError

    def begin(self, upstream: Upstream, status: int, head: bytes, body: bytes) -> Callable[[bytes], None]:
        """The first bytes of the answer. Returns what takes the next pieces."""
        raise NotImplementedError

    def ended(self, upstream: Upstream, tail: bytes) -> None:
        """The answer is complete."""
        raise NotImplementedError

    def fail_attempt(self, reason: str) -> None:
        """The replica is out: the connection, if there is one, is dropped."""
        raise NotImplementedError

    def attempt_failed(self, upstream: Upstream | None, reason: str, begun: bool, stale: bool) -> None:
        """The connection has failed, or there is none."""
        raise NotImplementedError
