"""A lab (``exaserve lab up``), from its state file, its nodes' records and its routers' ``/fleet``.

``lab`` or ``lab:NAME`` is a whole lab, addressed at its first region; ``lab:NAME/region-2`` is one region.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chaos import identity
from chaos.fault import Refused
from chaos.lab import control, node, state
from chaos.place import Identity, Node, Part, Place, Replica

_SERVING = ("ready", "degraded")


class Lab(Place):
    """The lab of that name. regions: those that it consists of here, as in ``lab.json``; control_runs: their folders."""

    def __init__(self, name: str, region: str = "") -> None:
        super().__init__()
        self.name = f"lab:{name}/{region}" if region else f"lab:{name}"
        self._lab, self._region = name, region
        self.regions = self._read()["regions"]
        parts = ("router", "admin", "prometheus", "alertmanager")
        self.addresses = {part: self.regions[0][part] for part in parts if self.regions[0][part]}

    def _read(self) -> state.State:
        try:
            found = state.read(self._lab)
        except state.LabError as error:
            raise Refused(f"no place {self.name!r}: {error}") from None
        if found is None or found["phase"] != "ready":
            raise Refused(
                f"lab {self._lab!r} is not up (looked in {state.folder(self._lab)}); exaserve lab up builds it"
            )
        if self._region:
            found["regions"] = [r for r in found["regions"] if r["name"] == self._region]
            found["nodes"] = [n for n in found["nodes"] if n["region"] == self._region]
            if not found["regions"]:
                raise Refused(f"lab {self._lab!r} has no region {self._region!r}")
        return found

    def nodes(self) -> list[Node]:
        """Every node, those that are down included (``init`` None), and the control node last."""
        found = self._read()
        nodes = [
            Node(
                entry["name"],
                prefix=node.prefix(entry),
                init=entry["init"] if node.up(entry) else None,
                address=entry["address"],
                device=entry["device"],
                control_device=entry["port"],
                mounts=dict(entry["mounts"]),
                replicas=[r["name"] for r in entry["replicas"]],
            )
            for entry in found["nodes"]
        ]
        return [*nodes, Node("control", address=found["control"], device=found["bridge"], control=True)]

    def replicas(self) -> list[Replica]:
        """Every replica. One that the router does not tell of, or whose router is silent, has in_rotation None."""
        found = self._read()
        fleets = {r["name"]: control.fleet(r) for r in found["regions"]}
        replicas = []
        for entry in found["nodes"]:
            pids = node.parts(entry)
            for r in entry["replicas"]:
                seen = fleets[entry["region"]].get(r["name"], {})
                word = str(seen.get("state") or "")
                replicas.append(
                    Replica(
                        r["name"],
                        r["url"],
                        entry["name"],
                        pids.get(r["name"]),
                        r["port"],
                        word in _SERVING if word else None,
                        f"{word} {seen.get('reason') or ''}".strip(),
                    )
                )
        return replicas

    def parts(self) -> dict[str, Part]:
        """Parts of the first region's control node, and ``exporter`` of none: those are the nodes'."""
        stack = _record(Path(self.regions[0]["run"]))
        found = {}
        for part in stack.get("parts") or []:
            who = part.get("identity")
            there = who if isinstance(who, dict) and identity.alive(who) else None
            found[part["name"]] = Part(part["name"], str(part.get("address", "")).rstrip("/"), there)
        return found

    def processes(self, replica: Replica) -> list[Identity]:
        there = identity.tree(replica.pid) if replica.pid else []
        if not there:
            raise Refused(f"{replica.name} does not run ({replica.node}); nothing was done")
        return there


def open(argument: str = "lab") -> Lab:
    """The place ``NAME`` or ``NAME/REGION``. Raises Refused if there is no such lab."""
    name, _, region = argument.partition("/")
    return Lab(name, region)


def _record(run: Path) -> dict[str, Any]:
    try:
        found = json.loads((run / "stack.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
