"""Clients that go away in the middle of a stream: their requests have to be aborted, or replicas work for nobody."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from chaos import ask
from chaos.engines import traffic
from chaos.fault import Fault, Parameters, Proof, Target


class VanishParameters(Parameters):
    rate: float = Field(5.0, gt=0, le=200, description="clients a second")
    after_tokens: int = Field(
        3, ge=1, le=1000, description="tokens of the answer after which a client goes away"
    )


class Vanishing(traffic.Source):
    """Compared with the router's own count of clients that went away, where it can be read."""

    def before(self, target: Target, p: Any) -> float | None:
        return _disconnects(target)

    def prove(self, target: Target, p: Any, before: float | None) -> Proof:
        proof = super().prove(target, p, before)
        if not proof.proven or before is None:
            return proof
        counted = (_disconnects(target) or 0.0) - before
        return Proof(counted >= 2, f"{proof.measured}; the router counted {counted:g}", counted)


def _disconnects(target: Target) -> float | None:
    admin = target.place.addresses.get("admin")
    return ask.series(f"{admin}/metrics", "exaserve_router_client_disconnects_total") if admin else None


def _proof(target: Target, p: Any, stats: traffic.Stats, seconds: float) -> Proof:
    vanished = stats.get("vanished", 0)
    return Proof(vanished >= 2, f"{vanished} clients went away in {seconds:.1f} s", float(vanished))


FAULT = Fault(
    name="traffic_vanish",
    kind="traffic",
    summary="clients go away in the middle of their answers",
    engines=(
        Vanishing(
            "vanish", lambda _, p: {"rate": p.rate, "after_tokens": p.after_tokens, "max_tokens": 512}, _proof
        ),
    ),
    parameters=VanishParameters,
)
