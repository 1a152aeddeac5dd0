"""A GPU is lost, as NVML tells it: what exporter, alerts and runbooks do about one that fell off the bus.

The GPU itself is left alone, and so are the processes that use it: the exporter's reading is replaced, in an exporter
that was started for it (see ``chaos/nvml.py``).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from chaos import ask, identity, steps
from chaos.engines.fuse import BELT
from chaos.fault import Engine, Fault, Parameters, Plan, Proof, Target
from chaos.place import Place

_CURE = "start it with EXASERVE_NVML=chaos.nvml and EXASERVE_NVML_CONTROL=FILE (without a GPU also EXASERVE_NVML_GPUS=2)"


class LostParameters(Parameters):
    gpu: int = Field(0, ge=0, le=63, description="index of the GPU, as NVML counts")


def _exporters(target: Target) -> list[tuple[psutil.Process, dict[str, str]]]:
    """Exporters in the node's network namespace, with their environment."""
    node, found = target.node, []
    holder = node.init["pid"] if node is not None and node.init is not None else os.getpid()
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if "exporter" in line[1:5] and os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink(
                f"/proc/{holder}/ns/net"
            ):
                found.append((process, process.environ()))
        except (psutil.Error, OSError):
            continue
    return found


def _page(target: Target) -> tuple[str, str]:
    """(the exporter's page, the control file it looks at); raises nothing, "" for what is not there."""
    for process, environ in _exporters(target):
        control = (
            environ.get("EXASERVE_NVML_CONTROL", "") if environ.get("EXASERVE_NVML") == "chaos.nvml" else ""
        )
        ports = identity.listening(process.pid)
        if control and ports:
            address = target.node.address if target.node is not None else "127.0.0.1"
            return f"http://{address}:{ports[0]}/metrics", control
    return "", ""


class Reading(Engine):
    """The exporter's own view of NVML, through its control file."""

    name = "nvml"
    how = "the exporter's NVML answers that the GPU is lost; the GPU itself is left alone"
    prove_within = 20.0

    def missing(self, place: Place) -> str | None:
        if any(node.remote for node in place.nodes()):
            return "only on this machine and in labs: an exporter on a node of a cluster reads its own driver"
        return None

    def refusal(self, target: Target, p: Any) -> str | None:
        if not _exporters(target):
            return f"no exporter runs on {target.name} (exaserve exporter)"
        page, _ = _page(target)
        if not page:
            return f"the exporter on {target.name} reads the driver itself; {_CURE}"
        if ask.series(page, "exaserve_gpu_up", gpu=str(p.gpu)) is None:
            return f"the exporter on {target.name} tells of no GPU {p.gpu}: there is neither a GPU nor a simulated one"
        return None

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        _, control = _page(target)
        # Counted from now, while the duration begins with the injection: earlier targets are proven first.
        text = json.dumps({"lost": [p.gpu], "until": time.time() + duration + BELT})
        return Plan([steps.write(control, text)], [steps.remove(control)], claims=(f"nvml:{Path(control)}",))

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        page, _ = _page(target)
        up = ask.series(page, "exaserve_gpu_up", gpu=str(p.gpu))
        lost = ask.series(page, "exaserve_gpu_down_reason", gpu=str(p.gpu), reason="lost")
        told = (
            f"the exporter says exaserve_gpu_up {up:g}"
            if up is not None
            else "the exporter says nothing of it"
        )
        return Proof(up == 0 and lost == 1, told + (", reason lost" if lost else ""), up)


FAULT = Fault(
    name="gpu_lost",
    kind="gpu",
    summary="NVML tells that a GPU is lost",
    engines=(Reading(),),
    parameters=LostParameters,
)
