"""A node's link carries no more than a rate: a lane lost, a congested uplink."""

from __future__ import annotations

from pydantic import Field

from chaos.engines import tc
from chaos.fault import Fault, Parameters


class CappedParameters(Parameters):
    megabits: float = Field(10.0, ge=0.1, le=100_000, description="Mbit/s that pass, in each direction")


FAULT = Fault(
    name="link_capped",
    kind="link",
    summary="the node's link carries no more than a rate",
    engines=(tc.Cap(),),
    parameters=CappedParameters,
)
