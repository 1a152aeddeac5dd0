"""Engine collector: reads each replica's vLLM metrics page and turns it into the catalogue's series.

vLLM gives its number of KV blocks only as a label of ``vllm:cache_config_info``, and PromQL can't compute with
labels; here they become numbers. Finding the lines on the page is ``_vllm.py``; this file is the reading:
all replicas at once, each with its own time limit, so that a dead or hung one costs the others nothing.

A replica whose page can't be read (refused, too slow, not 200, longer than 8 MiB, not vLLM's) has
``exaserve_engine_up`` 0 and no other series.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterable

import httpx

from exporters.collectors._vllm import samples_of
from exporters.registry import NoData, Sample, register
from exporters.settings import Replica, Settings, parse_discovery

log = logging.getLogger("exaserve.exporter")

#: A page of vLLM 0.32 has 50 KB.
MAX_BODY_BYTES = 8 * 2**20
#: Open connections; keeps a long list of replicas below the usual limit of 1,024 file descriptors.
MAX_CONCURRENT = 256
#: Share of the time that the service discovery may take before the last known list is used.
_DISCOVERY_SHARE = 0.25


class EngineCollector:
    """Reads the replicas of ``settings``; those named by ``--replica`` win over discovered ones."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # Making one takes 20 ms, too much for every scrape.
        self._tls = ssl.create_default_context()
        self._discovered: tuple[Replica, ...] = ()
        self._said: dict[str, str] = {}

    def collect(self, deadline: float) -> list[Sample]:
        if not self._settings.replicas and not self._settings.discover:
            raise NoData
        # Not asyncio.run: it would wait for a name lookup that hangs in its thread.
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._collect(deadline))
        finally:
            loop.close()

    async def _collect(self, deadline: float) -> list[Sample]:
        # Fresh connections: vLLM closes idle ones after 5 s, which would race with a scrape every 5 s.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            verify=self._tls, trust_env=False, timeout=self._settings.timeout, limits=limits
        ) as client:
            replicas = await self._replicas(client, deadline)
            if not replicas:
                raise NoData
            gate = asyncio.Semaphore(MAX_CONCURRENT)
            pages = await asyncio.gather(*(self._page(client, gate, r, deadline) for r in replicas))
        self._forget(replicas)
        samples: list[Sample] = []
        for replica, page in zip(replicas, pages, strict=True):
            samples += self._samples(replica, page)
        return samples

    async def _replicas(self, client: httpx.AsyncClient, deadline: float) -> list[Replica]:
        found = {r.name: r for r in self._settings.replicas}
        if self._settings.discover:
            seconds = max(0.1, (deadline - time.monotonic()) * _DISCOVERY_SHARE)
            try:
                body = await _get(client, self._settings.discover, seconds)
                self._discovered = parse_discovery(body)
                self._say("discovery", "")
            except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError, ValueError) as error:
                # The replicas don't go away because the discovery did; Prometheus keeps its list too.
                self._say(
                    "discovery", f"{_why(error)}; keeping {len(self._discovered)} replicas known before"
                )
                if not self._discovered and not found:
                    raise RuntimeError(f"{self._settings.discover}: {_why(error)}") from None
            for r in self._discovered:
                found.setdefault(r.name, r)
        return list(found.values())

    async def _page(
        self, client: httpx.AsyncClient, gate: asyncio.Semaphore, replica: Replica, deadline: float
    ) -> bytes | str:
        """The page, or why it couldn't be read."""
        try:
            async with asyncio.timeout(max(0.05, deadline - time.monotonic())), gate:
                return await _get(client, replica.url, self._settings.timeout)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError, ValueError) as error:
            return _why(error)

    def _samples(self, replica: Replica, page: bytes | str) -> Iterable[Sample]:
        found = samples_of(page, replica.name) if isinstance(page, bytes) else []
        problem = page if isinstance(page, str) else "" if found else "no vllm: metrics on its page"
        self._say(replica.name, problem)
        return [Sample("exaserve_engine_up", (replica.name,), float(not problem)), *found]

    def _say(self, who: str, problem: str) -> None:
        """One log line per change, not one per scrape."""
        if self._said.get(who, "") != problem:
            log.warning("%s: %s", who, problem or "is read again")
        self._said[who] = problem

    def _forget(self, replicas: list[Replica]) -> None:
        names = {r.name for r in replicas} | {"discovery"}
        self._said = {who: said for who, said in self._said.items() if who in names}


async def _get(client: httpx.AsyncClient, url: str, seconds: float) -> bytes:
    """The body of ``url`` within ``seconds`` in all. Raises httpx.HTTPError, TimeoutError, ValueError."""
    headers = {"accept": "text/plain", "accept-encoding": "identity"}
    async with asyncio.timeout(seconds), client.stream("GET", url, headers=headers) as answer:
        if answer.status_code != 200:
            raise ValueError(f"answered {answer.status_code}")
        body = bytearray()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise ValueError(f"its page is longer than {MAX_BODY_BYTES} bytes")
    return bytes(body)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


register("engine", EngineCollector)
