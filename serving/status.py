"""``exaserve status`` and ``exaserve logs``: what the running stack looks like from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from serving import record
from serving.launch.local import Identity

_MIB = 2**20


def status() -> dict[str, Any] | None:
    """The stack as plain data; None if it is not up.

    Memory is MiB of the part and of everything that it started: ``pss_mib`` shares what is shared (None where
    the kernel does not tell), ``rss_mib`` does not.
    """
    found = record.read()
    if found is None or not record.is_up():
        return None
    parts: list[dict[str, Any]] = [
        {
            "part": "supervisor",
            "state": found.phase,
            "pid": found.supervisor.pid,
            "address": None,
            "ready_seconds": None,
            "restarts": 0,
            **_memory(found.supervisor, children=False),
        }
    ]
    for p in found.parts:
        alive = p.identity if p.identity and p.identity.alive() else None
        parts.append(
            {
                "part": p.name,
                "state": p.state,
                "pid": alive.pid if alive else None,
                "address": p.address,
                "ready_seconds": p.ready_seconds,
                "restarts": p.restarts,
                **_memory(alive),
            }
        )
    return {
        "phase": found.phase,
        "started": found.started,
        "uptime_seconds": round(time.time() - found.started, 1),
        "config": found.config,
        "addresses": found.addresses,
        "parts": parts,
    }


def table(found: dict[str, Any]) -> str:
    """The same for people."""
    columns = ("part", "state", "pid", "address", "ready_seconds", "pss_mib", "rss_mib", "restarts")
    heads = ("PART", "STATE", "PID", "ADDRESS", "READY s", "PSS MiB", "RSS MiB", "RESTARTS")
    rows = [heads] + [tuple("-" if p[c] is None else str(p[c]) for c in columns) for p in found["parts"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    right = (2, 4, 5, 6, 7)
    lines = [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["started"]))
    return "\n".join([*lines, f"up since {since}, configuration: {found['config']}"])


def _memory(process: Identity | None, children: bool = True) -> dict[str, int | None]:
    pss: float | None = 0.0
    rss = 0.0
    if process is None:
        return {"pss_mib": None, "rss_mib": None}
    try:
        top = psutil.Process(process.pid)
        everyone = [top, *(top.children(recursive=True) if children else [])]
    except psutil.Error:
        return {"pss_mib": None, "rss_mib": None}
    for p in everyone:
        try:
            rss += p.memory_info().rss
            pss = None if pss is None else pss + p.memory_full_info().pss
        except psutil.AccessDenied:
            pss = None
        except psutil.Error:
            continue
    return {"pss_mib": None if pss is None else round(pss / _MIB), "rss_mib": round(rss / _MIB)}


def log_files() -> dict[str, Path]:
    """Every log by the name of its part."""
    return {p.stem: p for p in sorted(record.logs_folder().glob("*.log"))}


def follow(files: dict[str, Path], show: Callable[[str, str], None], offsets: dict[str, int]) -> None:
    """Hand each new line with its part's name to ``show``, for ever. A log that was emptied is read anew."""
    rest = dict.fromkeys(files, b"")
    while True:
        for name, path in files.items():
            try:
                size = path.stat().st_size
                if size < offsets[name]:
                    offsets[name] = 0
                if size == offsets[name]:
                    continue
                with path.open("rb") as f:
                    f.seek(offsets[name])
                    raw = f.read(2**20)
            except OSError:
                continue
            offsets[name] += len(raw)
            *lines, rest[name] = (rest[name] + raw).split(b"\n")
            rest[name] = rest[name][-(2**16) :]
            for line in lines:
                show(name, line.decode(errors="replace"))
        time.sleep(0.2)
