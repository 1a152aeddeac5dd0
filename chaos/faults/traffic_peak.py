"""More traffic than usual: so many times what the router answers now, open loop, as users come."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import Field

from chaos.engines import traffic
from chaos.fault import Fault, Parameters, Proof, Refused, Target


class PeakParameters(Parameters):
    factor: float = Field(
        1.5, gt=1, le=10, description="traffic in all, as a multiple of the traffic now (no unit)"
    )
    rate: float = Field(
        0.0,
        ge=0,
        le=500,
        description="the traffic now in requests/s; 0: measured from the router's counter over 2 s",
    )
    max_tokens: int = Field(32, ge=1, le=4096, description="length of the answers in tokens")


@lru_cache(maxsize=16)
def _measured(place: Any) -> float:
    return traffic.rate_now(place)


def _extra(target: Target, p: Any) -> float:
    rate = p.rate or _measured(target.place)
    if rate < 0.1:
        raise Refused("the router has no traffic now that could be multiplied: run a load, or give -p rate=")
    return min(500.0, rate * (p.factor - 1))


def _options(target: Target, p: Any) -> dict[str, Any]:
    return {"rate": f"{_extra(target, p):.3f}", "max_tokens": p.max_tokens}


def _proof(target: Target, p: Any, stats: traffic.Stats, seconds: float) -> Proof:
    sent, wanted = stats.get("sent", 0) / seconds, _extra(target, p)
    told = f"{sent:.1f} requests/s more are sent ({wanted:.1f} wanted), {traffic.answered(stats)} answered"
    return Proof(sent >= 0.8 * wanted and traffic.answered(stats) > 0, told, sent)


FAULT = Fault(
    name="traffic_peak",
    kind="traffic",
    summary="1.5 times the traffic of now (or another factor)",
    engines=(traffic.Source("peak", _options, _proof),),
    parameters=PeakParameters,
)
