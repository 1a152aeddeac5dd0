"""Whether a replica may get requests: one-token inference probes, silence, refused connections.

Ready is what has just answered a real inference. A replica that only looks alive (its front end answers, its
engine is stuck) fails the probe; one that is merely busy (the probe waits behind a full batch) shows progress
meanwhile and stays in rotation as degraded, since condemning busy replicas would take down a loaded fleet.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from serving.config_router import DEFAULT_POOL, Router
from serving.fleet import probe
from serving.fleet.ask import Asker, was_refused
from serving.fleet.outlier import Outliers
from serving.fleet.panic import Panic
from serving.fleet.replica import Replica
from serving.fleet.silence import Silence
from serving.fleet.sweep import Sweep

#: While a replica is not ready it is asked this often, so that it is back soon after it can answer.
IMPATIENT_SECONDS = 1.0
TICK_SECONDS = 0.25
#: First probes and load reads follow each other by this, up to a whole interval: no burst at 3,072 replicas.
FIRST_GAP_SECONDS = 0.001

OnReplica = Callable[[Replica], None]
OnOut = Callable[[Replica, str], None]
OnModels = Callable[[Replica, Sequence[dict[str, Any]]], None]


def _nothing(*_: object) -> None:
    """A callback that nobody needs."""


class Health:
    """Probes and watches ``replicas``. Runs in one process, for all that relay requests.

    on_out(replica, reason): it left the rotation ("refused", "down", "frozen"): what is open on it is lost. Not
    called for ejected and draining ones, whose open requests end by themselves.
    on_models(replica, before): follows each reading of its /v1/models, with what they were before.
    on_state(replica): its state, the reason for it, its weight or its trial is another now; before on_out.
    on_load(replica): its running, waiting and kv_usage were read; not where an idle one says the same again.
    on_panic(pool, on): no replica of the pool is in rotation, so those that are ``reachable`` may take requests.
    headers, tls: whole header lines (an Authorization) and TLS context for what is asked of replicas.
    """

    def __init__(
        self,
        settings: Router,
        replicas: Sequence[Replica],
        on_out: OnOut = _nothing,
        on_models: OnModels = _nothing,
        *,
        on_state: OnReplica = _nothing,
        on_load: OnReplica = _nothing,
        on_panic: Callable[[str, bool], None] = _nothing,
        headers: bytes = b"",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.settings = settings
        self.replicas: list[Replica] = []
        self.on_out = on_out
        self.on_models = on_models
        self.on_state = on_state
        self.asker = Asker(headers, tls)
        self.outliers = Outliers(settings.ejection, self._changed)
        self.panic = Panic(settings.panic, on_panic)
        self.sweep = Sweep(
            self.asker, settings.load_interval, settings.silence_timeout * 3, on_load, self._load_refused
        )
        self._own_pools = False
        self._weights: dict[Replica, float] = {}  # as the last set_replicas found them configured
        self._probes: dict[Replica, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._wake: dict[Replica, asyncio.Event] = {}  # set when it left the rotation: probe sooner
        self.silence = Silence(self.sweep.asked, self._looked_at, self._silent)
        self._running = False
        self.set_replicas(replicas)

    def start(self) -> None:
        self._running = True
        for i, replica in enumerate(self.replicas):
            self._begin(replica, i, len(self.replicas))
        self._tasks = [asyncio.create_task(t) for t in (self.sweep.run(), self._tick())]

    async def stop(self) -> None:
        self._running = False
        tasks = [*self._tasks, *self._probes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._probes = [], {}
        self.asker.close()

    # --- which ones, and by which rules; both may change while it runs ---

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Exactly these from now on. Those that were here before go on undisturbed; new ones are probed."""
        wanted = set(replicas)
        gone = [r for r in self.replicas if r not in wanted]
        new = [r for r in replicas if r not in self._wake]
        for replica in gone:
            self._end(replica)
        self.replicas = list(replicas)
        for i, replica in enumerate(new):
            replica.draining = False  # it was here before, and removed
            self._wake[replica] = asyncio.Event()
            self.silence.add(replica)
            if self._running:
                self._begin(replica, i, len(new))
        if not self._own_pools:
            self._pools({DEFAULT_POOL: self.replicas})
        for replica in gone:
            replica.drain(True)
            self._changed(replica)
        for replica in self.replicas:
            if self._weights.get(replica, replica.base_weight) != replica.base_weight:
                self.on_state(replica)
        self._weights = {r: r.base_weight for r in self.replicas}

    def add(self, replica: Replica) -> None:
        self.set_replicas([*self.replicas, replica])

    def remove(self, replica: Replica) -> None:
        """It is watched no more, and draining: its open requests may end."""
        self.set_replicas([r for r in self.replicas if r is not replica])

    def set_pools(
        self, pools: Mapping[str, Sequence[Replica]], fallbacks: Mapping[str, str] | None = None
    ) -> None:
        """Names and members, for panic and for comparing replicas. Without a call all are one pool, "default".

        fallbacks: pool -> the one that takes what it can't.
        """
        self._own_pools = True
        self._pools(pools, fallbacks)

    def set_settings(self, settings: Router) -> None:
        """Rules after a reload of the configuration."""
        self.settings = settings
        self.outliers.settings = settings.ejection
        self.sweep.interval = settings.load_interval
        self.sweep.patience = settings.silence_timeout * 3
        self.panic.allow(settings.panic)

    def set_access(self, headers: bytes, tls: ssl.SSLContext | None) -> None:
        """A new token or certificate, for what is asked from now on; kept connections are closed."""
        self.asker.headers, self.asker.tls = headers, tls
        self.asker.close()
        self.sweep.ask_anew()

    @property
    def panicking(self) -> set[str]:
        """Names of the pools that are in panic."""
        return self.panic.pools

    def _pools(
        self, pools: Mapping[str, Sequence[Replica]], fallbacks: Mapping[str, str] | None = None
    ) -> None:
        self.outliers.set_pools(pools)
        self.panic.set_pools(pools, fallbacks)

    def _begin(self, replica: Replica, i: int, n: int) -> None:
        gap = min(FIRST_GAP_SECONDS, self.settings.health_check_interval / n)
        self._probes[replica] = asyncio.create_task(self._probe_for_ever(replica, i, n, gap))
        self.sweep.add(replica, min(i * FIRST_GAP_SECONDS, self.settings.load_interval * i / n))

    def _end(self, replica: Replica) -> None:
        task = self._probes.pop(replica, None)
        if task is not None:
            task.cancel()
        self.sweep.remove(replica)
        self.asker.forget(replica)
        self.silence.remove(replica)
        del self._wake[replica]

    # --- out of rotation, and back ---

    def out(self, replica: Replica, state: str, why: str, reason: str) -> None:
        was_in = replica.in_rotation
        before = replica.state, replica.reason, replica.refused
        replica.refused = reason == "refused"
        if replica.probed == "starting" and state == "down":
            replica.probed_why = why  # never been ready: still starting, and it says why
            state = "starting"
        replica.enter(state, why)
        if state == "down":
            replica.running = replica.waiting = replica.kv_usage = replica.tokens = None
        if before != (replica.state, replica.reason, replica.refused):
            self._changed(replica)
        if replica in self._wake:
            self._wake[replica].set()
        if was_in or replica.attempts or replica.idle or replica.others:
            self.on_out(replica, reason)

    def refused(self, replica: Replica, why: str = "connection refused") -> None:
        """Nobody listens there any more. on_state follows even if that is no news: who says so may know less."""
        self.out(replica, "down", why, "refused")
        self.on_state(replica)

    def drain(self, replica: Replica) -> None:
        """No new requests for it until ``undrain``; it is probed all the same."""
        replica.drain(True)
        self._changed(replica)

    def undrain(self, replica: Replica) -> None:
        replica.drain(False)
        self._changed(replica)

    def eject(self, replica: Replica, why: str) -> bool:
        """A process that relays saw enough of it. False if it stays in; on_state follows in any case."""
        ejected = self.outliers.eject(replica, why)
        if not ejected:
            self.on_state(replica)
        return ejected

    def observe(
        self, replica: Replica, ok: int, errors: int, first_tokens: int = 0, log_seconds: float = 0.0,
        heard: int = 0,
    ) -> None:  # fmt: skip
        """What came back from it since the last call; see Outliers.observe. heard: pieces of bytes."""
        replica.heard += heard
        self.outliers.observe(replica, ok, errors, first_tokens, log_seconds)

    def _changed(self, replica: Replica) -> None:
        self.on_state(replica)
        self.panic.look(replica)

    def _found(self, replica: Replica, state: str, why: str) -> None:
        """A probe was answered."""
        before = replica.probed
        replica.enter(state, why)
        if before in ("down", "frozen"):
            self.outliers.restarted(replica)
        if before != state:
            self._changed(replica)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.silence.look(time.monotonic(), self.settings.silence_timeout, self.settings.load_interval)
            self.outliers.tick()

    # --- probes ---

    async def _probe_for_ever(self, replica: Replica, i: int, n: int, gap: float) -> None:
        await asyncio.sleep(i * gap)
        await self._probe(replica)
        # Only the first pause differs: it spreads the probes of a fleet over the interval.
        spread = self.settings.health_check_interval * (0.5 + 0.5 * i / n)
        pause = spread if self._answers(replica) else IMPATIENT_SECONDS
        while True:
            await self._pause(replica, pause)
            started = time.monotonic()
            await self._probe(replica)
            pause = self.settings.health_check_interval if self._answers(replica) else IMPATIENT_SECONDS
            pause = max(pause - (time.monotonic() - started), 0.2)

    @staticmethod
    def _answers(replica: Replica) -> bool:
        """Whether its last probe was well, ejected or drained as it may be."""
        return replica.probed == "ready" or replica.probed == "degraded"

    async def _pause(self, replica: Replica, seconds: float) -> None:
        wake = self._wake[replica]
        wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()
                # It has just gone out: not at once again, or a dead port would be asked in a loop.
                await asyncio.sleep(min(IMPATIENT_SECONDS, seconds))

    async def _probe(self, replica: Replica) -> None:
        started = time.monotonic()
        heard, tokens = replica.heard, replica.tokens
        try:
            async with asyncio.timeout(self.settings.probe_timeout):
                if not replica.model or not replica.models:
                    self.on_models(replica, await probe.learn_model(self.asker, replica))
                status, body = await probe.infer(self.asker, replica)
        except TimeoutError:
            self._timed_out(replica, heard, tokens)
        except (OSError, ValueError) as e:
            if was_refused(e):
                self._failed(replica, "refused", "connection refused", "refused")
            else:
                self._failed(replica, "error", str(e) or type(e).__name__, "down")
        else:
            if status == 200:
                self._passed(replica, time.monotonic() - started)
            elif status in (429, 503) and replica.probed != "starting":
                # An engine with a bounded queue (vLLM's --max-num-queued-reqs) refuses the probe under load.
                self._busy(replica, f"it refused the probe for load (status {status})")
            else:
                self._failed(replica, "error", probe.status_words(status, body), "down")

    def _passed(self, replica: Replica, seconds: float) -> None:
        slow = seconds > self.settings.degraded_after
        replica.probe_seconds = seconds
        replica.consecutive_failures = 0
        replica.probe_results["slow" if slow else "ok"] += 1
        if slow:
            limit = self.settings.degraded_after
            self._found(replica, "degraded", f"one token took {seconds:.1f} s, limit {limit:g} s")
        else:
            self._found(replica, "ready", f"one token in {seconds * 1000:.0f} ms")

    def _timed_out(self, replica: Replica, heard: int, tokens: float | None) -> None:
        limit = self.settings.probe_timeout
        moved = tokens is not None and replica.tokens is not None and replica.tokens != tokens
        # Without token counters, bytes of answers are the only sign of work; a page alone is none.
        working = moved or (replica.tokens is None and replica.heard != heard and self._is_open(replica))
        if working and replica.probed != "starting":
            self._busy(replica, f"no token for the probe in {limit:g} s, but it works on others")
            return
        self._failed(replica, "timeout", f"no answer to a one-token inference in {limit:g} s", "frozen")

    @staticmethod
    def _is_open(replica: Replica) -> bool:
        return bool(replica.attempts) or replica.others > 0

    def _busy(self, replica: Replica, why: str) -> None:
        replica.probe_results["busy"] += 1
        self._found(replica, "degraded", why)

    def _failed(self, replica: Replica, result: str, why: str, reason: str) -> None:
        replica.probe_results[result] += 1
        replica.consecutive_failures += 1
        if reason == "frozen" and replica.probed == "starting":
            replica.enter("starting", why)
            return
        self.out(replica, "frozen" if reason == "frozen" else "down", why, reason)

    # --- what load reads and the watchdog find ---

    def _load_refused(self, replica: Replica) -> None:
        if self._answers(replica):
            self.refused(replica)
        elif not replica.refused:
            replica.refused = True
            self._changed(replica)

    def _silent(self, replica: Replica, seconds: float) -> None:
        if self._answers(replica):
            self.out(replica, "frozen", f"silent for {seconds:.1f} s", "frozen")
        else:
            self.on_out(replica, "frozen")  # requests that it got in a panic don't wait for ever either

    def _looked_at(self, replica: Replica) -> bool:
        """Whether silence matters: it may get requests, or has some open from a panic."""
        return self._answers(replica) or (replica.state == "frozen" and self._is_open(replica))
