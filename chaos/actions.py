"""Actions of experiments: inject a fault, undo it, run load. Each returns within seconds.

Every action names one replica and refuses (raises ActivityFailed, having done nothing) where more than
``max_affected`` replicas would be out of rotation with it, or none would be left (``allow_last``).
"""

from __future__ import annotations

from typing import Any

from chaoslib.exceptions import ActivityFailed

from chaos import fleet, load, timeline
from chaos.faults import replica_crash, replica_freeze

__all__ = ["freeze_replica", "kill_replica", "recover", "start_load", "stop_load", "thaw_replica"]


def kill_replica(
    admin: str,
    replica: str = "any",
    max_affected: int = 1,
    allow_last: bool = False,
) -> dict[str, Any]:
    """Kill the replica's process with SIGKILL; returns its name, its pid and which children outlived it.

    admin: the router's admin address. replica: a name, or ``any`` of those in rotation.
    """
    timeline.begin(f"killing {replica}")
    chosen = fleet.victim(admin, replica, max_affected, allow_last)
    result = replica_crash.inject(chosen)
    timeline.injected()
    return result


def freeze_replica(
    admin: str,
    replica: str = "any",
    duration: float = 45.0,
    scope: str = "tree",
    max_affected: int = 1,
    allow_last: bool = False,
) -> dict[str, Any]:
    """Stop the replica's processes (SIGSTOP) for at most ``duration`` seconds; returns at once.

    scope: ``tree``, ``process`` (the listening one alone) or ``children`` (all but it). The freeze ends by
    itself after the duration, and at once if this process dies.
    """
    timeline.begin(f"freezing {replica}")
    chosen = fleet.victim(admin, replica, max_affected, allow_last)
    result = replica_freeze.inject(chosen, float(duration), scope)
    timeline.injected()
    return result


def thaw_replica(replica: str) -> list[int]:
    """Continue a frozen replica (SIGCONT); the pids, none if it is not frozen."""
    return replica_freeze.undo(replica)


def recover() -> dict[str, list[int]]:
    """Undo every fault that left an undo record, also those of earlier runs: replica -> pids continued."""
    return replica_freeze.recover()


def start_load(router: str, users: int = 4, seconds: float = 300.0) -> dict[str, Any]:
    """Start streaming requests in the background: ``users`` (1-64) for at most ``seconds`` (to 3600).

    Ends with ``stop_load``, at its deadline, or with this process.
    """
    if not 1 <= users <= load.MAX_USERS or not 0 < seconds <= load.MAX_SECONDS:
        raise ActivityFailed(
            f"load of {users} users for {seconds} s: "
            f"1-{load.MAX_USERS} users and at most {load.MAX_SECONDS:g} s are possible"
        )
    load.start(router, int(users), float(seconds))
    return {"users": users, "seconds": seconds}


def stop_load() -> dict[str, Any] | None:
    """Stop the load, wait up to 30 s for open requests, return how all ended; None if none runs."""
    return load.stop()
