"""Actions of experiments: inject a fault, undo it, run load. Each returns within seconds.

Every injection refuses (raises ActivityFailed, having done nothing) where more than ``max_affected`` targets would be
broken with it, or none would be left (``allow_last``). A fault ends by itself after its duration, and at once if this
process dies.
"""

from __future__ import annotations

import time
from typing import Any

from chaoslib.exceptions import ActivityFailed

from chaos import inject, load, places, timeline
from chaos import recover as recovering

__all__ = [
    "freeze_replica",
    "inject_fault",
    "kill_replica",
    "recover",
    "start_load",
    "stop_load",
    "thaw_replica",
    "undo_fault",
    "watch",
]

#: What this process has put in and not taken out, oldest first.
_held: list[inject.Injection] = []


def inject_fault(
    fault: str,
    target: str = "any",
    duration: float = 60.0,
    parameters: dict[str, Any] | None = None,
    place: str = "local",
    admin: str = "",
    max_affected: int = 1,
    allow_last: bool = False,
) -> list[dict[str, Any]]:
    """Put a fault in and prove it; one entry for each target, returns while the fault is in.

    fault: a name from ``exaserve chaos list``. target: see ``exaserve chaos inject --help``. duration: seconds.
    place: ``local``, ``lab``, ``lab:NAME`` or an inventory file; admin: the router's admin address, where the place
    does not say it. An entry has ``id, fault, engine, target, injected_at, proven_at, until`` (unix seconds), ``proof``
    (what was measured) and ``value`` (its figure or None). Raises ActivityFailed: refused, or not proven and undone.
    """
    timeline.begin(f"{fault} on {target}")
    there = places.open(place, admin)
    injections = inject.start(
        fault, target, there, float(duration), parameters or {}, max_affected, allow_last
    )
    _held.extend(injections)
    timeline.injected(injections[0].injected_at)
    return [
        {
            "id": one.id,
            "fault": one.fault.name,
            "engine": one.engine.name,
            "target": one.target.name,
            "injected_at": one.injected_at,
            "proven_at": one.proven_at,
            "until": one.until,
            "proof": one.proof.measured if one.proof else "",
            "value": one.proof.value if one.proof else None,
        }
        for one in injections
    ]


def undo_fault(fault: str = "", target: str = "") -> list[str]:
    """Take out what this process put in; all without a name. Their ids: none if there was nothing (any more).

    Raises ActivityFailed if something could not be undone; the others are undone all the same.
    """
    chosen = [i for i in _held if fault in ("", i.fault.name) and target in ("", i.target.name)]
    undone, left = [], []
    for one in reversed(chosen):
        _held.remove(one)
        was_in = not one.over
        try:
            one.undo()
        except ActivityFailed as error:
            left.append(str(error))
        else:
            undone += [one.id] if was_in else []
    if left:
        raise ActivityFailed("; ".join(left))
    return undone


def recover(place: str = "") -> dict[str, Any]:
    """Undo every fault that left an undo record, also those of earlier runs; safe to call twice.

    place: where also to look for what is left without a record. Returns ``{"undone": [id...], "leftovers": [text...]}``.
    Raises ActivityFailed if something could not be put right.
    """
    _held.clear()
    found = recovering.recover(places.open(place) if place else None)
    if found.failed:
        raise ActivityFailed("; ".join(f"{path}: {why}" for path, why in found.failed))
    return {"undone": found.undone, "leftovers": found.leftovers}


def kill_replica(
    admin: str, replica: str = "any", max_affected: int = 1, allow_last: bool = False
) -> list[dict[str, Any]]:
    """``inject_fault`` of replica_crash on this machine. admin: the router's admin address."""
    return inject_fault("replica_crash", replica, 30.0, {}, "local", admin, max_affected, allow_last)


def freeze_replica(
    admin: str,
    replica: str = "any",
    duration: float = 45.0,
    scope: str = "tree",
    max_affected: int = 1,
    allow_last: bool = False,
) -> list[dict[str, Any]]:
    """``inject_fault`` of replica_freeze on this machine. scope: ``tree``, ``process`` or ``children``."""
    return inject_fault(
        "replica_freeze", replica, duration, {"scope": scope}, "local", admin, max_affected, allow_last
    )


def thaw_replica(replica: str) -> list[str]:
    """``undo_fault`` of replica_freeze."""
    return undo_fault("replica_freeze", replica)


def start_load(
    router: str, rate: float = 4.0, seconds: float = 300.0, max_tokens: int = 16
) -> dict[str, Any]:
    """Start requests in the background, open loop: ``rate`` a second, for at most ``seconds`` (to 3600).

    Returns once one has been answered or has failed. Ends with ``stop_load``, at its deadline, or with this process.
    Under ``exaserve chaos run``, whose own load runs already, that one is kept.
    """
    rate, seconds = float(rate), float(seconds)
    if not 0 < rate <= load.MAX_RATE or not 0 < seconds <= load.MAX_SECONDS:
        raise ActivityFailed(
            f"load of {rate:g} requests/s for {seconds:g} s: at most {load.MAX_RATE:g} requests/s and "
            f"{load.MAX_SECONDS:g} s are possible"
        )
    running = load.start(router, rate, seconds, int(max_tokens))
    return {"rate": running.rate, "seconds": seconds}


def watch(seconds: float) -> float:
    """Let things go on for so long (at most 600 s); the seconds."""
    if not 0 <= seconds <= 600:
        raise ActivityFailed(f"watching for {seconds:g} s: at most 600 s are possible")
    time.sleep(seconds)
    return seconds


def stop_load() -> dict[str, Any] | None:
    """Stop the load, wait up to 30 s for open requests, return how all ended; None if none runs.

    Under ``exaserve chaos run`` it goes on until the run ends.
    """
    return load.stop()
