"""Clients that lose patience and ask again at once, without back-off: the load that keeps an overload going."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from chaos.engines import traffic
from chaos.fault import Fault, Parameters, Proof, Target


class StormParameters(Parameters):
    clients: int = Field(16, ge=1, le=512, description="clients at once")
    patience: float = Field(
        0.2, ge=0.01, le=30, description="seconds after which a client gives up and asks again"
    )
    max_tokens: int = Field(256, ge=1, le=4096, description="length of the answers in tokens")


def _proof(target: Target, p: Any, stats: traffic.Stats, seconds: float) -> Proof:
    resent = stats.get("resent", 0)
    told = f"{stats.get('sent', 0)} sent in {seconds:.1f} s, {resent} of them again at once"
    return Proof(resent >= p.clients, told, resent / seconds)


def _options(target: Target, p: Any) -> dict[str, Any]:
    return {"clients": p.clients, "patience": p.patience, "max_tokens": p.max_tokens}


FAULT = Fault(
    name="traffic_retry_storm",
    kind="traffic",
    summary="clients give up early and ask again at once, without back-off",
    engines=(traffic.Source("storm", _options, _proof),),
    parameters=StormParameters,
)
