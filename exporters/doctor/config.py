"""Reads ``exaserve.yaml`` for the checks: as plain data, unjudged. ``exaserve config check`` judges it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 20


def read(path: Path | None) -> dict[str, Any]:
    """The file's mapping. Without ``path``: ``./exaserve.yaml`` where there is one, else {}.

    Raises ValueError that says what is wrong and what to do.
    """
    if path is None:
        path = Path("exaserve.yaml")
        # Not Path.is_file: that raises in a folder of somebody else's (sudo -u nobody).
        if not os.path.isfile(path):
            return {}
    try:
        with path.open("rb") as f:
            raw = f.read(MAX_BYTES + 1)
        data = yaml.safe_load(raw.decode())
    except OSError as error:
        raise ValueError(f"{path}: can't be read: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError):
        raise ValueError(f"{path}: not YAML; `exaserve config check` shows where") from None
    if len(raw) > MAX_BYTES or not isinstance(data, dict | None):
        raise ValueError(f"{path}: not a configuration of ExaServe; `exaserve config check` shows why")
    return data or {}


def home(environ: Mapping[str, str]) -> Path:
    """``$EXASERVE_HOME``, or ``~/.exaserve``. A user without a home (a container's number) has nothing there."""
    return Path(os.path.expanduser(environ.get("EXASERVE_HOME") or "~/.exaserve")).absolute()


def run_folder(environ: Mapping[str, str]) -> Path:
    """Where ``exaserve up`` keeps its record (``serving/record.py``): ``$EXASERVE_RUN``, or below the home."""
    own = environ.get("EXASERVE_RUN")
    return Path(own).absolute() if own else home(environ) / "run"


def node_name() -> str:
    return os.uname().nodename
