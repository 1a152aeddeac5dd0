"""The router's view of the fleet (``/fleet`` of its admin API). Which replica may be broken is ``selector.py``."""

from __future__ import annotations

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
