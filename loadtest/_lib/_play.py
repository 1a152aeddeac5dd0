"""A schedule as one message says it, and its requests in order: the same in every process.

Who has it played is in ``_conduct``, who plays it in ``_dispatch``; the arithmetic of arrivals is ``_arrivals``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtest._lib import _arrivals
from loadtest._lib._arrivals import Stage
from loadtest._lib._plan import Plan
from loadtest._lib._run import Run

TRACE = "trace"  # the profile of a trace's requests
#: Offset, number in the schedule, profile, number of the stage.
Due = tuple[float, int, str, int]


@dataclass(slots=True)
class Play:
    """What to play, whole in one message. Offsets are seconds since the run's start.

    zero: the start, in Unix seconds of the sender's clock; elapsed: when it was sent (negative: the start is to come).
    since: where it takes the place of what was played
    before. begin: where its schedule begins; one that goes on with another share has the same begin. stages: [rate,
    rate at the end, seconds or None for no end], steps and phases: of each stage, for the records. classes: [name,
    weight]. share, of: this process sends number i where i % of == share; of 0: nothing.
    """

    run: str
    kind: str
    seed: int
    begin: float
    since: float
    elapsed: float
    share: int
    of: int
    zero: float = 0.0
    cv: float = 1.0
    stages: list[list[float | None]] = field(default_factory=list)
    steps: list[int | None] = field(default_factory=list)
    phases: list[str | None] = field(default_factory=list)
    classes: list[list[Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def step(self, due: Due) -> int | None:
        """The number of its stage or step, for its record."""
        return self.steps[due[3]] if due[3] < len(self.steps) else None

    def phase(self, due: Due, run: Run) -> str:
        """Of its record: the stage's own, or by the run's warm-up, which counts from the schedule's start."""
        given = self.phases[due[3]] if due[3] < len(self.phases) else None
        return given or ("warmup" if due[0] < run.warmup["seconds"] else "measured")


def dues(play: Play, plan: Plan) -> Iterator[Due]:
    """The whole schedule of a play, the same in every process. plan: has the trace."""
    if play.kind == "trace":
        assert plan.trace is not None
        for number, at in enumerate(plan.trace.at):
            yield play.begin + at / plan.speed, number, TRACE, 0
        return
    stages = [Stage(a or 0.0, b or 0.0, math.inf if s is None else s) for a, b, s in play.stages]
    draw = random.Random(f"classes/{play.seed}/{play.begin}")  # noqa: S311 - load, not secrets
    names, ends, total = [name for name, _ in play.classes], [], 0.0
    for _, weight in play.classes:
        total += weight
        ends.append(total)
    process = _arrivals.units(play.kind, play.cv, f"{play.seed}/{play.begin}")
    for number, (offset, stage) in enumerate(_arrivals.schedule(stages, process)):
        name = names[0] if len(names) == 1 else draw.choices(names, cum_weights=ends)[0]
        yield play.begin + offset, number, name, stage
