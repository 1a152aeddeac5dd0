"""A lab of two simulated nodes for faults of links and nodes, and everything of it that such a fault may leave behind."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos import places
from chaos.place import Node, Place
from tests.conftest import exaserve

needs_lab = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "tc", "nft"))),
    reason="a lab needs root, ip, tc, nft and nsenter",
)


class TwoNodes:
    """The lab, by its name and home. ``$EXASERVE_HOME`` has to be its home while it is used."""

    def __init__(self, home: Path) -> None:
        self.name, self.home = f"n{secrets.token_hex(2)}", home

    def lab(self, *arguments: str) -> str:
        """Output of ``exaserve lab``."""
        env = {"EXASERVE_HOME": str(self.home), "EXASERVE_RUN": ""}
        done = exaserve("lab", *arguments, "--name", self.name, env=env, timeout=240)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def place(self) -> Place:
        return places.open(f"lab:{self.name}")

    def node(self, name: str = "node-1") -> Node:
        return next(n for n in self.place.nodes() if n.name == name)

    def command(self, fault: str, *options: str) -> list[str]:
        """``exaserve chaos inject`` on node-1, as a user has it."""
        program = str(Path(sys.executable).parent / "exaserve")
        target = ["--target", "node-1", "--place", f"lab:{self.name}"]
        return [program, "chaos", "inject", fault, *target, *options]

    def traces(self) -> dict[str, Any]:
        """What faults of links and nodes touch, here and on the nodes."""
        links = json.loads(subprocess.check_output(["ip", "-json", "link"]))
        ours = [link for link in links if link["ifname"].startswith(f"exal-{self.name}")]
        found: dict[str, Any] = {
            "links": sorted((x["ifname"], x.get("master"), x["operstate"], x.get("qdisc")) for x in ours),
            "groups": sorted(str(p) for p in Path("/sys/fs/cgroup").glob(f"*/exal-{self.name}-*")),
            "records": sorted(p.name for p in (self.home / "chaos" / "undo").glob("*.json")),
        }
        for one in self.place.nodes():
            if not one.control:
                disciplines = json.loads(one.read(["tc", "-json", "qdisc"]).stdout or "[]")
                environments = ["sh", "-c", "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep CHAOS_RECORD"]
                found[one.name] = {
                    "up": one.init is not None,
                    "tables": one.read(["nft", "list", "tables"]).stdout,
                    "disciplines": [(q["dev"], q["kind"]) for q in disciplines],
                    "carrier": one.read(["cat", f"/sys/class/net/{one.device}/carrier"]).stdout,
                    "helpers": one.read(environments).stdout,
                }
        return found
