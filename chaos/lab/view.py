"""``exaserve lab status``: what a lab looks like now, as plain data and for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos.lab import control, mounts, node, storage, teardown
from chaos.lab.state import State


def status(found: State) -> dict[str, Any]:
    """Every node with its replicas, storage and memory. Memory is MiB of everything that the lab runs (its PSS)."""
    fleets = {r["name"]: control.fleet(r) for r in found["regions"]}
    there = {m.path: m.fstype for m in mounts.below(found["folder"])}
    nodes = []
    for entry in found["nodes"]:
        parts, stack = node.parts(entry), node.stack(entry)
        restarts = {p["name"]: p["restarts"] for p in stack.get("parts", [])}
        fleet = fleets[entry["region"]]
        nodes.append(
            {
                "name": entry["name"],
                "state": node.phase(entry),
                "address": entry["address"],
                "init": entry["init"]["pid"] if node.up(entry) else None,
                "engine": entry["engine"],
                "replicas": [
                    {
                        "name": r["name"],
                        "state": fleet.get(r["name"], {}).get("state", "unknown"),
                        "pid": parts.get(r["name"]),
                        "restarts": restarts.get(r["name"]),
                    }
                    for r in entry["replicas"]
                ],
                "storage": {name: _storage(path, there) for name, path in entry["mounts"].items()},
            }
        )
    pids = teardown.processes(found["folder"])
    return {
        "name": found["name"],
        "phase": found["phase"],
        "folder": found["folder"],
        "bridge": found["bridge"],
        "subnet": found["subnet"],
        "profile": found["profile"],
        "regions": [{k: v for k, v in r.items() if k != "run"} for r in found["regions"]],
        "nodes": nodes,
        "processes": len(pids),
        "pss_mib": round(sum(map(_pss, pids)) / 2**20),
    }


def table(found: dict[str, Any]) -> str:
    """The same for people."""
    rows = [("NODE", "STATE", "ADDRESS", "REPLICA", "SEEN BY ROUTER", "PID", "RESTARTS", "STORAGE")]
    for entry in found["nodes"]:
        disks = ", ".join(f"{name} {state}" for name, state in entry["storage"].items())
        for i, replica in enumerate(entry["replicas"]):
            first = (entry["name"], entry["state"], entry["address"]) if i == 0 else ("", "", "")
            number = [str(replica[key]) if replica[key] is not None else "-" for key in ("pid", "restarts")]
            rows.append((*first, replica["name"], replica["state"], *number, disks if i == 0 else ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    for region in found["regions"]:
        parts = (
            f"{part} {region[part]}"
            for part in ("router", "admin", "prometheus", "alertmanager")
            if region[part]
        )
        lines.append(f"{region['name']}: {', '.join(parts)}")
    return "\n".join(
        [
            *lines,
            f"lab {found['name']!r}: {found['processes']} processes, {found['pss_mib']} MiB, {found['folder']}",
        ]
    )


def _storage(path: str, there: dict[str, str]) -> str:
    kind = there.get(path)
    if kind is None:
        return "not mounted"
    return "dead" if kind.startswith("fuse") and storage.daemon(path) is None else "mounted"


def _pss(pid: int) -> int:
    """Bytes; 0 for a process that ended meanwhile."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
