"""A flood of prompts that are longer than the model's context: each has to be refused early and cheaply."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from chaos.engines import traffic
from chaos.fault import Fault, Parameters, Proof, Target


class LongParameters(Parameters):
    rate: float = Field(5.0, gt=0, le=100, description="requests/s")
    words: int = Field(100_000, ge=1000, le=1_000_000, description="words (about tokens) of each prompt")


def _proof(target: Target, p: Any, stats: traffic.Stats, seconds: float) -> Proof:
    refused = traffic.answered(stats, "400", "413", "422")
    told = f"{stats.get('sent', 0)} sent in {seconds:.1f} s, {refused} refused as too long, answers {stats['answers']}"
    return Proof(refused >= 2, told, float(refused))


FAULT = Fault(
    name="traffic_long",
    kind="traffic",
    summary="a flood of requests whose prompts are too long for the model",
    engines=(traffic.Source("long", lambda _, p: {"rate": p.rate, "words": p.words}, _proof),),
    parameters=LongParameters,
)
