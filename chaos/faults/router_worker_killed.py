"""One of the router's worker processes is killed: its streams break, its connections wait for the one that replaces it.

Momentary: the router's master starts another at once.
"""

from __future__ import annotations

from typing import Any

from chaos import identity, steps, web
from chaos.fault import ActivityFailed, Engine, Fault, Plan, Proof, Refused, Target
from chaos.place import Identity


class KillWorker(Engine):
    """SIGKILL to the worker with the most open requests, as the router's ``/workers`` tells."""

    name = "signals"
    how = "SIGKILL to the worker process that has the most open requests"
    momentary = True

    def refusal(self, target: Target, p: Any) -> str | None:
        try:
            self._worker(target)
        except ActivityFailed as error:
            return str(error)
        return None

    def _worker(self, target: Target) -> Identity:
        serving = [w for w in _workers(target) if w["state"] == "serving"]
        if not serving:
            raise Refused("the router has no worker that serves")
        pid = max(serving, key=lambda w: (w["open_requests"], -w["worker"]))["pid"]
        part = target.part.identity if target.part is not None else None
        ours = {who["pid"]: who for who in identity.tree(part["pid"])} if part else {}
        if pid not in ours:
            raise Refused(f"worker {pid} is no process of the router that {target.place.name} has here")
        return ours[pid]

    def before(self, target: Target, p: Any) -> tuple[list[Identity], int]:
        found = [identity.of(w["pid"]) for w in _workers(target) if w["pid"]]
        return [who for who in found if who], _restarts(target)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        return Plan([steps.signal(self._worker(target), "SIGKILL")])

    def prove(self, target: Target, p: Any, before: tuple[list[Identity], int]) -> Proof:
        gone = [str(who["pid"]) for who in before[0] if not identity.alive(who)]
        died = _restarts(target) - before[1]
        told = f"worker {', '.join(gone) or '(none)'} is gone, the router counts {died} died"
        return Proof(bool(gone) and died >= 1, told, float(died))


def _workers(target: Target) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = web.get(f"{target.place.addresses.get('admin', '')}/workers")
    return found


def _restarts(target: Target) -> int:
    return sum(int(w["restarts"].get("died", 0)) for w in _workers(target))


FAULT = Fault(
    name="router_worker_killed",
    kind="control",
    summary="one of the router's worker processes is killed",
    engines=(KillWorker(),),
    targets=("router",),
    momentary=True,
)
