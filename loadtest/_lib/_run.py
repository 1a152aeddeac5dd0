"""One run: its settings, its clock's marks, and its folder.

Not here: who sends (``_sender``), when it begins and ends (``_load``), what it says in the end (``_summary``).

A folder holds ``run.json`` (this class, at the start and again at the end), ``requests.jsonl`` (a ``Record`` a line),
``client.jsonl`` (a second of a process a line, ``_client_watch``) and ``summary.json``. Each ``.json`` is there whole or
not at all.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

#: Raised when a key of run.json or summary.json changes its meaning.
VERSION = 1


@dataclass(slots=True)
class Run:
    """Times are Unix seconds. profile: of the whole run, ``mixed`` for several.

    warmup_until: requests due (closed loop: sent) before it are of the phase warmup. stopping: when the time was up, from
    where on nothing new is sent; ended: when the last open request had ended or was given up. slo: seconds or None each.
    lost_workers: processes whose records are not all here; incomplete: the folder could not be written to the end. folder:
    absolute; a temporary one where nothing is kept.
    """

    name: str
    profile: str
    host: str
    model: str
    seed: int
    started: float
    folder: str = ""
    max_model_len: int | None = None
    slo: dict[str, float | None] = field(default_factory=dict)
    attainment: float = 0.99
    limits: dict[str, float] = field(default_factory=dict)
    warmup: dict[str, Any] = field(default_factory=dict)
    warmup_until: float = 0.0
    stopping: float | None = None
    ended: float | None = None
    baseline: str = ""
    gpus: float | None = None
    arrivals: dict[str, Any] = field(default_factory=dict)
    workers: int = 1
    lost_workers: list[int] = field(default_factory=list)
    incomplete: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def save(self) -> None:
        """Write run.json; ``notes`` become keys of their own. Raises OSError."""
        content = asdict(self)
        notes = content.pop("notes")
        write_whole(Path(self.folder) / "run.json", notes | content)


def home() -> Path:
    """``$EXASERVE_HOME/loadtest``, where runs are kept."""
    return Path(os.path.expanduser(os.environ.get("EXASERVE_HOME") or "~/.exaserve")).absolute() / "loadtest"


def new_name(profile: str) -> str:
    """A name that no other run has: local time, profile, four random digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{profile}-{secrets.token_hex(2)}"


def find(run: str) -> Path:
    """The folder of a run, given by its path or its name. Raises FileNotFoundError that says where was looked."""
    for folder in (Path(run).expanduser(), home() / run):
        if (folder / "run.json").is_file():
            return folder
    raise FileNotFoundError(f"no run {run!r}: neither that folder nor {home() / run} has a run.json")


def write_whole(path: Path, content: Any) -> None:
    """JSON into a file that is there whole or not at all. Raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(content), indent=1)
    part = path.with_name(path.name + ".part")
    part.write_bytes(data + b"\n")
    part.replace(path)


def versions() -> dict[str, str]:
    """Of what measures: Python and the packages whose version may move a figure."""
    found = {"python": platform.python_version()}
    for package in ("exaserve", "locust", "gevent", "httptools", "msgspec"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """The machine that measures: its cores (those this process may use), and its system."""
    return {"cpus": len(os.sched_getaffinity(0)), "system": f"{platform.system()} {platform.release()}"}
