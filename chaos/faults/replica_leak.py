"""A replica's memory grows and grows: what leak rules should see long before the kernel kills it.

A simulated replica takes the memory itself. In any other, pages are mapped from outside with gdb, which stops the
process for some 0.1 s at each step, and unmapped again.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from chaos.engines import memory, sim
from chaos.fault import Fault, Parameters, Target


class LeakParameters(Parameters):
    mib_per_second: float = Field(20.0, ge=1, le=200, description="growth of resident memory in MiB/s")
    limit_mib: float = Field(256.0, ge=8, le=16_384, description="at most so much more, in MiB")


def _before(target: Target, p: Any) -> int:
    return memory.resident(target)


FAULT = Fault(
    name="replica_leak",
    kind="replica",
    summary="the replica's memory grows steadily up to a limit, and is given back at the end",
    engines=(
        sim.Simulated(
            "leak",
            lambda p: {"mib_per_second": p.mib_per_second, "limit_mib": p.limit_mib},
            memory.grown,
            _before,
        ),
        memory.MapByDebugger(),
    ),
    parameters=LeakParameters,
)
