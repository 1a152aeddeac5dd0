"""A replica's process is killed: no drain, no goodbye, sockets closed by the kernel.

Nothing is held, so nothing is undone: whoever supervises the replica starts it again. The fault never does.
"""

from __future__ import annotations

from chaos.engines.signals import Kill
from chaos.fault import Fault

FAULT = Fault(
    name="replica_crash",
    kind="replica",
    summary="the replica's process is killed (SIGKILL)",
    engines=(Kill(),),
    momentary=True,
)
