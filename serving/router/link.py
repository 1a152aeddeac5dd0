"""What a worker's data plane tells whoever judges the replicas: Health in this process, or the master's.

``LocalLink`` is for one process that does both (tests, embedding); ``ChannelLink`` is a worker's. They have the
same methods; ``Server`` does not know which one it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serving.fleet.health import Health
from serving.fleet.outcomes import LocalOutcomes
from serving.fleet.replica import OUTCOMES, Replica
from serving.router.channel import Channel, Eject, Outcomes, Refused

if TYPE_CHECKING:
    from serving.router.server import Server

FLUSH_SECONDS = 0.05  # how old what the master knows of outcomes may be
TICK_SECONDS = 0.1


def number(replicas: Sequence[Replica]) -> None:
    """Give replicas of a single process their numbers; the master does it otherwise. Before Server is made."""
    for i, replica in enumerate(replicas):
        replica.index = i


class LocalLink:
    """Calls Health at once.

    outcomes: set by Server. provisional: what LocalOutcomes is told of the same name.
    """

    provisional = False
    outcomes: LocalOutcomes | None = None

    def attach(self, server: Server) -> None:
        """Make the Health that watches the server's replicas. Call ``health.start()`` when the loop runs."""
        self.health = Health(
            server.config.router,
            server.replicas,
            server.replica_out,
            server.apply_models,
            on_state=server.apply_state,
            on_load=server.apply_load,
            on_panic=server.apply_panic,
        )
        self._by_index = {r.index: r for r in server.replicas}
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def outcome(self, replica: Replica, outcome: str) -> None:
        replica.outcomes[outcome] += 1

    def refused(self, replica: Replica) -> None:
        self.health.refused(replica)

    def eject(self, replica: Replica, why: str) -> None:
        self.health.eject(replica, why)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticker = loop.call_later(TICK_SECONDS, self._tick)
        if self.outcomes is not None:
            self.outcomes.tick(loop.time())
            for index, ok, errors, first_tokens, log_seconds in self.outcomes.take():
                self.health.observe(self._by_index[index], ok, errors, first_tokens, log_seconds)

    async def stop(self) -> None:
        self._ticker.cancel()
        await self.health.stop()


class ChannelLink:
    """Collects what can wait FLUSH_SECONDS, so that a busy worker sends 20 messages a second and an idle one none.

    outcomes, provisional: as in LocalLink.
    """

    provisional = True
    outcomes: LocalOutcomes | None = None

    def __init__(self, channel: Channel[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._ended: set[Replica] = set()
        self._armed = False

    def outcome(self, replica: Replica, outcome: str) -> None:
        """An attempt has ended. ``replica.outcomes`` holds what was not sent yet."""
        replica.outcomes[outcome] += 1
        self._ended.add(replica)
        if not self._armed:
            self._armed = True
            self._loop.call_later(FLUSH_SECONDS, self.flush)

    def refused(self, replica: Replica) -> None:
        self._channel.send(Refused(replica.index))

    def eject(self, replica: Replica, why: str) -> None:
        self._channel.send(Eject(replica.index, why))

    def flush(self) -> None:
        """Send what has been collected."""
        self._armed = False
        passive = self.outcomes.take() if self.outcomes is not None else []
        ended = []
        for replica in self._ended:
            counts = replica.outcomes
            ended.append((replica.index, list(counts.values())))
            for outcome in OUTCOMES:
                counts[outcome] = 0
        self._ended.clear()
        if ended or passive:
            self._channel.send(Outcomes(ended, passive))


class Heard:
    """How much was heard from each replica since the last time, for the master's watchdog."""

    def __init__(self) -> None:
        self._seen: dict[Replica, int] = {}

    def since(self, replicas: Sequence[Replica | None]) -> list[tuple[int, int]]:
        """(replica, pieces of bytes), of those that were heard."""
        seen, out = self._seen, []
        for r in replicas:
            if r is not None and r.heard != seen.get(r, 0):
                out.append((r.index, r.heard - seen.get(r, 0)))
                seen[r] = r.heard
        return out

    def forget(self, replica: Replica) -> None:
        self._seen.pop(replica, None)


Link = LocalLink | ChannelLink
