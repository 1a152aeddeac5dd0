"""A node's link carries packets in one direction only: what it sends arrives, what is sent to it does not."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from chaos.engines import nftables
from chaos.fault import Fault, Parameters


class OneWayParameters(Parameters):
    direction: Literal["in", "out"] = Field(
        "in", description="what is lost: traffic to the node (in) or from it (out)"
    )


def _rules(p: OneWayParameters) -> tuple[str | None, str | None]:
    return ("", None) if p.direction == "in" else (None, "")


FAULT = Fault(
    name="link_one_way",
    kind="link",
    summary="the node's link carries packets in one direction only",
    engines=(
        nftables.Drop(
            "link_one_way",
            "nftables drops all that comes in, or all that goes out",
            _rules,
            nftables.judge_gone,
        ),
    ),
    parameters=OneWayParameters,
)
