"""A node's clock is wrong: time service lost, a bad battery."""

from __future__ import annotations

from pydantic import Field

from chaos.engines import node_clock
from chaos.fault import Fault, Parameters


class ClockParameters(Parameters):
    seconds: float = Field(
        30.0, ge=-3600, le=3600, description="seconds that the clock is put forward; back below 0"
    )


FAULT = Fault(
    name="node_clock",
    kind="node",
    summary="the node's clock is wrong",
    engines=(node_clock.Settime(),),
    parameters=ClockParameters,
)
