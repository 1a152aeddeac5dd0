"""HTTP/1.1 GET from thousands of servers side by side, in one thread, over plain sockets and a selector.

An HTTP library spends over a millisecond of CPU on one page; this spends a tenth of that, which is what one process
can afford for 3,072 replicas every few seconds. It can do no more than the exporter needs: one GET is ``_get.py``.
Every question has its time and its size, and a bounded number is open at a time; connections are not kept, because
vLLM closes an idle one after 5 s, which would race with a scrape every 5 s. What is asked is ``engine.py``'s business.
"""

from __future__ import annotations

import heapq
import resource
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING

from exporters.collectors._addresses import Addresses
from exporters.collectors._get import Line, target_of

if TYPE_CHECKING:
    import ssl

#: Connections open at one time, where the limit of file descriptors allows them.
MAX_OPEN = 512
#: Between two looks whether a name has its addresses.
_NAME_TICK = 0.01


class NotAsked(TimeoutError):
    """The time was over before it was its turn."""

    def __init__(self) -> None:
        super().__init__("the time was over before it was asked")


class Ask:
    """One GET. seconds: from its connect to the whole body. most: bytes of the body.

    then: called once with the body or the reason why there is none (OSError, TimeoutError, ValueError); what it
    returns is asked next.
    """

    __slots__ = ("most", "seconds", "then", "url")

    def __init__(
        self, url: str, seconds: float, most: int, then: Callable[[bytes | Exception], Ask | None]
    ) -> None:
        self.url, self.seconds, self.most, self.then = url, seconds, most, then


class Fetcher:
    """Kept from scrape to scrape for its addresses and its TLS context (which takes 20 ms to make)."""

    def __init__(self) -> None:
        self.addresses = Addresses()
        self._tls: ssl.SSLContext | None = None

    def run(self, asks: Iterable[Ask], until: float) -> None:
        """Asks them all; what has no answer at ``until`` (time.monotonic()) gets a TimeoutError."""
        with selectors.DefaultSelector() as selector:
            Run(self, selector, deque(asks), until).run()
        self.addresses.forget()

    def tls(self) -> ssl.SSLContext:
        if self._tls is None:
            import ssl

            self._tls = ssl.create_default_context()
        return self._tls


class Run:
    """One batch of questions."""

    def __init__(
        self, fetcher: Fetcher, selector: selectors.BaseSelector, queue: deque[Ask], until: float
    ) -> None:
        self.fetcher = fetcher
        self.selector = selector
        self.queue = queue
        self.until = until
        self.open: set[Line] = set()
        self.nameless: deque[Line] = deque()
        self.alarms: list[tuple[float, int, Line, int]] = []
        self.numbers = count()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most_open = MAX_OPEN if soft == resource.RLIM_INFINITY else max(16, min(MAX_OPEN, soft // 2))

    def run(self) -> None:
        while self.queue or self.open:
            now = time.monotonic()
            if now >= self.until:
                break
            for _ in range(len(self.nameless)):
                if self._full():
                    break
                self.nameless.popleft().resolve()
            while self.queue and not self._full():
                self._begin(self.queue.popleft(), now)
            if not self.open:  # all of them failed at once
                continue
            wait = max(0.0, (self.alarms[0][0] if self.alarms else self.until) - now)
            if self.nameless:
                wait = min(wait, _NAME_TICK)
            for key, _ in self.selector.select(min(wait, self.until - now)):
                key.data.ready()
            self._alarms()
        for line in list(self.open):
            line.end(TimeoutError())
        while self.queue:
            self.queue.popleft().then(NotAsked())

    def _full(self) -> bool:
        """Names that are looked up hold no socket: a name server that hangs costs the others no place."""
        return len(self.open) - len(self.nameless) >= self.most_open

    def alarm(self, line: Line, when: float, address: int) -> None:
        heapq.heappush(self.alarms, (when, next(self.numbers), line, address))

    def _alarms(self) -> None:
        now = time.monotonic()
        while self.alarms and self.alarms[0][0] <= now:
            _, _, line, address = heapq.heappop(self.alarms)
            if line in self.open:
                line.late(address)

    def _begin(self, ask: Ask, now: float) -> None:
        try:
            target = target_of(ask.url)
        except ValueError as error:
            self.done(ask, error)
            return
        line = Line(self, ask, target)
        self.open.add(line)
        self.alarm(line, now + ask.seconds, -1)
        line.resolve()

    def done(self, ask: Ask, answer: bytes | Exception) -> None:
        more = ask.then(answer)
        if more is not None:
            self.queue.appendleft(more)

    def too_many_files(self, ask: Ask) -> bool:
        """Puts the question back if others hold files that they will give back."""
        if not self.open:
            return False
        self.most_open = len(self.open)
        self.queue.appendleft(ask)
        return True
