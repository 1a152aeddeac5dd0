"""Whether a replica may get requests: one-token inference probes, silence, refused connections.

Ready is what has just answered a real inference. A replica that only looks alive (its front end answers, its
engine is stuck) fails the probe; one that is merely busy (the probe waits behind a full batch) shows progress
meanwhile and stays in rotation as degraded, since condemning busy replicas would take down a loaded fleet.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from serving.config import Router
from serving.fleet import load
from serving.fleet.ask import ask, was_refused
from serving.fleet.replica import Replica

#: While a replica is not ready it is asked this often, so that it is back soon after it can answer.
IMPATIENT_SECONDS = 1.0
WATCHDOG_SECONDS = 0.25

OnOut = Callable[[Replica, str], None]
OnModels = Callable[[Replica, Sequence[dict[str, Any]]], None]


class Health:
    """Probes and watches ``replicas``; calls ``on_out(replica, reason)`` when one leaves the rotation.

    ``reason`` is "refused", "down" or "frozen". ``on_models(replica, before)`` follows each reading of its
    /v1/models, with what they were before.
    """

    def __init__(
        self, settings: Router, replicas: Sequence[Replica], on_out: OnOut, on_models: OnModels
    ) -> None:
        self.settings = settings
        self.replicas = replicas
        self.on_out = on_out
        self.on_models = on_models
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = {r: asyncio.Event() for r in replicas}  # set when it left the rotation: probe sooner
        self._asked: dict[Replica, float] = {}  # when the oldest unanswered load read was sent

    def start(self) -> None:
        for i, replica in enumerate(self.replicas):
            # Spread over the interval, so that probes of a large fleet don't come in one burst.
            delay = self.settings.health_check_interval * i / len(self.replicas)
            self._tasks.append(asyncio.create_task(self._probe_for_ever(replica, delay)))
            self._tasks.append(asyncio.create_task(self._read_load_for_ever(replica)))
        self._tasks.append(asyncio.create_task(self._watch_silence()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- out of rotation ---

    def out(self, replica: Replica, state: str, why: str, reason: str) -> None:
        was_in = replica.in_rotation
        if replica.state == "starting" and state == "down":
            replica.reason = why  # never been ready: still starting, and it says why
        else:
            replica.enter(state, why)
        if state == "down":
            replica.running = replica.waiting = replica.kv_usage = replica.tokens = None
        self._wake[replica].set()
        if was_in or replica.attempts or replica.idle:
            self.on_out(replica, reason)

    def refused(self, replica: Replica, why: str = "connection refused") -> None:
        """Nobody listens there any more."""
        self.out(replica, "down", why, "refused")

    # --- probes ---

    async def _probe_for_ever(self, replica: Replica, delay: float) -> None:
        await self._probe(replica)
        # Only the first pause differs: it spreads the probes of a large fleet over the interval.
        pause = delay if replica.in_rotation else IMPATIENT_SECONDS
        while True:
            await self._pause(replica, pause)
            started = time.monotonic()
            await self._probe(replica)
            pause = self.settings.health_check_interval if replica.in_rotation else IMPATIENT_SECONDS
            pause = max(pause - (time.monotonic() - started), 0.2)

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
                if not replica.model:
                    await self._learn_model(replica)
                status, body = await self._infer(replica)
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
            elif status in (429, 503) and replica.state != "starting":
                # An engine with a bounded queue (vLLM's --max-num-queued-reqs) refuses the probe under load.
                self._busy(replica, f"it refused the probe for load (status {status})")
            else:
                self._failed(replica, "error", _status_words(status, body), "down")

    async def _learn_model(self, replica: Replica) -> None:
        status, body = await ask(replica, "GET", "/v1/models")
        try:
            models = json.loads(body)["data"]
            name = str(models[0]["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ValueError(f"/v1/models: {_status_words(status, body)}") from None
        before, replica.models = replica.models, [m for m in models if isinstance(m, dict)]
        replica.model = name
        self.on_models(replica, before)

    async def _infer(self, replica: Replica) -> tuple[int, bytes]:
        body = json.dumps({"model": replica.model, "prompt": "1", "max_tokens": 1, "temperature": 0}).encode()
        status, answer = await ask(replica, "POST", "/v1/completions", body)
        if (status in (400, 404, 405, 501) and b"does not support" in answer) or status in (405, 501):
            body = json.dumps({"model": replica.model, "input": "1"}).encode()
            status, answer = await ask(replica, "POST", "/v1/embeddings", body)
        elif status == 404:
            replica.model = ""  # restarted with another model: learn it again at the next probe
        return status, answer

    def _passed(self, replica: Replica, seconds: float) -> None:
        slow = seconds > self.settings.degraded_after
        replica.probe_seconds = seconds
        replica.consecutive_failures = 0
        replica.probe_results["slow" if slow else "ok"] += 1
        if slow:
            replica.enter(
                "degraded", f"one token took {seconds:.1f} s, limit {self.settings.degraded_after:g} s"
            )
        else:
            replica.enter("ready", f"one token in {seconds * 1000:.0f} ms")

    def _timed_out(self, replica: Replica, heard: int, tokens: float | None) -> None:
        limit = self.settings.probe_timeout
        moved = tokens is not None and replica.tokens is not None and replica.tokens != tokens
        # Without token counters, bytes of answers are the only sign of work; a page alone is none.
        working = moved or (replica.tokens is None and replica.heard != heard and bool(replica.attempts))
        if working and replica.state != "starting":
            self._busy(replica, f"no token for the probe in {limit:g} s, but it works on others")
            return
        self._failed(replica, "timeout", f"no answer to a one-token inference in {limit:g} s", "frozen")

    def _busy(self, replica: Replica, why: str) -> None:
        replica.probe_results["busy"] += 1
        replica.enter("degraded", why)

    def _failed(self, replica: Replica, result: str, why: str, reason: str) -> None:
        replica.probe_results[result] += 1
        replica.consecutive_failures += 1
        if reason == "frozen" and replica.state == "starting":
            replica.reason = why
            return
        self.out(replica, "frozen" if reason == "frozen" else "down", why, reason)

    # --- load and silence ---

    async def _read_load_for_ever(self, replica: Replica) -> None:
        while True:
            self._asked[replica] = time.monotonic()
            try:
                # Longer than silence_timeout: the watchdog judges, this only ends a dead question.
                async with asyncio.timeout(self.settings.silence_timeout * 3):
                    status, page = await ask(replica, "GET", "/metrics")
                if status == 200:
                    seen = load.read(page)
                    replica.running, replica.waiting = seen.running, seen.waiting
                    replica.kv_usage, replica.tokens = seen.kv_usage, seen.tokens
            except (OSError, ValueError, TimeoutError) as e:
                # Of anything else the probe and the watchdog judge.
                if replica.in_rotation and was_refused(e):
                    self.refused(replica)
            self._asked.pop(replica, None)
            await asyncio.sleep(self.settings.load_interval)

    async def _watch_silence(self) -> None:
        """Nothing heard for silence_timeout though a question is open: frozen."""
        last = {r: (r.heard, time.monotonic()) for r in self.replicas}
        limit = self.settings.silence_timeout
        # Silence counts from the last byte heard, though the question comes up to load_interval after it:
        # a request that arrives as the replica freezes waits no longer than silence_timeout.
        least_asked = limit - min(self.settings.load_interval, limit / 2)
        before = time.monotonic()
        while True:
            await asyncio.sleep(WATCHDOG_SECONDS)
            now = time.monotonic()
            stalled, before = now - before > limit / 2, now
            if stalled:
                # It was us who stood still (stopped, suspended): what they said meanwhile is still unread.
                last = {r: (r.heard, now) for r in self.replicas}
                continue
            for replica in self.replicas:
                heard, when = last[replica]
                asked = self._asked.get(replica)
                if replica.heard != heard or asked is None:
                    last[replica] = (replica.heard, now)
                elif replica.in_rotation and now - when >= limit and now - asked >= least_asked:
                    self.out(replica, "frozen", f"silent for {now - when:.1f} s", "frozen")


def _status_words(status: int, body: bytes) -> str:
    cure = {
        401: "; it wants an API key: start it without --api-key, or behind a private network",
        404: "; is it a vLLM OpenAI server?",
    }.get(status, "")
    return (
        f"status {status}{cure}: {body[:120].decode(errors='replace')}"
        if status >= 400
        else f"status {status}"
    )
