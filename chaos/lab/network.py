"""The lab's network: a bridge, and a pair of interfaces a node. Nothing else of the machine is touched.

No forwarding and no address translation: nodes reach each other and the control node, nothing beyond.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.lab.state import LabError, State

#: Seconds that one call of ip(8) or nft(8) may take.
_SECONDS = 20.0


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """A network program run to its end, whatever its status. Raises LabError without it, or if it does not end."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise LabError(
            f"{argv[0]} not found: serving/tools.sh lab, or sudo apt-get install iproute2 util-linux nftables"
        ) from None
    except subprocess.TimeoutExpired:
        raise LabError(
            f"{' '.join(argv)}: no end within {_SECONDS:g} s; another program keeps this machine's network busy, "
            "so try again"
        ) from None


def ip(*arguments: str, node: int | None = None) -> str:
    """Output of ``ip``; node: process 1 of the node in whose network it runs. Raises LabError."""
    done = run(
        ["ip", *arguments] if node is None else ["nsenter", "-t", str(node), "-n", "--", "ip", *arguments]
    )
    if done.returncode:
        raise LabError(f"{' '.join(done.args)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout


def links() -> dict[str, dict[str, Any]]:
    """Interfaces of this machine by name, as ``ip -json link`` tells them."""
    return {link["ifname"]: link for link in json.loads(ip("-json", "link") or "[]") if "ifname" in link}


def networks() -> list[str]:
    """Networks that this machine has routes to."""
    return [str(route.get("dst")) for route in json.loads(ip("-json", "route") or "[]")]


def of(name: str) -> list[str]:
    """Interfaces here that are the lab's by their names: the bridge last."""
    bridge = f"exal-{name}"
    ports = [link for link in links() if link.startswith(f"{bridge}-")]
    return [*ports, *([bridge] if bridge in links() else [])]


def owner(name: str) -> str | None:
    """Folder of the lab whose bridge has that name; None without a bridge, or while it has no owner yet."""
    return links().get(f"exal-{name}", {}).get("ifalias")


def make_bridge(state: State) -> None:
    """Raises LabError."""
    bridge = state["bridge"]
    ip("link", "add", "name", bridge, "type", "bridge")
    ip("link", "set", "dev", bridge, "alias", state["folder"])
    _without_ipv6(bridge)
    ip("address", "add", f"{state['control']}/24", "dev", bridge)
    ip("link", "set", "dev", bridge, "up")


def attach(state: State, node: State, init: int) -> None:
    """Give the node that process ``init`` holds its interface. Raises LabError."""
    port, device = node["port"], node["device"]
    remove([port])  # of a node that was just killed: the kernel may not have come to it yet
    ip("link", "add", "name", port, "type", "veth", "peer", "name", device, "netns", str(init))
    _without_ipv6(port)
    ip("link", "set", "dev", port, "master", state["bridge"], "up")
    ip("link", "set", "dev", "lo", "up", node=init)
    ip("address", "add", f"{node['address']}/24", "dev", device, node=init)
    ip("link", "set", "dev", device, "up", node=init)


def remove(names: Sequence[str]) -> None:
    """Remove interfaces; those that are gone already are well. Raises LabError."""
    for name in names:
        if not name.startswith("exal-"):
            raise ValueError(name)
        try:
            ip("link", "delete", "dev", name)
        except LabError:
            # With its node's network the kernel removes it by itself, and ip(8) has several words for that.
            if name in links():
                raise


def _without_ipv6(device: str) -> None:
    switch = Path(f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6")
    if switch.exists():
        switch.write_text("1")
