"""A node's processors are busy with something else: a batch job, a runaway process, a noisy neighbour."""

from __future__ import annotations

from pydantic import Field

from chaos.engines import node_cpu
from chaos.fault import Fault, Parameters


class CpuParameters(Parameters):
    busy: float = Field(0.8, ge=0.3, le=0.99, description="share (0-1) of processor time that is taken away")


FAULT = Fault(
    name="node_cpu",
    kind="node",
    summary="the node's processors are taken away for the most part",
    engines=(node_cpu.Quota(), node_cpu.StressCpu()),
    parameters=CpuParameters,
)
