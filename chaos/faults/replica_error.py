"""A replica answers requests for text with an error status at once, as one that is broken and looks idle, or with 429."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from chaos.engines import sim
from chaos.fault import Fault, Parameters


class ErrorParameters(Parameters):
    status: Literal[429, 500, 502, 503] = Field(503, description="HTTP status of the answers")
    probability: float = Field(1.0, gt=0, le=1, description="share of the requests (0-1)")
    retry_after: float = Field(1.0, ge=0, le=86_400, description="Retry-After of a 429 in seconds; 0: none")


def _kind(p: Any) -> str:
    return {429: "too_many_requests", 503: "fast_503"}.get(p.status, "error")


def _body(p: Any) -> dict[str, Any]:
    extra: dict[str, Any] = {429: {"retry_after": p.retry_after}, 503: {}}.get(p.status, {"status": p.status})
    return {"probability": p.probability, **extra}


FAULT = Fault(
    name="replica_error",
    kind="replica",
    summary="the replica answers requests for text with 503, 429, 500 or 502",
    engines=(sim.Simulated(_kind, _body, lambda target, p, _: sim.answers(target, p.status, p.probability)),),
    parameters=ErrorParameters,
)
