"""Keeps a running router in step with its files: configuration, tenants, certificates, tokens, replicas.

Reading and judging them is ``reload.py``'s and ``members.py``'s. Here what they bring is handed to Health and the
workers, in an order in which no request is lost.
"""

from __future__ import annotations

import asyncio
import time

from serving.config_errors import ConfigError
from serving.fleet.replica import Replica
from serving.router import channel as messages
from serving.router.access import Access, files_of
from serving.router.feed import Feed
from serving.router.members import Members
from serving.router.reload import POLL_SECONDS, Change, Reloader
from serving.router.say import complain, say
from serving.router.workers import Workers

BRIDGE_SECONDS = 60.0  # replicas that leave stay this long if none of the others takes requests


class Follow:
    """``watch()`` reads, ``members_step()`` is called ten times a second. now: set it to read all files at once."""

    def __init__(self, reloader: Reloader, members: Members, feed: Feed, workers: Workers) -> None:
        self.reloader = reloader
        self.now = asyncio.Event()
        self._members = members
        self._feed = feed
        self._health = feed.health
        self._workers = workers
        r = reloader.config.router
        self._access = Access(r, members.current)
        self._set_access()
        self._set_pools()
        self._wanted: tuple[list[Replica], float] | None = None
        self._bridging: list[Replica] | None = None

    async def watch(self) -> None:
        """For ever: a look each POLL_SECONDS; reading is done in a thread."""
        while True:
            forced = False
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self.now.wait()
                forced = True
                self.now.clear()
            except TimeoutError:
                pass
            try:
                change = await asyncio.to_thread(self.reloader.poll, forced)
            except ConfigError as error:
                complain(f"not reloaded, what ran before goes on:\n{error}")
            else:
                if change is not None:
                    self._apply(change)
            new = await asyncio.to_thread(self._members.read, forced)
            if (complaint := self._members.complaint()) is not None:
                say(f"replicas not reloaded, the ones before stay: {complaint}")
            if new is not None:
                self._wanted = (new, time.monotonic() + BRIDGE_SECONDS)

    def _apply(self, change: Change) -> None:
        say("\n  ".join(("configuration reloaded" if change else "nothing has changed", *change.lines)))
        if change.config is not None:
            router = change.config.router
            self._health.set_settings(router)
            self._set_pools()
            if self._access.files != files_of(router):
                self._access = Access(router, self._members.current)
                self._set_access()
        if change.access:
            self._access.reload()
            self._set_access()
        if change:
            config = None if change.config is None else change.config.model_dump_json().encode()
            self._workers.send(messages.Reload(config, change.tenants, change.access))

    def _set_access(self) -> None:
        self._health.set_access(self._access.header, self._access.tls)

    def _set_pools(self) -> None:
        pools = self.reloader.config.pools
        fallbacks = {name: pool.fallback for name, pool in pools.items() if pool.fallback is not None}
        self._health.set_pools(self._members.by_pool(pools), fallbacks)

    # --- replicas ---

    def members_step(self) -> list[Replica]:
        """Towards the replicas that the file names, but never to a set of which none takes requests yet.

        Returns those that begin to leave.
        """
        if self._wanted is None:
            return []
        new, end = self._wanted
        bridged = self._members.bridge(new) if time.monotonic() < end else new
        if len(bridged) == len(new):
            self._wanted = None
        elif self._bridging is new:
            return []
        self._bridging = new
        return self._take(bridged)

    def _take(self, new: list[Replica]) -> list[Replica]:
        running = [p.number for p in self._workers.places if p.process is not None]
        try:
            added, removed = self._members.take(new, running)
        except ValueError as error:
            say(f"replicas not reloaded, the ones before stay: {error}")
            return []
        if added or removed:
            self._health.set_replicas(self._members.current)
            self._set_pools()
        self._feed.all_states()  # weights may have changed
        self._feed.flush()
        if added or removed:
            news = [messages.ReplicaNews.of(r) for r in added]
            self._workers.send(messages.Members(news, [r.index for r in removed]))
            total = len(self._members.current)
            say(f"replicas: {len(added)} added, {len(removed)} leave, {total} in all")
        return removed
