"""How often the router sent a request again, from its audit log: what no client can see.

Only of a place whose router's audit folder can be read here (``router.audit``); elsewhere the figures that need it stay
unknown.
"""

from __future__ import annotations

import json
from pathlib import Path


def folder(place_run: str) -> Path | None:
    """The audit folder of a router that ``exaserve up`` runs in that run folder, if there is one."""
    path = Path(place_run) / "audit" if place_run else None
    return path if path is not None and any(path.glob("audit-*.jsonl*")) else None


def retries(folder: Path | None, requests: set[str]) -> dict[str, int] | None:
    """Request id -> attempts after the first, of those requests that had any; None where nothing can be read."""
    if folder is None:
        return None
    found: dict[str, int] = {}
    try:
        for path in sorted(folder.glob("audit-*.jsonl*")):
            with path.open("rb") as file:
                for line in file:
                    if b'"retries":0,' in line:
                        continue
                    try:
                        entry = json.loads(line)
                    except ValueError:
                        continue
                    if entry.get("request_id") in requests and entry.get("retries"):
                        found[entry["request_id"]] = int(entry["retries"])
    except OSError:
        return None
    return found
