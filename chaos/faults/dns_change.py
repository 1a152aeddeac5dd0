"""A name means another address on one node: a stale record, a wrong answer, a half-done migration.

The node's ``/etc/hosts`` is covered by a copy with one line more, so that its own file is never written to.
"""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from chaos import recover, steps
from chaos.fault import Engine, Fault, Parameters, Plan, Proof, Target

_HOSTS = "/etc/hosts"


class DnsParameters(Parameters):
    host: str = Field(..., pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$", description="the name that changes")
    address: str = Field(
        "192.0.2.1", description="what it means meanwhile (default: an address that nobody has, RFC 5737)"
    )

    @field_validator("address")
    @classmethod
    def _an_address(cls, value: str) -> str:
        if "%" in value:
            raise ValueError("an address without a zone is needed, such as 192.0.2.1")
        return str(ipaddress.ip_address(value))


class Hosts(Engine):
    """A file of ours mounted over ``/etc/hosts``, in the node's mount namespace."""

    name = "hosts"
    how = "mounts a copy of /etc/hosts with one line more over it; unmounts it"

    def refusal(self, target: Target, p: Any) -> str | None:
        node = target.node
        if node is None or node.control:
            return "the control node's names are this machine's; only a node's can be changed"
        found = node.read(["cat", _HOSTS])
        if found.returncode:
            return f"{_HOSTS} of {node.name} can't be read: {found.stderr.strip()}"
        if node.read(["id", "-u"]).stdout.strip() != "0":
            return f"mounting on {node.name} needs root there"
        return None

    def before(self, target: Target, p: Any) -> str:
        return _meaning(target, p.host)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        node = target.node
        assert node is not None
        # The first line that has the name counts, so ours is the first. The folder is one that both sides see.
        copy = _copy(target, p.host)
        text = f"{p.address}\t{p.host}\n" + node.read(["cat", _HOSTS]).stdout
        return Plan(
            [
                steps.mkdir(str(Path(copy).parent)),
                steps.write(copy, text),
                steps.run(["mount", "--bind", copy, _HOSTS], node),
            ],
            [steps.unmount(_HOSTS, Path(copy).name, node), steps.remove(copy)],
            claims=(f"hosts:{node.name}",),
        )

    def prove(self, target: Target, p: Any, before: str) -> Proof:
        now = _meaning(target, p.host)
        return Proof(
            now == p.address, f"{p.host} means {now or 'nothing'} there, before {before or 'nothing'}"
        )


def _copy(target: Target, host: str) -> str:
    folder = "/run/exaserve-chaos" if target.remote else str(recover.folder().parent / "hosts")
    return f"{folder}/exaserve-chaos-hosts-{target.name}-{host}"


def _meaning(target: Target, host: str) -> str:
    code = "import socket,sys;print(socket.getaddrinfo(sys.argv[1],None)[0][4][0])"
    python = "python3" if target.remote else sys.executable
    assert target.node is not None
    return target.node.read([python, "-I", "-c", code, host], timeout=8.0).stdout.strip()


FAULT = Fault(
    name="dns_change",
    kind="control",
    summary="a name means another address on one node",
    engines=(Hosts(),),
    parameters=DnsParameters,
    targets=("node",),
)
