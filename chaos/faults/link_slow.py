"""A node's link is slow: every packet comes later. Constant delay shifts first tokens; jitter also stretches gaps."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from chaos.engines import shaper, tc
from chaos.fault import Fault, Parameters


class SlowLinkParameters(Parameters):
    milliseconds: float = Field(40.0, ge=1, le=2000, description="milliseconds added to a round trip")
    jitter: float = Field(0.0, ge=0, le=2000, description="milliseconds by which that may differ, up or down")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.jitter > self.milliseconds:
            raise ValueError("jitter must not be above milliseconds")
        return self


FAULT = Fault(
    name="link_slow",
    kind="link",
    summary="every packet of the node's link comes later",
    engines=(tc.NetemDelay(), shaper.Delay()),
    parameters=SlowLinkParameters,
)
