"""A black hole for large packets: small ones pass, large ones vanish without a word, so handshakes work and answers hang."""

from __future__ import annotations

from pydantic import Field

from chaos.engines import nftables
from chaos.fault import Fault, Parameters


class MtuParameters(Parameters):
    bytes: int = Field(1000, ge=200, le=1450, description="IP packets larger than this vanish")


def _rules(p: MtuParameters) -> tuple[str | None, str | None]:
    return (f"meta length > {p.bytes}",) * 2


FAULT = Fault(
    name="link_mtu",
    kind="link",
    summary="large packets of the node's link vanish without an ICMP message (MTU black hole)",
    engines=(
        nftables.Drop(
            "link_mtu",
            "nftables drops IP packets above the size, both ways",
            _rules,
            nftables.judge_black_hole,
        ),
    ),
    parameters=MtuParameters,
)
