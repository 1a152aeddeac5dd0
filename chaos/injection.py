"""One fault in one target, as whoever put it in holds it: its state, and its end.

Putting it in is ``inject.py``; the dead-man that takes it out at the latest ``deadman.py``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import recover, undo
from chaos.agent import Agent
from chaos.fault import Engine, Fault, Left, Parameters, Plan, Proof, Target


@dataclass
class Injection:
    """Times are unix seconds of this machine: injected_at 0 until it began, proven_at None until it is proven.

    agent: its dead-man; None before it began and once it is over.
    """

    id: str
    fault: Fault
    engine: Engine
    target: Target
    parameters: Parameters
    duration: float
    plan: Plan
    path: Path
    proof: Proof | None = None
    injected_at: float = 0.0
    proven_at: float | None = None
    agent: Agent | None = field(default=None, repr=False)

    @property
    def until(self) -> float:
        """When the dead-man takes it out whatever happens."""
        return self.injected_at + self.duration

    @property
    def momentary(self) -> bool:
        """Whether nothing is held: it is over once it is proven."""
        return self.fault.momentary or self.engine.momentary

    @property
    def over(self) -> bool:
        """Whether it was taken out already (duration, undo, ``exaserve chaos recover``)."""
        return self.agent is None or self.agent.ended()

    def undo(self) -> None:
        """Take it out; again is nothing. Raises Left if something could not be undone."""
        agent, self.agent = self.agent, None
        if agent is None:
            return
        agent.tell("undo")
        self._farewell(agent, 3.0 if self._nothing_to_undo else undo.PERSIST + 15.0)

    @property
    def _nothing_to_undo(self) -> bool:
        """Once it is proven: a machine that was restarted takes its dead-man with it, and that is well."""
        return self.momentary and not self.plan.undo and self.proven_at is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is over by itself, at most so long; whether it is. Raises Left as ``undo`` does."""
        agent = self.agent
        if agent is None:
            return True
        limit = self.duration + undo.PERSIST + 15.0 if seconds is None else seconds
        answer = agent.hear(limit)
        if answer is None and not agent.ended():
            return False
        self.agent = None
        self.finish(agent, answer)
        return True

    def _farewell(self, agent: Agent, seconds: float) -> None:
        end = time.monotonic() + seconds
        answer = agent.hear(seconds)
        while answer is not None and "undone" not in answer:
            answer = agent.hear(max(0.0, end - time.monotonic()))
        self.finish(agent, answer)

    def finish(self, agent: Agent, answer: dict[str, Any] | None) -> None:
        """It has ended, or hangs. What it did not say is read from the record: no record, nothing left."""
        agent.close()
        problems = answer.get("problems", []) if answer else []
        if self.target.remote:
            if (answer or self._nothing_to_undo) and not problems:
                self.path.unlink(missing_ok=True)
            # Before the injection it has put nothing in, and goes with its input.
            elif not answer and self.injected_at:
                problems = [f"the dead-man on {agent.where} can't be heard; it undoes by itself"]
        elif not problems and self.path.exists():
            problems = recover.one(self.path)
        if problems:
            raise Left(f"{self.fault.name} on {self.target.name}: {'; '.join(problems)} ({self.path})")
