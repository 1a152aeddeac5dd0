"""When this run's fault was injected: probes count from there, and don't wait for one that failed.

One Chaos Toolkit run is one process with one fault at a time; this is its memory, not a log.
"""

from __future__ import annotations

import time

from chaoslib.exceptions import ActivityFailed

_injected: float | None = None
_failure: str = ""


def begin(what: str) -> None:
    """A fault is about to be injected; until ``injected`` it counts as failed."""
    global _injected, _failure
    _injected, _failure = None, f"{what} was not done"


def injected(at: float | None = None) -> None:
    """It is in, since ``at`` (unix seconds; now without)."""
    global _injected, _failure
    _injected, _failure = time.time() if at is None else at, ""


def start() -> float:
    """Unix seconds of the last injection, or now if this process injected nothing.

    Raises ActivityFailed if the injection failed: nothing that follows from it will come.
    """
    if _failure:
        raise ActivityFailed(f"nothing to wait for: {_failure}")
    return _injected if _injected is not None else time.time()


def forget() -> None:
    global _injected, _failure
    _injected, _failure = None, ""
