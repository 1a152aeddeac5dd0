"""What the master's Health finds goes to the workers, and what their answers show comes back to it.

State changes go at once (all of one turn of the loop in one message), load four times a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from serving.config_router import Router
from serving.fleet.health import Health
from serving.fleet.replica import OUTCOMES, Replica
from serving.router import channel as messages
from serving.router.channel import ToMaster, pack
from serving.router.members import Members
from serving.router.say import say
from serving.router.workers import Workers


class Feed:
    """Health of ``members``, spoken for to ``workers``. ``health.start()`` is the owner's."""

    def __init__(self, settings: Router, members: Members, workers: Workers) -> None:
        self.members = members
        self.workers = workers
        self.health = Health(
            settings,
            list(members.current),
            self._out,
            self._models,
            on_state=self._state,
            on_load=self._load,
            on_panic=self._panic,
        )
        self._loop = asyncio.get_running_loop()
        self._states: dict[int, Replica] = {}
        self._outs: list[tuple[int, str]] = []
        self._loads: dict[int, Replica] = {}
        self._flushing = False

    # --- to the workers ---

    def _state(self, replica: Replica) -> None:
        self._states[replica.index] = replica
        self._soon()

    def all_states(self) -> None:
        """Say them all with the next message, changed or not."""
        for replica in self.members.current:
            self._state(replica)

    def _out(self, replica: Replica, reason: str) -> None:
        self._states[replica.index] = replica
        self._outs.append((replica.index, reason))
        self._soon()

    def _soon(self) -> None:
        """All that happens in this turn of the loop is one message."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the states that changed."""
        self._flushing = False
        if self._states or self._outs:
            rows = [(i, r.state_news()) for i, r in self._states.items() if r.index == i]
            self.workers.send(messages.States(rows, self._outs))
            self._states, self._outs = {}, []

    def _models(self, replica: Replica, before: Sequence[dict[str, Any]]) -> None:
        self.workers.send(messages.Models(replica.index, replica.model, replica.models, replica.kv_tokens))

    def _load(self, replica: Replica) -> None:
        self._loads[replica.index] = replica

    def _panic(self, pool: str, on: bool) -> None:
        say(f"pool {pool}: {'no replica is healthy: requests go to any that listens' if on else 'healthy again'}")  # fmt: skip
        self.workers.send(messages.Panic(pool, on))

    def send_loads(self) -> None:
        """Send the load that was read since the last time."""
        if self._loads:
            rows = [(i, r.load_news()) for i, r in self._loads.items() if r.index == i]
            self._loads = {}
            self.workers.send_packed(pack(messages.Loads(rows)), may_wait=True)

    # --- from the workers ---

    def take(self, message: ToMaster) -> bool:
        """A message about replicas; False if it is about something else."""
        at = self.members.at
        if isinstance(message, messages.Beat):
            for index, pieces in message.heard:
                if (replica := at(index)) is not None:
                    replica.heard += pieces
        elif isinstance(message, messages.Outcomes):
            for index, counts in message.ended:
                if (replica := at(index)) is not None:
                    for outcome, n in zip(OUTCOMES, counts, strict=True):
                        replica.outcomes[outcome] += n
            for index, ok, errors, first_tokens, log_seconds in message.passive:
                if (replica := at(index)) is not None:
                    self.health.observe(replica, ok, errors, first_tokens, log_seconds)
        elif isinstance(message, messages.Refused):
            if (replica := at(message.replica)) is not None:
                self.health.refused(replica)
        elif isinstance(message, messages.Eject):
            if (replica := at(message.replica)) is not None:
                self.health.eject(replica, message.why)
        else:
            return False
        return True
