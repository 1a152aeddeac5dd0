"""How the requests of a run come: the options of arrivals as one piece of plain data.

Made by ``_arrival_options``, played by ``_conduct``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest._lib._arrivals import Stage
from loadtest._lib._traces import Trace


@dataclass(frozen=True, slots=True)
class Steps:
    """What a search does. low, high: requests a second; warmup, measured: seconds of a step; precision: a ratio."""

    low: float
    high: float
    measured: float
    warmup: float
    precision: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How requests come, as asked for; kind ``closed`` is users that ask one after the other, and has nothing else.

    stages: one open-ended one where just a rate was given. speed: of a trace; 2 plays it in half its time. max_open:
    requests that may be open at once in a process.
    """

    kind: str = "closed"
    stages: list[Stage] = field(default_factory=list)
    cv: float = 1.0
    trace: Trace | None = None
    speed: float = 1.0
    clip: int = 0
    until_end: bool = False
    search: Steps | None = None
    max_open: int = 5000

    @property
    def seconds(self) -> float:
        """How long it is by itself; inf: until stopped. A search: inf."""
        if self.search is not None:
            return math.inf
        if self.kind == "trace" and self.trace is not None:
            return self.trace.seconds / self.speed
        return sum(stage.seconds for stage in self.stages)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for run.json."""
        found: dict[str, Any] = {"kind": self.kind}
        if self.kind == "closed":
            return found
        found["max_open"] = self.max_open
        if self.stages:
            found["stages"] = [stage.text() for stage in self.stages]
            found["rate"] = max(max(stage.start, stage.end) for stage in self.stages)
        if self.kind == "gamma":
            found["cv"] = self.cv
        if self.kind == "trace" and self.trace is not None:
            found["trace"] = {
                "file": Path(self.trace.path).name,
                "format": self.trace.format,
                "unit": self.trace.unit,
                "requests": len(self.trace),
                "seconds": self.trace.seconds,
                "speed": self.speed,
                "clip": self.clip or None,
            }
        if self.search is not None:
            found["search"] = {
                "low": self.search.low,
                "high": self.search.high,
                "step_seconds": self.search.measured,
                "step_warmup_seconds": self.search.warmup,
                "precision": self.search.precision,
            }
        return found

    def words(self) -> str:
        """One line for the screen."""
        if self.kind == "closed":
            return "closed loop: each user asks when it has its answer"
        if self.kind == "trace" and self.trace is not None:
            at = "its own pace" if self.speed == 1 else f"{self.speed:g} times its pace"
            return f"open loop, {self.trace.words()}; at {at}: {self.seconds:,.1f} s"
        how = f"{self.kind} arrivals" + (f" (CV {self.cv:g})" if self.kind == "gamma" else "")
        if self.search is not None:
            s = self.search
            return (
                f"open loop, {how}: search from {s.low:g} to {s.high:g} requests/s, steps of {s.measured:g} s after "
                f"{s.warmup:g} s of warm-up, to {s.precision:.3g}".rstrip("0").rstrip(".")
            )
        if math.isinf(self.seconds):
            return f"open loop, {how}: {self.stages[0].text()} requests/s until stopped"
        expected = sum(stage.area for stage in self.stages)
        shown = ", ".join(stage.text() for stage in self.stages[:6]) + (", …" if len(self.stages) > 6 else "")
        return f"open loop, {how}: {shown} (requests/s x s), about {expected:,.0f} requests in {self.seconds:g} s"
