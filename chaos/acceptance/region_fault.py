"""A region's router that is gone, as its clients see it: its port refuses, what is open is reset.

Only of a lab, whose routers are on this machine: one nft table of the lab's own, so that undo is its deletion.
"""

from __future__ import annotations

import os
import shutil
import socket
from typing import Any
from urllib.parse import urlsplit

from chaos import steps
from chaos.fault import Engine, Fault, Plan, Proof, Target
from chaos.place import Place

_RULES = """table inet {table} {{
  chain in {{ type filter hook input priority 0; policy accept; tcp dport {port} iifname "lo" reject with tcp reset; }}
}}
"""


class Reset(Engine):
    name = "nftables"
    how = "packets to the router's port are answered with a reset"

    def missing(self, place: Place) -> str | None:
        if os.geteuid() != 0 or shutil.which("nft") is None:
            return "it needs root and nft (serving/tools.sh lab)"
        return None

    def refusal(self, target: Target, p: Any) -> str | None:
        return None if target.place.name.startswith("lab:") else f"{target.place.name} is no lab"

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        table, port = f"exal_{target.place.lab}_router", _address(target)[1]
        made = steps.run(["nft", "-f", "-"], input=_RULES.format(table=table, port=port))
        gone = steps.run(["nft", "delete", "table", "inet", table], absent=("No such file or directory",))
        return Plan([made], [gone], claims=(f"nft:{table}",))

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        host, port = _address(target)
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except ConnectionRefusedError:
            return Proof(True, f"connections to {host}:{port} are refused")
        except OSError as error:
            return Proof(False, f"{host}:{port}: {error}")
        return Proof(False, f"{host}:{port} still takes connections")


def _address(target: Target) -> tuple[str, int]:
    url = urlsplit(target.place.addresses["router"])
    return url.hostname or "127.0.0.1", url.port or 80


FAULT = Fault(
    name="region_router_gone",
    kind="control",
    summary="the region's router can't be reached by its clients",
    engines=(Reset(),),
    targets=("router",),
)
"""Not in ``chaos/faults``: it needs a second region to be of use."""
