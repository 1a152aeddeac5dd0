"""A replica's processes are stopped: its sockets accept and nothing answers, which only silence tells."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from chaos.engines.signals import Freeze
from chaos.fault import Fault, Parameters


class FreezeParameters(Parameters):
    scope: Literal["tree", "process", "children"] = Field(
        "tree",
        description="tree: the listening process and all below it; process: the listening one alone; "
        "children: all but it (an engine stuck behind a front end that answers)",
    )


FAULT = Fault(
    name="replica_freeze",
    kind="replica",
    summary="the replica's processes are stopped (SIGSTOP): connections are accepted, nothing is answered",
    engines=(Freeze(),),
    parameters=FreezeParameters,
)
