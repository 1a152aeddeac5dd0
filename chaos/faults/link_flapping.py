"""A node's link comes and goes, as with a bad cable or transceiver."""

from __future__ import annotations

from pydantic import Field

from chaos.engines import iplink
from chaos.fault import Fault, Parameters


class FlappingParameters(Parameters):
    period: float = Field(2.0, ge=0.4, le=60, description="seconds from one loss of the carrier to the next")
    down: float = Field(0.5, ge=0.1, le=0.9, description="share of the period without carrier")


FAULT = Fault(
    name="link_flapping",
    kind="link",
    summary="the node's link loses its carrier again and again",
    engines=(iplink.Flap(),),
    parameters=FlappingParameters,
)
