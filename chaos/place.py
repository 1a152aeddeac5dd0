"""What a place consists of, as plain data: nodes, replicas, the parts of the control node.

A place is where faults go: this machine's stack, a lab, a cluster. Each kind is a file in ``chaos/places``; what is
done to it is ``chaos/faults``.
"""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass, field
from typing import Any

from chaos import identity

#: ``{"pid", "ticks", "boot"}``, see ``identity.py``.
Identity = dict[str, Any]


@dataclass(frozen=True)
class Node:
    """A machine, or what stands for one.

    prefix: argv that, put before a command, runs it on the node; empty for this machine.
    init: the process that holds a lab's node together, as this machine counts; None where there is none, or while the
    node is down.
    address: at which other nodes reach it. device: the interface that carries its traffic, as the node calls it.
    control_device: the same link's other end, on this machine; None where that can't be reached.
    mounts: its storage by name -> path on the node. replicas: names of those on it.
    control: it runs router and monitoring; never the target of a node, link or storage fault.
    remote: ``prefix`` is ssh; steps are carried out by a dead-man on the node, so they carry no prefix.
    state_folder: remote only: where the node keeps its undo records (``~`` is its user's home).
    """

    name: str
    prefix: list[str] = field(default_factory=list)
    init: Identity | None = None
    address: str = "127.0.0.1"
    device: str = ""
    control_device: str | None = None
    mounts: dict[str, str] = field(default_factory=dict)
    replicas: list[str] = field(default_factory=list)
    control: bool = False
    remote: bool = False
    state_folder: str = "~/.exaserve/chaos/undo"

    def read(self, argv: list[str], timeout: float = 10.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the node from here, to look at something; never to change it.

        Exit status 255 with the reason as its stderr if the node is down, the program missing or the time over.
        """
        if self.init is not None and not identity.alive(self.init):
            return subprocess.CompletedProcess(argv, 255, "", f"{self.name} is down")
        whole = [*self.prefix, shlex.join(argv)] if self.remote else [*self.prefix, *argv]
        try:
            return subprocess.run(
                whole,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(
                argv, 255, "", f"no answer from {self.name} within {timeout:g} s"
            )
        except OSError as error:
            return subprocess.CompletedProcess(argv, 255, "", f"{whole[0]}: {error.strerror}")


@dataclass(frozen=True)
class Replica:
    """One replica.

    url: as the router knows it. node: its node's name. pid: its process as the host counts where steps are carried out
    (this machine, or the remote node); None where it does not run or can't be seen.
    in_rotation: whether the router may send it requests; None if the router can't be asked.
    state: the router's word for it.
    """

    name: str
    url: str
    node: str
    pid: int | None
    port: int
    in_rotation: bool | None = None
    state: str = ""


@dataclass(frozen=True)
class Part:
    """A part of the control node: router, prometheus, alertmanager, exporter. identity: None if it can't be seen."""

    name: str
    url: str
    identity: Identity | None = None


class Place:
    """Base of all places. Everything is read anew at each call, and may raise ``fault.Refused`` with a sentence.

    addresses: ``router``, ``admin``, ``prometheus``, ``alertmanager`` -> base URL, as far as there is one.
    """

    name: str = ""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}

    @property
    def lab(self) -> str:
        """The lab's name, where the place is one or a region of it: ``lab:NAME/region-2``."""
        return self.name.removeprefix("lab:").partition("/")[0]

    def nodes(self) -> list[Node]:
        raise NotImplementedError

    def replicas(self) -> list[Replica]:
        raise NotImplementedError

    def parts(self) -> dict[str, Part]:
        """Parts of the control node by name; those that are not there are absent."""
        return {}

    def processes(self, replica: Replica) -> list[Identity]:
        """The replica's serving process and all below it, parents first, on the host where steps are carried out.

        Raises fault.Refused if that can't be told.
        """
        raise NotImplementedError

    def node_of(self, replica: Replica) -> Node | None:
        return next((n for n in self.nodes() if n.name == replica.node), None)
