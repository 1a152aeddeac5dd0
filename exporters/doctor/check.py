"""What a check of the doctor is told, what it gives, and where it registers.

The smallest check is ``checks/kernel.py``. Running them is ``run.py``; showing their findings is ``table.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from exporters.settings import Settings

#: ``not here``: the machine has nothing of this kind. ``unknown``: it may have, but that could not be read.
Verdict = Literal["ok", "warn", "fail", "not here", "unknown"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

#: What a difference between nodes means: nothing, a warning, or a failure.
Compare = Literal["", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table.

    what: the quantity, with ``item`` telling apart several of a kind (``mlx5_0/1``, ``eth0``, a mount).
    value, expected: as a person reads them, with units. cure: a command, or the key to change; for rows that are
    not ok. compare: whether the value has to be the same on every node, and how bad it is if not.
    check: name of the check, filled in by the runner.
    """

    what: str
    value: str
    verdict: Verdict
    expected: str = ""
    cure: str = ""
    item: str = ""
    compare: Compare = ""
    check: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is good enough. link_bits: bits per second of a port. storage_seconds: median of a small read.

    peer_seconds: one TCP connect to a peer.
    """

    link_bits: float = 35e9
    storage_seconds: float = 0.002
    peer_seconds: float = 0.005


@dataclass(frozen=True, slots=True)
class Node:
    """The node as a check sees it.

    settings: where sysfs and procfs are, mounts, peers. config: ``exaserve.yaml`` as read, {} without one.
    environ: environment variables. home: ``$EXASERVE_HOME``. dev: where device files are.
    """

    settings: Settings = field(default_factory=Settings)
    config: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    home: Path = Path("~/.exaserve")
    limits: Limits = field(default_factory=Limits)
    dev: Path = Path("/dev")

    @property
    def sysfs(self) -> Path:
        return self.settings.sysfs

    @property
    def procfs(self) -> Path:
        return self.settings.procfs

    def key(self, path: str, default: Any) -> Any:
        """A key of ``exaserve.yaml`` by its dotted path; ``default`` where it is missing or of another type."""
        here: Any = self.config
        for part in path.split("."):
            here = here.get(part) if isinstance(here, Mapping) else None
        if default is not None and (not isinstance(here, type(default)) or isinstance(here, bool)):
            return default
        return here


Run = Callable[[Node], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """help: one line of ``--list``. run: a generator, so that what it found before it hung or broke stays.

    seconds: its time limit.
    """

    name: str
    help: str
    run: Run
    seconds: float


#: Checks by the name of their file.
CHECKS: dict[str, Check] = {}


def register(name: str, help: str, run: Run, seconds: float = 5.0) -> None:
    """Called once, at the end of a check's file."""
    if name in CHECKS:
        raise ValueError(f"check {name} is registered twice")
    CHECKS[name] = Check(name, help, run, seconds)
