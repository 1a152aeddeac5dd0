"""A share of the packets of a node's link is lost: streams stutter, connections take seconds to come about."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from chaos.engines import nftables, tc
from chaos.fault import Fault, Parameters


class LossParameters(Parameters):
    percent: float = Field(10.0, ge=0.5, le=90, description="packets lost in a direction, of 100")
    direction: Literal["both", "in", "out"] = Field(
        "both", description="of the node's traffic: both, in or out"
    )


def _rules(p: LossParameters) -> tuple[str | None, str | None]:
    drop = f"numgen random mod 10000 < {round(p.percent * 100)}"
    return (drop if p.direction != "out" else None, drop if p.direction != "in" else None)


FAULT = Fault(
    name="link_loss",
    kind="link",
    summary="packets of the node's link are lost at random",
    engines=(
        tc.NetemLoss(),
        nftables.Drop(
            "link_loss",
            "nftables drops packets at random; the kernel ends it by itself",
            _rules,
            nftables.judge_loss,
        ),
    ),
    parameters=LossParameters,
)
