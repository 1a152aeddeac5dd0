"""The router's master: judges the replicas, keeps the workers running and informed, answers the admin API.

No request of a client passes through it. Health (probes, load, silence) runs here, once for all workers; what it
finds goes to them as messages, and what answers show comes back from them. Processes are ``workers.py``'s, files
that change ``follow.py``'s.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving import compiled
from serving.config import Config
from serving.config_router import DEFAULT_POOL
from serving.fleet.replica import Replica
from serving.router import channel as messages
from serving.router import limits, listen
from serving.router.channel import ToMaster
from serving.router.collect import Collect
from serving.router.feed import Feed
from serving.router.follow import Follow
from serving.router.limits import Report
from serving.router.listen import CannotStart
from serving.router.members import Members
from serving.router.merge import Numbers
from serving.router.reload import Adjust, Reloader, Source
from serving.router.say import complain, say
from serving.router.shared import Counts
from serving.router.tls import bearer
from serving.router.workers import Place, Workers

if TYPE_CHECKING:
    from serving.router.admin import AdminThread

LOAD_SECONDS = 0.25  # between two messages with load
COUNT_SECONDS = 0.1
KILL_SECONDS = 3.0  # a worker that is told to stop may be this late


class Master:
    """One router.

    source, members: where configuration and replicas come from; both are read again when they change.
    adjust: what this machine makes of a configuration (process.within_file_limit).
    Raises CannotStart.
    """

    def __init__(self, source: Source, config: Config, members: Members, adjust: Adjust) -> None:
        self.members = members
        self.started = time.time()
        self.last_tick = time.monotonic()
        self.stopping = False
        self.loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        r = config.router
        self.counts, counts_fd = Counts.create(r.workers)
        rows = listen.bind(r.host, r.port, r.workers)
        try:
            self._admin_sockets = listen.bind(r.admin_host, r.admin_port, 1, "admin_")[0]
        except CannotStart:
            listen.close(rows)
            raise
        self._unix = Path(r.unix_socket) if r.unix_socket is not None else None
        try:
            shared = [listen.bind_unix(self._unix)] if self._unix is not None else []
        except CannotStart:
            listen.close([*rows, self._admin_sockets])
            raise
        places = [Place(i, row, shared) for i, row in enumerate(rows)]
        self.workers = Workers(places, counts_fd, self._take, self._died, self._first)
        self.collect = Collect(self.workers)
        self.feed = Feed(r, members, self.workers)
        self.health = self.feed.health
        self.admin_token = _bare(bearer(Path(r.admin_token_file))) if r.admin_token_file is not None else None
        self.follow = Follow(Reloader(source, config, adjust), members, self.feed, self.workers)
        self._reports: dict[int, dict[str, Report]] = {}
        self._signals = 0

    # --- from the workers ---

    def _first(self, place: Place) -> Any:
        news = [messages.ReplicaNews.of(r) for r in self.members.current]
        config = self.config.model_dump_json().encode()
        return messages.Start(config, news, sorted(self.health.panicking))

    def _take(self, place: Place, message: ToMaster) -> None:
        if self.feed.take(message):
            if isinstance(message, messages.Beat) and message.tenants:
                self._reports[place.number] = message.tenants
        elif isinstance(message, messages.Numbers):
            self.collect.take(place.number, message)
        elif isinstance(message, messages.Forgotten):
            self._forgotten(place.number, message.replica)
        elif isinstance(message, messages.Ready):
            self.workers.now_serving(place)
            if sum(place.restarts.values()):
                say(f"worker {place.number} serves again (pid {place.pid})")
        elif isinstance(message, messages.Failed):
            place.failed = message.why
        elif isinstance(message, messages.Stopped):
            place.cut = message.cut

    def _died(self, place: Place, how: str) -> None:
        lost = self.counts.open(place.number)
        self.counts.empty(place.number)
        self.collect.died(place.number)
        self._reports.pop(place.number, None)
        for index in list(self.members.leaving):
            self._forgotten(place.number, index)
        if not self.stopping:
            words = f"{place.failed} ({how})" if place.failed else how
            complain(f"worker {place.number} ended: {words}; {lost} open requests are lost; it is replaced")  # fmt: skip

    def _forgotten(self, worker: int, index: int) -> None:
        gone = self.members.forgotten(worker, index)
        if gone is not None:
            self.counts.clear(index)
            say(f"replica {gone.name} has left")

    # --- by the clock ---

    async def _tick(self) -> None:
        next_load = next_balance = 0.0
        while True:
            self.last_tick = now = time.monotonic()
            self.counts.refresh(self.members.by_index)
            for replica in self.follow.members_step():
                self._forgotten(-1, replica.index)  # where no worker runs, nobody would say it
            if now >= next_load:
                next_load = now + LOAD_SECONDS
                self.feed.send_loads()
            if now >= next_balance:
                next_balance = now + 1.0
                self._balance()
            await asyncio.sleep(COUNT_SECONDS)

    def _balance(self) -> None:
        """Deal the tenants' limits out to the workers, once all of them have said what they need."""
        serving = self.workers.serving()
        if len(serving) > 1 and all(p.number in self._reports for p in serving):
            grants = limits.balance([self._reports[p.number] for p in serving])
            for place, granted in zip(serving, grants, strict=True):
                if place.channel is not None and granted:
                    place.channel.send(messages.Grants(granted))
            self._reports = {}

    @property
    def config(self) -> Config:
        """What runs now."""
        return self.follow.reloader.config

    # --- for the admin API; called in its thread ---

    @property
    def replicas(self) -> list[Replica]:
        """Those that are served, and those that leave."""
        return self.members.shown()

    @property
    def ready(self) -> bool:
        """A new request would be answered: a worker listens and a replica may take it."""
        taking = any(r.in_rotation for r in self.members.current) or bool(self.health.panicking)
        return not self.stopping and taking and bool(self.workers.serving())

    @property
    def places(self) -> list[Place]:
        return self.workers.places

    def open_requests(self, worker: int) -> int:
        return self.counts.open(worker)

    def client_connections(self) -> int:
        return int(self.collect.totals.gauge("exaserve_router_client_connections"))

    def pools(self) -> list[dict[str, Any]]:
        """Each pool as /fleet shows it."""
        return [
            {
                "name": name,
                "replicas": len(members),
                "in_rotation": sum(r.in_rotation for r in members),
                "panic": name in self.health.panicking,
                "open": int(self.collect.totals.gauge("exaserve_router_open_requests", name)),
                "waiting": int(self.collect.totals.gauge("exaserve_router_waiting_requests", name)),
            }
            for name, members in self.members.by_pool(self.config.pools).items()
        ]

    async def fresh(self) -> Numbers:
        """All numbers of the router as they are now."""
        total = await self.collect.fresh()
        self.counts.refresh(self.members.by_index)
        self._own_numbers(total)
        return total

    def _own_numbers(self, total: Numbers) -> None:
        """What only the master knows."""
        gauges, counters = total.gauges, total.counters
        gauges["exaserve_router_workers", ()] = len(self.workers.serving())
        gauges["exaserve_router_config_last_reload_successful", ()] = int(self.follow.reloader.successful)
        gauges["exaserve_router_config_last_reload_success_timestamp_seconds", ()] = (
            self.follow.reloader.since
        )
        for pool in self.config.pools or (DEFAULT_POOL,):
            gauges["exaserve_router_panic", (pool,)] = int(pool in self.health.panicking)
        for place in self.workers.places:
            for why, n in place.restarts.items():
                counters["exaserve_router_worker_restarts_total", (str(place.number), why)] = n

    async def drain(self, name: str, on: bool) -> Replica | None:
        """Start or end the drain of a replica; None if there is none of that name."""
        replica = self.members.named(name)
        if replica is not None:
            (self.health.drain if on else self.health.undrain)(replica)
            say(f"replica {name}: {'drained' if on else 'no longer drained'} by an operator")
            self.feed.flush()
        return replica

    # --- life ---

    def _signal(self) -> None:
        self._signals += 1
        self.stop.set()
        if self._signals > 1:
            say("stopping at once")
            self.workers.kill()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises CannotStart."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._signal)
        self.loop.add_signal_handler(signal.SIGHUP, self.follow.now.set)
        r = self.config.router
        admin = None
        tasks = []
        try:
            await self.workers.start()
            # Only now: FastAPI takes half a second to import, in which the workers come up.
            from serving.router.admin import AdminThread

            admin = AdminThread(self, self._admin_sockets)
            admin.start()
            self.health.start()
            tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self.follow.watch())]
            await self._all_ready(admin)
            if not self.stop.is_set():
                n = len(self.workers.places)
                say(
                    f"router on {_urls(r)}, admin API on http://{r.admin_host}:{r.admin_port}, "
                    f"{len(self.members.current)} replicas, {n} worker{'s' if n > 1 else ''}, "
                    f"{'compiled' if compiled.library() else 'plain Python'}",
                )
                if self.admin_token is None and not _loopback(r.admin_host):
                    say(
                        f"whoever reaches {r.admin_host}:{r.admin_port} may drain replicas: "
                        "set router.admin_token_file, or router.admin_host to 127.0.0.1"
                    )
            await self._until_stop(tasks)
            await self._end()
        finally:
            for task in tasks:
                task.cancel()
            await self.health.stop()
            self.workers.close()
            if admin is not None:
                admin.stop()
            if self._unix is not None:
                self._unix.unlink(missing_ok=True)

    async def _all_ready(self, admin: AdminThread) -> None:
        while not self.stop.is_set():
            if not admin.is_alive():
                raise CannotStart("the admin API ended; see above")
            for place in self.workers.places:
                if sum(place.restarts.values()) and not place.ever_served:
                    raise CannotStart(f"worker {place.number} could not start: {place.failed or 'see above'}")
            if admin.server.started and all(p.ever_served for p in self.workers.places):
                return
            await asyncio.sleep(0.02)

    async def _until_stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """A master that no longer looks at anything must not live on: then it ends with the error."""
        stop = asyncio.create_task(self.stop.wait())
        await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        for task in tasks:
            if task.done():
                task.result()

    async def _end(self) -> None:
        seconds = self.config.router.drain_timeout
        self.stopping = True
        open_ = sum(self.counts.open(p.number) for p in self.workers.places)
        say(f"stopping: {open_} open requests may end within {seconds:g} s")
        self.workers.stop_accepting()
        self.workers.send(messages.Stop(seconds))
        if not await self.workers.ended(seconds + KILL_SECONDS):
            complain("workers that did not end in time are killed")
            self.workers.kill()
            await self.workers.ended(5.0)
        cut = sum(p.cut or 0 for p in self.workers.places)
        say(f"stopped, {cut} requests cut" if cut else "stopped")


def _bare(header: bytes) -> bytes:
    return header.strip().rpartition(b" ")[2]


def _urls(r: Any) -> str:
    scheme = "https" if r.tls.certificate is not None else "http"
    host = f"[{r.host}]" if ":" in r.host else r.host
    unix = f" and unix:{r.unix_socket}" if r.unix_socket is not None else ""
    return f"{scheme}://{host}:{r.port}{unix}"


def _loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")
