"""Everything that a fault may leave behind in a lab, as plain data that can be compared with what it was before.

Interfaces, queueing disciplines and nft tables here and on the nodes, mounts, rule files and entries of the nodes'
storage, stopped processes, cgroups, undo records, helpers and dead-men, and the faults of simulated replicas.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from chaos.lab import state

#: Where ``chaos/engines/mounts.py`` keeps what it holds.
_HELD = Path("/run/exaserve-chaos")
_ON_NODE = (
    "tc qdisc; nft -s list ruleset; grep -F '{folder}/' /proc/self/mountinfo; "
    "ip -o link | grep -oE '^[0-9]+: [a-z0-9]+|<.*mtu [0-9]+ qdisc [a-z0-9]+ state [A-Z]+'; "
    "for port in {ports}; do curl -s -m 10 http://127.0.0.1:$port/_sim/fault; done"
)


def here(name: str, home: Path) -> dict[str, Any]:
    """What can be seen from this machine's own namespaces; some milliseconds. home: ``$EXASERVE_HOME`` of the lab."""
    found = state.read(name)
    assert found is not None
    folder, mark = Path(found["folder"]), f"exal-{name}"
    links = json.loads(subprocess.check_output(["ip", "-json", "link"]))
    disciplines = json.loads(subprocess.check_output(["tc", "-json", "qdisc"]))
    mounts = [line.split(" ", 3)[3] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    storage = [p for mount in ("local", "shared") for p in sorted(folder.glob(f"node-*/{mount}"))]
    return {
        "links": sorted(
            (x["ifname"], x.get("master"), x["operstate"], x["mtu"], x.get("qdisc"))
            for x in links
            if x["ifname"].startswith(mark)
        ),
        "disciplines": sorted((q["dev"], q["kind"]) for q in disciplines if q["dev"].startswith(mark)),
        "tables": [t for t in _lines("nft", "list", "tables") if f"exal_{name}_" in t],
        "mounts": sorted(m for m in mounts if f" {folder}/" in m),
        "held": sorted(str(p) for p in _HELD.rglob("*") if mark in str(p)) if _HELD.exists() else [],
        "rules": sorted(str(p) for p in folder.glob("node-*/*.control/*.json")),
        "storage": {str(p): _entries(p) for p in storage},
        "groups": sorted(str(p) for p in Path("/sys/fs/cgroup").glob(f"*/{mark}-*")),
        "records": sorted(p.name for p in (home / "chaos" / "undo").glob("*")),
        **_processes(str(folder), home),
    }


def on_nodes(name: str) -> dict[str, Any]:
    """What the nodes see; a tenth of a second each. A node that is down says so."""
    found = state.read(name)
    assert found is not None
    told: dict[str, Any] = {}
    for node in found["nodes"]:
        who = node["init"]
        if who is None or not Path(f"/proc/{who['pid']}").exists():
            told[node["name"]] = "down"
            continue
        script = _ON_NODE.format(
            folder=found["folder"], ports=" ".join(str(r["port"]) for r in node["replicas"])
        )
        argv = ["nsenter", "-t", str(who["pid"]), "-n", "-m", "-p", "-u", "--", "sh", "-c", script]
        told[node["name"]] = _steady(subprocess.run(argv, capture_output=True, text=True).stdout)
    return told


def everything(name: str, home: Path) -> dict[str, Any]:
    return {**here(name, home), "nodes": on_nodes(name)}


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """What came and what went, one line each, with where it was found."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(k for k in now if k not in before)]
        return [d for k in keys for d in differences(before.get(k), now.get(k), f"{where}/{k}")]
    if isinstance(before, list) and isinstance(now, list):
        came = [f"{where}: + {x}" for x in now if x not in before]
        return [*came, *(f"{where}: - {x}" for x in before if x not in now)]
    return [] if before == now else [f"{where}: {before} -> {now}"]


def _steady(text: str) -> list[str]:
    """Lines without what a mount's number or a counter changes."""
    lines = []
    for line in text.splitlines():
        words = line.split()
        lines.append(" ".join(words[3:]) if words and words[0].isdigit() and len(words) > 8 else line)
    return sorted(lines)


def _processes(folder: str, home: Path) -> dict[str, Any]:
    """Stopped processes of the lab, and helpers and dead-men of faults that were injected with this home."""
    stopped, helpers, deadmen = [], [], []
    lab, of_home = f"EXASERVE_LAB={folder}".encode(), f"EXASERVE_HOME={home}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            if of_home not in environment:
                continue
            status = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if status == "Z":
            continue
        if lab in environment and status in "Tt":
            stopped.append(int(entry))
        if b"sys.modules['chaos.deadman']" in command:
            deadmen.append(int(entry))
        elif any(word.startswith(b"EXASERVE_CHAOS_RECORD=") for word in environment):
            helpers.append(int(entry))
    return {"stopped": stopped, "helpers": helpers, "deadmen": deadmen}


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]


def _lines(*argv: str) -> list[str]:
    return subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
