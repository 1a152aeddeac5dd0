"""A cluster, from an inventory file: its nodes are reached by ssh, its replicas are the ones that its router knows.

    router: http://10.0.0.1:8000          # also admin, prometheus, alertmanager
    admin: http://10.0.0.1:8001
    ssh: [ssh, -o, BatchMode=yes, -o, ConnectTimeout=5]     # the default
    nodes:
      - {name: node-1, address: 10.0.0.11, login: chaos@10.0.0.11, device: eth0, mounts: {shared: /lustre}}
      - {name: head, address: 10.0.0.1, control: true}

A replica belongs to the node whose address is its URL's host. What is done to a node is done by a dead-man on it, which
needs python3 and the rights of the fault (mostly root), and undoes everything though the link be cut.
"""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chaos import agent, fleet
from chaos.fault import Refused
from chaos.place import Identity, Node, Place, Replica


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _NodeEntry(_Strict):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    address: str
    login: str = ""
    device: str = ""
    mounts: dict[str, str] = {}
    control: bool = False
    state_folder: str = "~/.exaserve/chaos/undo"


class _Inventory(_Strict):
    router: str = ""
    admin: str
    prometheus: str = ""
    alertmanager: str = ""
    ssh: list[str] = Field(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"], min_length=1)
    nodes: list[_NodeEntry] = Field(min_length=1)


class Cluster(Place):
    """What the file says; replicas are read from the router each time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.name = str(path)
        self._inventory = _read(path)
        named = ("router", "admin", "prometheus", "alertmanager")
        self.addresses = {n: url.rstrip("/") for n in named if (url := getattr(self._inventory, n))}

    def nodes(self) -> list[Node]:
        owned: dict[str, list[str]] = {}
        for replica in self.replicas():
            owned.setdefault(replica.node, []).append(replica.name)
        return [self._node(entry, owned.get(entry.name, [])) for entry in self._inventory.nodes]

    def replicas(self) -> list[Replica]:
        by_address = {entry.address: entry.name for entry in self._inventory.nodes}
        by_address |= {found: e.name for e in self._inventory.nodes if (found := _resolve(e.address))}
        replicas = []
        for seen in fleet.read(self.addresses["admin"]).values():
            url = urlsplit(seen.url)
            host = url.hostname or ""
            node = by_address.get(host) or by_address.get(_resolve(host), "")
            state = f"{seen.state} {seen.reason}".strip()
            replicas.append(Replica(seen.name, seen.url, node, None, url.port or 0, seen.in_rotation, state))
        return replicas

    def processes(self, replica: Replica) -> list[Identity]:
        entry = next((e for e in self._inventory.nodes if e.name == replica.node), None)
        if entry is None:
            raise Refused(f"{replica.name} ({replica.url}) is on no node of {self.name}")
        answer = agent.ask(self._node(entry, []), {"op": "processes", "ports": [replica.port]})
        found: list[Identity] = answer["listeners"][str(replica.port)]
        if not found:
            raise Refused(
                f"no single process that {entry.name}'s user can see listens on port {replica.port}"
            )
        return found

    def node_of(self, replica: Replica) -> Node | None:
        entry = next((e for e in self._inventory.nodes if e.name == replica.node), None)
        return self._node(entry, [replica.name]) if entry is not None else None

    def _node(self, entry: _NodeEntry, replicas: list[str]) -> Node:
        return Node(
            entry.name,
            prefix=[*self._inventory.ssh, entry.login or entry.address, "--"],
            address=entry.address,
            device=entry.device,
            mounts=dict(entry.mounts),
            replicas=replicas,
            control=entry.control,
            remote=True,
            state_folder=entry.state_folder,
        )


def open(path: str) -> Cluster:
    return Cluster(Path(path))


def _read(path: Path) -> _Inventory:
    try:
        return _Inventory.model_validate(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise Refused(f"inventory {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refused(f"inventory {path} is no YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise Refused(f"inventory {path}: {key}: {first['msg']}") from None


def _resolve(host: str) -> str:
    try:
        return socket.gethostbyname(host) if host else ""
    except OSError:
        return ""
