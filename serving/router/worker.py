"""One worker of the router: a data plane of its own on the shared port, told by the master what it needs to know.

``python -m serving.router.worker`` is started by the master only, which passes open files by number: the channel,
the shared counts, the listening sockets. Signals belong to the master; when it dies, the worker listens no longer,
finishes what is open, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from serving.config import Config
from serving.config_errors import ConfigError
from serving.fleet.replica import Replica
from serving.router import channel as messages
from serving.router.channel import Channel, ToWorker
from serving.router.link import TICK_SECONDS, ChannelLink, Heard
from serving.router.metrics import SNAPSHOT_SECONDS
from serving.router.say import say
from serving.router.server import Server
from serving.router.shared import REFRESH_SECONDS, Counts
from serving.router.tls import ServerTLS
from serving.router.tls_listener import FAILURES, TLSListener

BACKLOG = 4096
BEAT_SECONDS = 0.25
BALANCE_SECONDS = 1.0
LAST_SECONDS = 10.0  # a worker without a master may be this late after its drain


class Worker:
    """Applies the master's messages to ``server`` and tells the master what happened here."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.counts = Counts.attach(options.counts, options.workers, options.worker)
        self.channel: Channel[ToWorker] = Channel(ToWorker, self._take, self._master_gone)
        self.link = ChannelLink(self.channel, self.loop)
        self.server: Server | None = None
        self.by_index: list[Replica | None] = []
        self.heard = Heard()
        self._leaving: set[Replica] = set()
        self._listeners: list[asyncio.AbstractServer | TLSListener] = []
        self.tls: ServerTLS | None = None
        self._start: asyncio.Future[messages.Start] = self.loop.create_future()
        self._stop: asyncio.Future[float | None] = self.loop.create_future()
        self._last_beat = self._last_snapshot = self._last_balance = 0.0
        self._due = 0.0

    async def run(self) -> None:
        """Until the master says Stop, or is gone."""
        await self.loop.create_unix_connection(
            lambda: self.channel, sock=socket.socket(fileno=self.options.channel)
        )
        start = await self._start
        config = Config.model_validate_json(start.config)
        replicas = [news.replica() for news in start.replicas]
        self._place(replicas)
        self.server = server = Server(config, replicas, self.link, self.counts, self.options.worker)
        for pool in start.panicking:
            server.apply_panic(pool, True)
        tls = config.router.tls
        if tls.certificate is not None and tls.key is not None:
            ca = Path(tls.client_ca) if tls.client_ca is not None else None
            self.tls = ServerTLS(Path(tls.certificate), Path(tls.key), ca)
        for fd in self.options.sockets:
            await self._listen(socket.socket(fileno=fd))
        sweeper = asyncio.create_task(server.expire_clients())
        # What is here now stays: the collector need not look at it again. Requests leave no cycles behind, so
        # it may come seldom; at its usual pace it was 7 % of the time at 256 streams.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        server.warm_up()
        self.channel.send(messages.Ready())
        self._due = time.monotonic()
        self._tick()
        if self.options.workers > 1:
            self._refresh()
        seconds = await self._stop
        for listener in self._listeners:
            listener.close()
        server.stop_accepting()
        cut = await server.drain(config.router.drain_timeout if seconds is None else seconds)
        sweeper.cancel()
        await server.close()
        self.link.flush()
        self.channel.send(messages.Numbers(0, server.metrics.snapshot(whole=True)))
        self.channel.send(messages.Stopped(cut))
        if seconds is None:
            say(f"worker {self.options.worker}: ended, {cut} requests cut")
        await asyncio.sleep(0.01)  # the socket pair takes what was written

    async def _listen(self, sock: socket.socket) -> None:
        """From now on the kernel hands connections on this socket to us."""
        assert self.server is not None
        factory = self.server.new_client
        if sock.family == socket.AF_UNIX:  # who may open the file is on this machine: no TLS
            self._listeners.append(await self.loop.create_unix_server(factory, sock=sock, backlog=BACKLOG))
        elif self.tls is None:
            self._listeners.append(await self.loop.create_server(factory, sock=sock, backlog=BACKLOG))
        else:
            sock.listen(BACKLOG)
            listener = TLSListener(sock, factory, self.tls)
            self._listeners.append(listener)
            for reason in FAILURES:
                self.server.metrics.counter(
                    "exaserve_router_tls_handshake_failures_total",
                    (reason,),
                    lambda reason=reason: self._handshake_failures(reason),  # type: ignore[misc]
                )

    def _handshake_failures(self, reason: str) -> int:
        return sum(x.failures[reason] for x in self._listeners if isinstance(x, TLSListener))

    def stop(self, seconds: float | None) -> None:
        """None: as long as router.drain_timeout allows."""
        if not self._stop.done():
            self._stop.set_result(seconds)

    def _master_gone(self) -> None:
        if not self._stop.done():
            say(f"worker {self.options.worker}: the master is gone; open requests may end")
        if self.server is None:
            os._exit(1)
        self.stop(None)
        # Nobody is left who would kill us.
        limit = self.server.config.router.drain_timeout + LAST_SECONDS
        self.loop.call_later(limit, os._exit, 1)

    # --- what the master says ---

    def _take(self, message: ToWorker) -> None:
        server = self.server
        if server is None:
            if isinstance(message, messages.Start):
                self._start.set_result(message)
            elif isinstance(message, messages.Stop):
                os._exit(0)
            else:
                # It comes while Server is being made, in the same turn of the loop at most: after it.
                self.loop.call_soon(self._take, message)
            return
        if isinstance(message, messages.Loads):
            for index, news in message.rows:
                if (replica := self._at(index)) is not None:
                    replica.take_load(news)
                    server.apply_load(replica)
        elif isinstance(message, messages.States):
            for index, news in message.rows:
                if (replica := self._at(index)) is not None:
                    replica.take_state(news)
                    server.apply_state(replica)
            for index, reason in message.out:
                if (replica := self._at(index)) is not None:
                    server.replica_out(replica, reason)
        elif isinstance(message, messages.Models):
            if (replica := self._at(message.replica)) is not None:
                before, replica.models, replica.model = replica.models, message.models, message.model
                replica.kv_tokens = message.kv_tokens
                server.apply_models(replica, before)
        elif isinstance(message, messages.Members):
            self._members(message)
        elif isinstance(message, messages.Ask):
            self._numbers(message.number)
        elif isinstance(message, messages.Panic):
            server.apply_panic(message.pool, message.on)
        elif isinstance(message, messages.Grants):
            server.tenants.grant(message.tenants)
        elif isinstance(message, messages.Reload):
            if message.config is not None:
                server.apply_config(Config.model_validate_json(message.config))
            if message.tenants:
                server.apply_tenants()
            if message.tls:
                server.reload_access()
                if self.tls is not None:
                    self.tls.reload_if_changed()
        elif isinstance(message, messages.Stop):
            self.stop(message.seconds)

    def _at(self, index: int) -> Replica | None:
        return self.by_index[index] if index < len(self.by_index) else None

    def _place(self, replicas: list[Replica]) -> None:
        for r in replicas:
            self.by_index.extend([None] * (r.index + 1 - len(self.by_index)))
            self.by_index[r.index] = r

    def _members(self, message: messages.Members) -> None:
        assert self.server is not None
        added = [news.replica() for news in message.added]
        removed = [r for i in message.removed if (r := self._at(i)) is not None]
        self._place(added)
        self.server.apply_replicas(added, removed)
        self._leaving.update(removed)

    def _let_go(self) -> None:
        """Replicas that left the set and have nothing open here any more."""
        assert self.server is not None
        for r in [r for r in self._leaving if not r.attempts]:
            self._leaving.discard(r)
            self.server.forget(r)
            self.link.flush()  # its last outcomes, while the number is still its own
            self.heard.forget(r)
            self.by_index[r.index] = None
            self.channel.send(messages.Forgotten(r.index))

    # --- by the clock ---

    def _tick(self) -> None:
        server, now = self.server, time.monotonic()
        assert server is not None
        server.metrics.lag.observe(max(now - self._due, 0.0))
        self._due = now + TICK_SECONDS
        self.loop.call_later(TICK_SECONDS, self._tick)
        if self.link.outcomes is not None:
            self.link.outcomes.tick(now)
        if self._leaving:
            self._let_go()
        if now - self._last_beat >= BEAT_SECONDS:
            self._last_beat = now
            tenants: dict[str, Any] = {}
            if self.options.workers > 1 and now - self._last_balance >= BALANCE_SECONDS:
                self._last_balance = now
                tenants = server.tenants.report(now)
            self.channel.send(messages.Beat(self.heard.since(self.by_index), tenants))
        if now - self._last_snapshot >= SNAPSHOT_SECONDS:
            self._last_snapshot = now
            self._numbers(0)

    def _numbers(self, number: int) -> None:
        assert self.server is not None
        self.link.flush()
        self.channel.send(messages.Numbers(number, self.server.metrics.snapshot()))

    def _refresh(self) -> None:
        self.loop.call_later(REFRESH_SECONDS, self._refresh)
        self.counts.refresh(self.by_index)


async def _serve(options: argparse.Namespace) -> None:
    worker = Worker(options)
    # A terminal's Ctrl-C and systemd's stop reach every process: the master decides what becomes of us.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    worker.loop.add_signal_handler(signal.SIGTERM, worker.stop, None)
    try:
        await worker.run()
    except (ConfigError, OSError, ValueError) as error:
        worker.channel.send(messages.Failed(str(error) or type(error).__name__))
        await asyncio.sleep(0.05)
        sys.exit(1)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="serving.router.worker", description="Started by the router itself."
    )
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--counts", type=int, required=True)
    parser.add_argument("sockets", type=int, nargs="*")
    uvloop.run(_serve(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
