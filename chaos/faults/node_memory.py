"""A node's memory runs short because something else takes it."""

from __future__ import annotations

from pydantic import Field

from chaos.engines import node_memory
from chaos.fault import Fault, Parameters


class MemoryParameters(Parameters):
    mib: int = Field(1024, ge=64, le=1 << 20, description="MiB that are taken")


FAULT = Fault(
    name="node_memory",
    kind="node",
    summary="memory of the node is taken by another process",
    engines=(node_memory.Hog(),),
    parameters=MemoryParameters,
)
