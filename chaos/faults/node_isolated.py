"""A node that runs but can't be reached: carrier, processes and clock are well, no packet passes."""

from __future__ import annotations

from chaos.engines import nftables
from chaos.fault import Fault, Parameters


def _rules(p: Parameters) -> tuple[str | None, str | None]:
    return ("", "")


FAULT = Fault(
    name="node_isolated",
    kind="node",
    summary="no packet to or from the node passes (ssh from here does); everything on it goes on running",
    engines=(
        nftables.Drop("node_isolated", "nftables drops everything, both ways", _rules, nftables.judge_gone),
    ),
)
