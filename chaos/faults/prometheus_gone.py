"""Prometheus (or Alertmanager) is gone: serving must not notice, and what is blind must say so.

``stop`` holds it for the whole duration: it accepts and never answers. ``kill`` is over at once: it is started again by
whoever supervises it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from chaos import ask
from chaos.engines.signals import Freeze, Kill
from chaos.fault import Fault, Parameters, Proof, Target


class GoneParameters(Parameters):
    how: Literal["stop", "kill"] = Field(
        "stop", description="stop: SIGSTOP until the end; kill: SIGKILL, once"
    )


class Stopped(Freeze):
    """Stopped, and proven by its silence."""

    name = "stop"
    how = "SIGSTOP to its processes; SIGCONT undoes it"

    def refusal(self, target: Target, p: Any) -> str | None:
        return "how=kill was asked for" if p.how != "stop" else super().refusal(target, p)

    def prove(self, target: Target, p: Any, before: list[int]) -> Proof:
        stopped = super().prove(target, p, before)
        assert target.part is not None
        code, why = ask.status(f"{target.part.url}/-/ready", timeout=0.5)
        told = f"{stopped.measured}, /-/ready: {code or why}"
        return Proof(stopped.proven and code == 0, told, stopped.value)


class Killed(Kill):
    """Killed."""

    name = "kill"
    how = "SIGKILL to its process"

    def refusal(self, target: Target, p: Any) -> str | None:
        return "how=stop was asked for" if p.how != "kill" else super().refusal(target, p)


FAULT = Fault(
    name="prometheus_gone",
    kind="control",
    summary="Prometheus or Alertmanager answers nothing, or is killed",
    engines=(Stopped(), Killed()),
    parameters=GoneParameters,
    targets=("prometheus", "alertmanager"),
)
