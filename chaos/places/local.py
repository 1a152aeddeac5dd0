"""This machine: the stack of ``exaserve up``, from its record (``stack.json``) and its router's ``/fleet``.

It is one node that also runs the router and Prometheus, so node, link and storage faults have no target here.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from chaos import fleet, identity, processes
from chaos.fault import Refused
from chaos.place import Identity, Node, Part, Place, Replica

_PARTS = ("router", "exporter", "prometheus", "alertmanager")


class Local(Place):
    """The stack whose record lies in ``$EXASERVE_RUN``, else ``$EXASERVE_HOME/run``."""

    name = "local"

    def __init__(self) -> None:
        super().__init__()
        addresses = _record().get("addresses") or {}
        self.addresses = {k: str(v).rstrip("/") for k, v in addresses.items() if isinstance(v, str)}

    def nodes(self) -> list[Node]:
        names = [r.name for r in self.replicas()] if "admin" in self.addresses else []
        return [Node("local", replicas=names, control=True)]

    def replicas(self) -> list[Replica]:
        admin = self.addresses.get("admin")
        if not admin:
            raise Refused(
                f"no stack is up here ({processes.run_folder() / 'stack.json'}); exaserve up starts one, "
                "or name the router's admin address (--admin)"
            )
        return [
            Replica(
                r.name,
                r.url,
                "local",
                None,
                urlsplit(r.url).port or 0,
                r.in_rotation,
                f"{r.state} {r.reason}".strip(),
            )
            for r in fleet.read(admin).values()
        ]

    def parts(self) -> dict[str, Part]:
        found = {}
        for part in _record().get("parts") or []:
            if part.get("name") in _PARTS:
                who = part.get("identity")
                there = who if isinstance(who, dict) and identity.alive(who) else None
                found[part["name"]] = Part(part["name"], str(part.get("address", "")).rstrip("/"), there)
        return found

    def processes(self, replica: Replica) -> list[Identity]:
        seen = fleet.Replica(replica.name, replica.url, replica.state, 0.0, "")
        return identity.tree(processes.of_replica(seen).pid)

    def node_of(self, replica: Replica) -> Node | None:
        return Node("local", replicas=[replica.name], control=True)


def open() -> Local:
    return Local()


def _record() -> dict[str, Any]:
    try:
        found = json.loads((processes.run_folder() / "stack.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
