"""A client that knows the routers of two regions: the second is asked when the first can't be reached or has nobody.

Open loop, so that a region that hangs is not asked less. What it does is what a user's client has to do: a short limit
for the first token, the same request to the other address if nothing of the answer had come, and the address that
answered last first. Load on one address is ``chaos/load.py``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

import httpx

#: Seconds to connect, and until the first token, after which the other address is asked.
CONNECT, FIRST = 0.5, 2.0


@dataclass
class Asked:
    """One request. due, ended: Unix seconds. first: seconds until the first token, from when it was due; None: none.

    addresses: those that were asked, in order. outcome: ok, lost (no token came), cut (it broke off).
    """

    due: float
    ended: float = 0.0
    first: float | None = None
    addresses: tuple[str, ...] = ()
    outcome: str = "lost"
    detail: str = ""


class Client:
    """rate: requests a second, for ``seconds``. Start, then ``join``; ``asked`` has every request that has ended."""

    def __init__(
        self, addresses: list[str], model: str, rate: float, seconds: float, max_tokens: int = 16
    ) -> None:
        self.addresses, self.asked = list(addresses), []  # type: list[str], list[Asked]
        self._model, self._rate, self._count = model, rate, int(rate * seconds)
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._pacer = threading.Thread(target=self._pace, daemon=True)
        limits = httpx.Limits(max_connections=400, max_keepalive_connections=100)
        timeout = httpx.Timeout(30.0, connect=CONNECT, read=FIRST)
        self._http = httpx.Client(timeout=timeout, limits=limits, trust_env=False)

    def start(self) -> Client:
        self._pacer.start()
        return self

    def join(self) -> list[Asked]:
        """Wait for all; every request, in the order in which they were due."""
        self._pacer.join()
        for thread in self._threads:
            thread.join(30.0)
        self._http.close()
        return sorted(self.asked, key=lambda a: a.due)

    def _pace(self) -> None:
        began, clock = time.monotonic(), time.time()
        for i in range(self._count):
            time.sleep(max(0.0, began + i / self._rate - time.monotonic()))
            thread = threading.Thread(target=self._ask, args=(Asked(clock + i / self._rate),), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _ask(self, one: Asked) -> None:
        for address in list(self.addresses):
            one.addresses += (address,)
            if self._try(one, address) or one.first is not None:
                break
        one.ended = time.time()
        with self._lock:
            self.asked.append(one)
            if one.outcome == "ok" and self.addresses[0] != one.addresses[-1]:
                self.addresses.sort(key=lambda a: a != one.addresses[-1])

    def _try(self, one: Asked, address: str) -> bool:
        """Whether it was answered whole."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"{time.time_ns():x}: count as far as you can."}],
            "max_tokens": self._max_tokens,
            "stream": True,
        }
        try:
            with self._http.stream("POST", f"{address}/v1/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    one.detail = f"{address}: status {reply.status_code}"
                    return False
                for line in reply.iter_lines():
                    if line == "data: [DONE]":
                        one.outcome, one.detail = "ok", ""
                        return True
                    if line.startswith("data: ") and '"error"' in line:
                        break
                    if line.startswith("data: ") and '"content"' in line and one.first is None:
                        one.first = time.time() - one.due
            one.detail = f"{address}: the answer broke off"
        except httpx.HTTPError as error:
            one.detail = f"{address}: {error or type(error).__name__}"
        if one.first is not None:
            one.outcome = "cut"
        return False


def plain(asked: list[Asked]) -> list[dict[str, Any]]:
    """As evidence."""
    return [asdict(a) for a in asked]
