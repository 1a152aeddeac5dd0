"""Which rate to try next, and what a search has found: the highest rate at which the SLO holds.

Pure decisions; who plays the steps and counts their requests is ``_conduct``. The rate is doubled from the lowest one
until a step misses (the bracket), then the gap between the highest that held and the lowest that missed is halved in
ratio until the two are within the precision. A step whose attainment can't be told from the target (its 95 % Wilson
interval has the target in it) is played once more and both are counted together.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

_Z = 1.959963984540054  # two-sided 95 %


@dataclass(slots=True)
class Step:
    """One rate and what came of it. good: of the offered ones. lag: P99 of the client's own lateness, seconds.

    verdict: held or missed; void: the client itself was too slow for it.
    """

    rate: float
    seconds: float
    offered: int = 0
    good: int = 0
    lag: float | None = None
    plays: int = 1
    verdict: str = ""
    interval: tuple[float, float] = (0.0, 1.0)

    @property
    def attainment(self) -> float:
        """Good ÷ offered; 0 of none."""
        return self.good / self.offered if self.offered else 0.0


@dataclass
class Search:
    """low, high: requests a second to look between. target: attainment (0-1). precision: of the ratio, 0.05 is 5 %."""

    low: float
    high: float
    target: float
    precision: float
    steps: list[Step] = field(default_factory=list)
    held: float | None = None
    missed: float | None = None
    limited: float | None = None  # the client was too slow at it

    def next_rate(self) -> float | None:
        """What to try; None when it has been found (or can't be)."""
        again = self._unclear()
        if again is not None:
            return again.rate
        ceiling = min((r for r in (self.missed, self.limited) if r is not None), default=None)
        if self.held is None:
            return self.low if ceiling is None else None
        if ceiling is None:
            return min(self.held * 2, self.high) if self.held < self.high else None
        if ceiling / self.held <= 1 + self.precision:
            return None
        return math.sqrt(self.held * ceiling)

    def tell(self, step: Step) -> Step:
        """What a step brought; one that repeats the rate before it is counted together with it. Returns the sum."""
        again = self._unclear()
        if again is not None and step.verdict != "void":
            self.steps.pop()
            step.offered += again.offered
            step.good += again.good
            step.seconds += again.seconds
            step.plays += again.plays
            step.lag = max(x or 0.0 for x in (step.lag, again.lag))
        step.interval = wilson(step.good, step.offered)
        if step.verdict != "void":
            step.verdict = "held" if step.attainment >= self.target else "missed"
        self.steps.append(step)
        if self._unclear() is None:
            match step.verdict:
                case "held":
                    self.held = max(step.rate, self.held or 0.0)
                case "missed":
                    self.missed = min(step.rate, self.missed or math.inf)
                case "void":
                    self.limited = min(step.rate, self.limited or math.inf)
        return step

    def result(self) -> dict[str, Any]:
        """Plain data: rate (null: none held), the range it is in, and what each step brought."""
        ceilings = [r for r in (self.missed, self.limited) if r is not None]
        return {
            "rate": self.held,
            "not_above": min(ceilings, default=None),
            "limited_by_client": self.limited is not None and self.limited <= (self.missed or math.inf),
            "precision": self.precision,
            "target": self.target,
            "words": self.words(),
            "exit_code": 0 if self.held is not None else 3 if self.limited is not None else 1,
            "steps": [{**asdict(step), "attainment": step.attainment} for step in self.steps],
        }

    def words(self) -> str:
        """The result as a sentence."""
        slo = f"the SLO at {self.target:.3%} of the requests".replace(".000%", "%")
        ceiling = min((r for r in (self.missed, self.limited) if r is not None), default=None)
        by_client = self.limited is not None and ceiling == self.limited
        if self.held is None:
            if by_client:
                return f"void: this client can't send {self.low:g} requests/s on time"
            return f"even {self.low:g} requests/s miss {slo}; try lower ones"
        best = max((s for s in self.steps if s.rate == self.held), key=lambda s: s.offered)
        low, high = best.interval
        seen = (
            f"there {best.attainment:.2%} of {best.offered} were good, 95 % interval {low:.2%} to {high:.2%}"
        )
        if ceiling is None:
            return f"{self.held:g} requests/s hold {slo}, the highest rate tried; {seen}"
        over = f"{ceiling:.4g} {'are more than this client can send on time' if by_client else 'miss it'}"
        return f"{self.held:.4g} requests/s hold {slo}, {over}; {seen}"

    def _unclear(self) -> Step | None:
        """The last step, if it has to be played again."""
        if not self.steps or self.steps[-1].plays > 1 or self.steps[-1].verdict == "void":
            return None
        low, high = self.steps[-1].interval
        return self.steps[-1] if low < self.target < high and self.steps[-1].offered else None


def wilson(good: int, of: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927); 0 to 1 of none."""
    if of == 0:
        return 0.0, 1.0
    share, square = good / of, _Z * _Z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = _Z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)
