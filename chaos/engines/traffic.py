"""Traffic as a fault: a helper program (``traffic_source.py``) that sends it to the router, bounded in count and time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos import ask, recover, steps
from chaos.fault import Engine, Plan, Proof, Refused, Target
from chaos.place import Place

Stats = dict[str, Any]


def router(target: Target) -> str:
    """The router's address. Raises Refused."""
    url = target.place.addresses.get("router")
    if not url:
        raise Refused(f"{target.place.name} does not say where its router is (--router URL)")
    return url


class Source(Engine):
    """One kind of traffic. options: its command line, from the parameters; proof: of what it did in the last seconds.

    least: seconds of traffic before it can be proven.
    """

    name = "source"
    how = "a helper program sends it to the router until the duration is over"
    prove_within = 20.0

    def __init__(
        self,
        kind: str,
        options: Callable[[Target, Any], dict[str, Any]],
        proof: Callable[[Target, Any, Stats, float], Proof],
        least: float = 1.0,
    ) -> None:
        self._kind, self._options, self._proof, self._least = kind, options, proof, least

    def refusal(self, target: Target, p: Any) -> str | None:
        try:
            ask.model(router(target))
            self._options(target, p)
        except Refused as error:
            return str(error)
        return None

    def _stats(self) -> Path:
        return recover.folder().parent / "traffic" / f"{self._kind}.json"

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        url, stats = router(target), self._stats()
        argv = [sys.executable, "-P", "-m", "chaos.engines.traffic_source", self._kind, f"--url={url}"]
        argv += [f"--model={ask.model(url)}", f"--stats={stats}", f"--seconds={duration:g}"]
        argv += [f"--{key.replace('_', '-')}={value}" for key, value in self._options(target, p).items()]
        spawn = steps.spawn("traffic", argv, ready="ready")
        do = [steps.mkdir(str(stats.parent)), steps.remove(str(stats)), spawn]
        undo = [steps.stop("traffic"), *(steps.remove(str(stats.with_suffix(s))) for s in (".json", ".new"))]
        return Plan(do, undo, claims=(f"traffic:{self._kind}",))

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        try:
            stats: Stats = json.loads(self._stats().read_text())
        except (OSError, ValueError):
            return Proof(False, "nothing was sent yet")
        seconds = time.time() - float(stats["began"])
        if seconds < self._least:
            return Proof(False, f"sent for {seconds:.1f} s only")
        return self._proof(target, p, stats, max(0.001, float(stats["now"]) - float(stats["began"])))


def answered(stats: Stats, *codes: str) -> int:
    """Answers with these codes; with all, without one."""
    return sum(n for code, n in stats["answers"].items() if not codes or code in codes)


def rate_now(place: Place, seconds: float = 2.0) -> float:
    """Requests a second that the router answers now, from its own counter. Raises Refused."""
    admin = place.addresses.get("admin")
    if not admin:
        raise Refused(
            "the router's admin address is not known, so its traffic can't be measured: give -p rate="
        )
    counts = []
    for wait in (seconds, 0.0):
        counts.append(ask.series(f"{admin}/metrics", "exaserve_router_requests_total") or 0.0)
        time.sleep(wait)
    return (counts[1] - counts[0]) / seconds
