"""Engine collector: reads each replica's metrics page and turns it into the catalogue's golden signals.

All replicas at once and in one thread (``_fetch.py``), each with its own time limit, so that a dead or hung one
costs the others nothing; those that hung at the last scrape come last. What stands on a page is each make's own
file: ``_vllm.py`` (also under Ray), ``_sglang.py``, ``_tensorrt_llm.py``. Standstill is ``_progress.py``.

vLLM is asked for the wanted names only (``_vllm.FILTER``): measured on 0.32, that costs it 1 ms of CPU instead of
5.5 ms for its whole page, and 5 KB instead of 50. An engine that has no such address, or answers nothing that is known, is asked for its page the
plain way in the same scrape, and from then on; TensorRT-LLM keeps it elsewhere and is asked there third. A replica
that can't be read is asked the first way again, for it may come back as another version.

A replica whose page can't be read (refused, too slow, not 200, longer than 8 MiB, of no known engine) has
``exaserve_engine_up`` 0 and no other series.
"""

from __future__ import annotations

import json
import logging
import re
import time
from urllib.parse import urlsplit

from exporters.collectors import _sglang, _tensorrt_llm, _vllm
from exporters.collectors._fetch import Ask, Fetcher, NotAsked
from exporters.collectors._get import Refusal
from exporters.collectors._page import Reading
from exporters.collectors._progress import Progress
from exporters.registry import NoData, Sample, register
from exporters.settings import SKIPPED, Discovered, Replica, Settings, parse_discovery, without_password

log = logging.getLogger("exaserve.exporter")

#: A page of vLLM 0.32 has 50 KB.
MAX_BODY_BYTES = 8 * 2**20
#: SGLang's server_info tells all its arguments.
MAX_INFO_BYTES = 2**20
#: Replicas that are asked for their version at one scrape, and how long one may take.
VERSIONS_PER_SCRAPE = 1024
VERSION_SECONDS = 1.0
#: Share of the time that the service discovery may take before the last known list is used.
_DISCOVERY_SHARE = 0.25
_VERSION = re.compile(r"[\w.+-]{1,64}")


class _Known:
    """What is remembered of a replica. version: None until it was asked for, "" where there is none."""

    __slots__ = ("hung", "make", "page", "version")

    def __init__(self) -> None:
        self.hung = False
        self.page = 0
        self.make = ""
        self.version: str | None = None


