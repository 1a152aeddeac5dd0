"""The router's view of the fleet (``/fleet`` of its admin API), and which replica an experiment may touch."""

from __future__ import annotations

import random
from dataclasses import dataclass

from chaoslib.exceptions import ActivityFailed

from chaos import web

IN_ROTATION = ("ready", "degraded")


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica as the router sees it. since: unix seconds at which it entered its state; 0 if not told."""

    name: str
    url: str
    state: str
    since: float
    reason: str

    @property
    def in_rotation(self) -> bool:
        return self.state in IN_ROTATION


def read(admin: str) -> dict[str, Replica]:
    """Every replica by name. Raises ActivityFailed if the router can't be asked or answers something else."""
    url = f"{admin.rstrip('/')}/fleet"
    answer = web.get(url)
    try:
        return {
            r["name"]: Replica(
                r["name"], r["url"], r["state"], float(r.get("since") or 0), str(r.get("reason") or "")
            )
            for r in answer["replicas"]
        }
    except (KeyError, TypeError, ValueError):
        raise ActivityFailed(f"{url} is not a fleet view of ExaServe's router") from None


def victim(admin: str, name: str, max_affected: int = 1, allow_last: bool = False) -> Replica:
    """The replica to break: ``name``, or one of those in rotation for ``any``.

    Raises ActivityFailed where the blast radius would be more than asked for: it is not in rotation (an
    experiment on it would prove nothing); with it more than ``max_affected`` replicas were out of rotation;
    it is the last one in rotation and ``allow_last`` is not set.
    """
    replicas = read(admin)
    serving = sorted(r.name for r in replicas.values() if r.in_rotation)
    if name == "any" and serving:
        name = random.choice(serving)  # noqa: S311 - which one does not matter
    if name not in replicas:
        known = ", ".join(sorted(replicas)) or "none"
        raise ActivityFailed(f"no replica {name!r} in the fleet (there: {known})")
    chosen = replicas[name]
    if not chosen.in_rotation:
        raise ActivityFailed(f"{name} is {chosen.state}, not in rotation; nothing was done")
    affected = len(replicas) - len(serving) + 1
    if affected > max_affected:
        out = ", ".join(sorted(set(replicas) - set(serving)))
        raise ActivityFailed(
            f"blast radius: with {name} {affected} replicas were out of rotation ({out} already "
            f"{'is' if affected == 2 else 'are'}), at most {max_affected} may; nothing was done"
        )
    if serving == [name] and not allow_last:
        raise ActivityFailed(
            f"blast radius: {name} is the last replica in rotation; nothing was done (allow_last: true)"
        )
    return chosen
