"""How long prompts and answers are: stated distributions over numbers of tokens, and how they fit a small context.

Not here: which profile takes which (the profiles), what the tokens say (``_text``, ``_code``).

A distribution that does not fit what the server takes is scaled down as a whole (``within``), so that its shape
stays: cutting long prompts to one length would make a peak that no traffic has.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol


class Lengths(Protocol):
    """A distribution over whole numbers of tokens, ``low`` to ``high``, both included."""

    @property
    def low(self) -> int: ...

    @property
    def high(self) -> int: ...

    def draw(self, draw: random.Random) -> int:
        """One length, tokens."""
        ...

    def within(self, limit: int) -> Lengths:
        """The same, if ``high`` is at most ``limit`` tokens (1 or more); else scaled by limit / high."""
        ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp(N(ln median, sigma)) given that it lies in low … high: what falls outside is drawn again, in effect."""

    median: float
    sigma: float
    low: int
    high: int

    def draw(self, draw: random.Random) -> int:
        normal = NormalDist(math.log(self.median), self.sigma)
        least, most = normal.cdf(math.log(self.low - 0.5)), normal.cdf(math.log(self.high + 0.5))
        share = min(max(draw.uniform(least, most), 1e-12), 1 - 1e-12)
        return max(self.low, min(self.high, round(math.exp(normal.inv_cdf(share)))))

    def within(self, limit: int) -> LogNormal:
        scale = limit / self.high
        if scale >= 1:
            return self
        return LogNormal(max(1.0, self.median * scale), self.sigma, max(1, int(self.low * scale)), limit)

    def __str__(self) -> str:
        return f"log-normal, median {self.median:.0f}, sigma {self.sigma:g}, {self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each of low … high equally likely."""

    low: int
    high: int

    def draw(self, draw: random.Random) -> int:
        return draw.randint(self.low, self.high)

    def within(self, limit: int) -> Uniform:
        scale = limit / self.high
        return self if scale >= 1 else Uniform(max(1, int(self.low * scale)), limit)

    def __str__(self) -> str:
        return f"{self.low}" if self.low == self.high else f"uniform, {self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Empirical:
    """Measured lengths. points: (share of lengths at or below, tokens), rising, first share 0, last 1.

    Between two points it is linear. Raises ValueError for points that are no distribution.
    """

    points: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.points]
        tokens = [length for _, length in self.points]
        whole = len(self.points) >= 2 and shares[0] == 0 and shares[-1] == 1
        if not whole or shares != sorted(set(shares)) or tokens != sorted(tokens) or tokens[0] < 1:
            raise ValueError(
                "points must be (share, tokens) that rise from share 0 to share 1, 1 token or more"
            )

    @property
    def low(self) -> int:
        return self.points[0][1]

    @property
    def high(self) -> int:
        return self.points[-1][1]

    def draw(self, draw: random.Random) -> int:
        return round(self.quantile(draw.random()))

    def quantile(self, share: float) -> float:
        """Tokens that ``share`` (0 … 1) of the lengths do not exceed."""
        for (x0, y0), (x1, y1) in zip(self.points, self.points[1:], strict=False):
            if share <= x1:
                return y0 + (y1 - y0) * (share - x0) / (x1 - x0)
        return float(self.high)

    def within(self, limit: int) -> Empirical:
        scale = limit / self.high
        if scale >= 1:
            return self
        return Empirical(tuple((share, max(1, int(tokens * scale))) for share, tokens in self.points))

    def __str__(self) -> str:
        return f"measured, median {self.quantile(0.5):.0f}, {self.low}-{self.high}"
