"""For how long each model's engines have had work and done none of it: a stuck engine apart from an idle one.

An engine is stuck for as long as, at every read, it had a request running or waiting and none of its signs of
life moved: tokens, prefix queries, use of the KV cache (each make's ``_SIGNS``; the last one because a long prefill
yields no token for minutes). Nothing to do is no standstill, a sleeping engine with requests is one. It is a lower
bound: what was before the first read is not known, and a stop between two reads that ended is not seen. While a
page can't be read, the clock runs on if the engine comes back exactly as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from exporters.collectors._page import Engine, Vital


class Progress:
    """One (signs, time) per engine of each replica; forgotten with the replica, or with the engine's lines."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[Engine, tuple[tuple[float, ...], float]]] = {}

    def stalled(self, replica: str, vitals: Mapping[Engine, Vital], now: float) -> dict[str, float]:
        """Seconds of standstill by model, of its worst engine; nothing at the first read. now: time.monotonic()."""
        before, seen = self._seen.get(replica, {}), {}
        seconds: dict[str, float] = {}
        for engine, (work, signs) in vitals.items():
            known = before.get(engine)
            same = known is not None and work > 0 and known[0] == signs
            since = known[1] if known is not None and same else now
            seen[engine] = (signs, since)
            if known is not None:
                seconds[engine[0]] = max(seconds.get(engine[0], 0.0), now - since)
        self._seen[replica] = seen
        return seconds

    def keep(self, replicas: Collection[str]) -> None:
        """Forgets the others."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in replicas}
