"""A node is gone: power, kernel or host lost, with everything that ran on it."""

from __future__ import annotations

from chaos.engines import node_life
from chaos.fault import Fault

FAULT = Fault(
    name="node_killed",
    kind="node",
    summary="the node and everything on it ends at once",
    engines=(node_life.KillInit(), node_life.Restart()),
)
