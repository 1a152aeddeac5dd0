"""Clients that read their answers slowly: what is not read has to be held by somebody, and must stay bounded."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from chaos.engines import traffic
from chaos.fault import Fault, Parameters, Proof, Target


class SlowReaderParameters(Parameters):
    clients: int = Field(8, ge=1, le=512, description="clients at once")
    bytes_per_second: float = Field(
        200.0, ge=10, le=100_000, description="what each client reads, in bytes/s"
    )
    max_tokens: int = Field(512, ge=1, le=4096, description="length of the answers in tokens")


def _proof(target: Target, p: Any, stats: traffic.Stats, seconds: float) -> Proof:
    readers, each = traffic.answered(stats, "200"), stats.get("bytes", 0) / seconds / p.clients
    told = f"{stats['open']} clients read {each:.0f} bytes/s each, {readers} answers have begun"
    slow = stats["open"] == p.clients and readers >= p.clients and 0 < each <= 1.5 * p.bytes_per_second
    return Proof(slow, told, each)


def _options(target: Target, p: Any) -> dict[str, Any]:
    return {"clients": p.clients, "bytes_per_second": p.bytes_per_second, "max_tokens": p.max_tokens}


FAULT = Fault(
    name="traffic_slow_reader",
    kind="traffic",
    summary="clients read their answers very slowly",
    engines=(traffic.Source("slow", _options, _proof, least=1.5),),
    parameters=SlowReaderParameters,
)
