"""A replica takes several times as long for everything: the grey failure that health checks miss."""

from __future__ import annotations

from pydantic import Field

from chaos.engines import sim
from chaos.engines.signals import Duty
from chaos.fault import Fault, Parameters


class SlowParameters(Parameters):
    factor: float = Field(5.0, ge=1.5, le=1000, description="how many times as long a token takes (no unit)")


FAULT = Fault(
    name="replica_slow",
    kind="replica",
    summary="every token of the replica takes several times as long",
    engines=(sim.slow(), Duty()),
    parameters=SlowParameters,
)