class EngineCollector:
    """Reads the replicas of ``settings``; those named by ``--replica`` win over discovered ones."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fetcher = Fetcher()
        self._progress = Progress()
        self._known: dict[str, _Known] = {}
        self._discovered: Discovered | None = None
        self._said: dict[str, str] = {}

    def collect(self, deadline: float) -> list[Sample]:
        if not self._settings.replicas and not self._settings.discover:
            raise NoData
        samples: list[Sample] = []
        replicas = self._replicas(deadline, samples)
        self._forget({r.name for r in replicas})
        if not replicas:
            if samples:
                return samples
            raise NoData
        replicas.sort(key=lambda r: self._known[r.name].hung)
        scrape = _Scrape(self, samples)
        # Handing over so many series takes its time too.
        until = deadline - min(0.5, 0.05 + 0.0001 * len(replicas))
        self._fetcher.run([scrape.ask(replica) for replica in replicas], until)
        return samples

    def _replicas(self, deadline: float, samples: list[Sample]) -> list[Replica]:
        found = {r.name: r for r in self._settings.replicas}
        if self._settings.discover:
            problem = self._discover(self._settings.discover, deadline)
            samples.append(Sample("exaserve_engine_discovery_up", (), float(not problem)))
            if self._discovered is None:
                if not found:
                    raise RuntimeError(f"{without_password(self._settings.discover)}: {problem}")
                return list(found.values())
            for reason in SKIPPED:
                value = float(self._discovered.skipped[reason])
                samples.append(Sample("exaserve_engine_discovery_skipped_targets", (reason,), value))
            for r in self._discovered.replicas:
                found.setdefault(r.name, r)
            if not found and not problem and not any(self._discovered.skipped.values()):
                samples.clear()
        return list(found.values())

    def _discover(self, url: str, deadline: float) -> str:
        """Takes the list that is there now, if it is. Returns the problem, if there is one."""
        answers: list[bytes | Exception] = []
        seconds = max(0.1, (deadline - time.monotonic()) * _DISCOVERY_SHARE)
        self._fetcher.run([Ask(url, seconds, MAX_BODY_BYTES, answers.append)], deadline)
        body = answers[0]
        problem = ""
        try:
            if isinstance(body, Exception):
                raise body
            self._discovered = parse_discovery(body)
        except (OSError, ValueError) as error:
            # The replicas don't go away because the discovery did; Prometheus keeps its list too.
            problem = why(error)
        known = self._discovered
        told = f"{problem}; keeping {len(known.replicas) if known else 0} replicas known before"
        self.say("discovery", told if problem else "")
        if known is not None and not problem:
            number = sum(known.skipped.values())
            self.say("targets", f"{number} of the discovery can't be used: {known.why}" if number else "")
        return problem

    def known(self, replica: Replica) -> _Known:
        return self._known[replica.name]

    def read(self, replica: Replica, page: bytes) -> Reading | None:
        """What the page says, whatever make of engine wrote it."""
        if b"vllm:" in page:
            return _vllm.read(page, replica.name)
        if b"sglang:" in page:
            return _sglang.read(page, replica.name)
        if b"trtllm_" in page:
            return _tensorrt_llm.read(page, replica.name)
        if b"ray_vllm_" in page:
            return _vllm.read(page, replica.name, ray=True)
        return None

    def stalled(self, replica: Replica, reading: Reading) -> list[Sample]:
        seconds = self._progress.stalled(replica.name, reading.vitals, time.monotonic())
        return [
            Sample("exaserve_engine_stalled_seconds", (replica.name, model), s)
            for model, s in seconds.items()
        ]

    def say(self, who: str, problem: str) -> None:
        """One log line per change, not one per scrape."""
        if self._said.get(who, "") != problem:
            log.warning("%s: %s", who, problem or "is read again")
        self._said[who] = problem

    def _forget(self, names: set[str]) -> None:
        said = names | {"discovery", "targets"}
        self._said = {who: what for who, what in self._said.items() if who in said}
        self._known = {name: self._known.get(name) or _Known() for name in names}
        self._progress.keep(names)


class _Scrape:
    """One reading of all replicas."""

    def __init__(self, collector: EngineCollector, samples: list[Sample]) -> None:
        self.collector = collector
        self.samples = samples
        self.versions = VERSIONS_PER_SCRAPE

    def ask(self, replica: Replica) -> Ask:
        """The question for a replica's page, the way that worked last."""
        return self._ask(replica, _pages(replica.url), self.collector.known(replica).page)

    def _ask(self, replica: Replica, pages: list[str], number: int) -> Ask:
        number = min(number, len(pages) - 1)

        def then(answer: bytes | Exception) -> Ask | None:
            try:
                reading = self.collector.read(replica, answer) if isinstance(answer, bytes) else None
            except Exception as error:  # a page that nobody thought of costs its own replica only
                reading, answer = None, error
            if reading is None:
                elsewhere = isinstance(answer, bytes | Refusal) and number + 1 < len(pages)
                if elsewhere:
                    return self._ask(replica, pages, number + 1)
                self._failed(replica, answer)
                return None
            self.collector.known(replica).page = number
            return self._read(replica, reading)

        return Ask(pages[number], self.collector._settings.timeout, MAX_BODY_BYTES, then)

    def _failed(self, replica: Replica, answer: bytes | Exception) -> None:
        known = self.collector.known(replica)
        known.page, known.version = 0, None
        known.hung = isinstance(answer, TimeoutError) and not isinstance(answer, NotAsked)
        problem = why(answer) if isinstance(answer, Exception) else "no metrics of a known engine on its page"
        self.collector.say(replica.name, problem)
        self.samples.append(Sample("exaserve_engine_up", (replica.name,), 0.0))

    def _read(self, replica: Replica, reading: Reading) -> Ask | None:
        known = self.collector.known(replica)
        self.collector.say(replica.name, "")
        known.hung = False
        if known.make != reading.make:
            known.make, known.version = reading.make, None
        self.samples.append(Sample("exaserve_engine_up", (replica.name,), 1.0))
        self.samples += reading.samples
        self.samples += self.collector.stalled(replica, reading)
        if not reading.version_at:
            known.version = ""
        if known.version is not None:
            self._info(replica)
        elif self.versions > 0:
            self.versions -= 1
            return self._version(replica, reading.version_at)
        return None

    def _version(self, replica: Replica, path: str) -> Ask:
        def then(answer: bytes | Exception) -> None:
            self.collector.known(replica).version = _version_in(answer) if isinstance(answer, bytes) else ""
            self._info(replica)

        parts = urlsplit(replica.url)
        seconds = min(VERSION_SECONDS, self.collector._settings.timeout)
        return Ask(f"{parts.scheme}://{parts.netloc}{path}", seconds, MAX_INFO_BYTES, then)

    def _info(self, replica: Replica) -> None:
        known = self.collector.known(replica)
        labels = (replica.name, known.make, known.version or "")
        self.samples.append(Sample("exaserve_engine_info", labels, 1.0))


def _pages(url: str) -> list[str]:
    """Where a replica's metrics may be, the cheapest first. One with a path of its own is asked there only."""
    address, found, path = url.partition("://")[2].partition("/")
    if not found or path != "metrics":
        return [url]
    base = url.removesuffix("/metrics")
    return [url + _vllm.FILTER, url, base + _tensorrt_llm.PATH] if address else [url]


def _version_in(body: bytes) -> str:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else ""


def why(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


register("engine", EngineCollector)
