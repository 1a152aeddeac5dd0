"""What a run calls good: limits of a request's latencies, and how large a share of requests must keep them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from exporters.catalog.loadtest import LATENCIES
from loadtest._lib._record import Record

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Objectives:
    """Each in seconds; None where the run does not judge it.

    itl judges the longest gap of a stream. A latency that a request has not (the first token of an answer that was
    not streamed, the gaps of a single chunk) is not judged.
    """

    ttft: float | None = None
    itl: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """Of ``ttft=1s,itl=200ms``; empty text judges nothing. Raises ValueError that says what to write."""
        limits: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, limit = (piece.strip() for piece in part.partition("="))
            if name not in LATENCIES:
                raise ValueError(
                    f"{name!r} is none of {', '.join(LATENCIES)}; write it like ttft=1s,itl=200ms"
                )
            if name in limits:
                raise ValueError(f"{name} is there twice")
            limits[name] = seconds(limit)
        return cls(**limits)

    def judge(self, record: Record) -> bool:
        """True if the request completed and kept every limit."""
        if record.outcome != "ok":
            return False
        longest = max(record.gaps) / 1000 if record.gaps and self.itl is not None else None
        return not (
            _over(record.ttft, self.ttft)
            or _over(record.tpot, self.tpot)
            or _over(record.e2e, self.e2e)
            or _over(longest, self.itl)
        )

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


def _over(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value > limit


def seconds(text: str) -> float:
    """Of ``1.5s`` or ``200ms``. Raises ValueError for anything else, also for 0 and above a day."""
    match = _DURATION.fullmatch(text)
    value = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else 0.0
    if not 0 < value <= 86_400:
        raise ValueError(f"{text!r} is no time with its unit, above 0, like 1.5s or 200ms")
    return value
