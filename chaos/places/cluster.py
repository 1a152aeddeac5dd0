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
from typing import Annotated
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from chaos import agent, fleet
from chaos.fault import Refused
from chaos.place import Identity, Node, Place, Replica


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


# None of these may begin with a dash: ssh, ip and nft would take it for an option of theirs (-oProxyCommand=…).
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_ADDRESS = r"^[A-Za-z0-9:][A-Za-z0-9._:%-]{0,252}$"
_LOGIN = r"^([A-Za-z0-9_][A-Za-z0-9._@\\-]{0,63}@)?[A-Za-z0-9:\[][A-Za-z0-9._:%\[\]-]{0,252}$"
_DEVICE = r"^([A-Za-z0-9_][A-Za-z0-9._@-]{0,14})?$"  # at most 15 characters (linux/if.h, IFNAMSIZ)
_PATH = r"^/[^\x00-\x1f\x7f]*$"
_URL = r"^(https?://[^\s\x00-\x1f]+)?$"
#: Words that stand for a choice of targets, or for a target that is no node.
_WORDS = ("any", "fleet")

_Path = Annotated[str, StringConstraints(pattern=_PATH)]
_Name = Annotated[str, StringConstraints(pattern=_NAME)]


class _NodeEntry(_Strict):
    name: _Name
    address: str = Field(pattern=_ADDRESS)
    login: str = Field("", pattern=rf"^$|{_LOGIN}")
    device: str = Field("", pattern=_DEVICE)
    mounts: dict[_Name, _Path] = {}
    control: bool = False
    state_folder: str = Field("~/.exaserve/chaos/undo", pattern=r"^(~/|/)[^\x00-\x1f\x7f]+$")


class _Inventory(_Strict):
    router: str = Field("", pattern=_URL)
    admin: str = Field(min_length=1, pattern=_URL)
    prometheus: str = Field("", pattern=_URL)
    alertmanager: str = Field("", pattern=_URL)
    ssh: list[str] = Field(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"], min_length=1)
    nodes: list[_NodeEntry] = Field(min_length=1)

    @field_validator("nodes")
    @classmethod
    def _told_apart(cls, nodes: list[_NodeEntry]) -> list[_NodeEntry]:
        """Twice the same machine would count as two, and the blast radius as half of what it is."""
        for key in ("name", "address"):
            seen = [getattr(node, key) for node in nodes]
            if again := sorted({word for word in seen if seen.count(word) > 1}):
                raise ValueError(f"two nodes have the {key} {again[0]}")
        if used := [node.name for node in nodes if node.name in _WORDS]:
            raise ValueError(f"no node can be called {used[0]}: it stands for a choice of targets")
        return nodes


class Cluster(Place):
    """What the file says; replicas are read from the router each time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.name = str(path.absolute())  # one cluster, from whatever folder it is named
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
        given = first["input"] if isinstance(first["input"], str) else ""
        said = first["msg"].removeprefix("Value error, ").partition(" should match pattern")[0]
        why = f"{given[:60]!r} can't be that" if first["type"] == "string_pattern_mismatch" else said
        raise Refused(f"inventory {path}: {key}: {why}") from None


def _resolve(host: str) -> str:
    try:
        return socket.gethostbyname(host) if host else ""
    except OSError:
        return ""
