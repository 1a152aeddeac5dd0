"""What a conductor has played: a schedule with its stages, or the steps of a search, each told on the screen.

Arithmetic of a search is in ``_search``; who plays is in ``_conduct`` and ``_dispatch``.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from loadtest._lib._arrivals import Stage
from loadtest._lib._exact import Exact
from loadtest._lib._objectives import Objectives
from loadtest._lib._plan import Plan
from loadtest._lib._record import Record
from loadtest._lib._run import Run
from loadtest._lib._search import Search, Step

if TYPE_CHECKING:
    from loadtest._lib._conduct import Conductor

#: A request of a step that has not ended so long after it is bad; the next step does not begin before.
SETTLE = 60.0


def schedule(conductor: Conductor, run: Run, plan: Plan) -> None:
    """Play it to its end (a rate without one: for ever), and say which stage it is in."""
    stages, total = plan.stages, plan.seconds
    several = len(stages) > 1
    play = conductor.play(
        stages, 0.0, [i if several else None for i in range(len(stages))], [None] * len(stages)
    )
    ends, end = [], 0.0
    for stage in stages:
        end += stage.seconds
        ends.append(end)
    told = -1

    def words() -> str:
        elapsed = max(0.0, conductor.elapsed())
        of = "" if math.isinf(total) else f" of {total:g}"
        now = next((i for i, e in enumerate(ends) if elapsed < e), len(ends) - 1)
        where = f", stage {now + 1} of {len(stages)}" if several else ""
        return f"open loop: {elapsed:.0f}{of} s{where}"

    def over() -> bool:
        nonlocal told
        elapsed = conductor.elapsed()
        now = next((i for i, e in enumerate(ends) if elapsed < e), len(ends))
        if several and elapsed >= 0 and now != told and now < len(stages):
            told = now
            logging.info("stage %s of %s: %s", now + 1, len(stages), _rates(stages[now]))
        return elapsed >= total

    conductor.watch(over, words)
    conductor.finish(total)
    begun, scheduled = conductor.total("due"), conductor.count(play)
    run.arrivals["scheduled"], run.arrivals["due"] = scheduled, begun
    conductor.tell("open loop: the schedule has ended")
    if begun != scheduled:
        logging.warning("%s of %s scheduled requests were begun in time", f"{begun:,}", f"{scheduled:,}")


def _rates(stage: Stage) -> str:
    if stage.start == stage.end:
        return f"{stage.start:g} requests/s for {stage.seconds:g} s"
    return f"{stage.start:g} to {stage.end:g} requests/s in {stage.seconds:g} s"


def search(conductor: Conductor, run: Run, plan: Plan) -> None:
    """Play steps until the rate is found; the result is in ``run.arrivals["search"]``."""
    assert plan.search is not None
    asked = plan.search
    found = Search(asked.low, asked.high, run.attainment, asked.precision)
    objectives = Objectives(**run.slo)
    number = 0
    while (rate := found.next_rate()) is not None:
        step = _step(conductor, run, objectives, Step(rate, asked.measured), asked.warmup, number)
        number += 1
        step = found.tell(step)
        run.arrivals["search"] = found.result()
        again = "; played once more, as that can be chance" if found.next_rate() == rate else ""
        logging.info(
            "search: step %s, %.4g requests/s: %.2f %% of %s good (%.4g %% asked for), %s%s",
            number, rate, step.attainment * 100, f"{step.offered:,}", run.attainment * 100, step.verdict, again,
        )  # fmt: skip
    logging.info("search: %s", found.words())


def _step(
    conductor: Conductor, run: Run, objectives: Objectives, step: Step, warmup: float, number: int
) -> Step:
    from loadtest._lib._conduct import LEAD

    ended: list[tuple[bool, float | None]] = []

    def on_record(record: Record) -> None:
        if record.step == number:
            lag = None if record.sent is None or record.due is None else record.sent - record.due
            ended.append((objectives.judge(record), lag))

    conductor.on_record = on_record
    begin = max(0.0, conductor.elapsed()) + (LEAD if conductor.elapsed() > 0 else 0.0)
    stages = [Stage(step.rate, step.rate, warmup), Stage(step.rate, step.rate, step.seconds)]
    play = conductor.play(stages, begin, [None, number], ["warmup", "measured"])
    step.offered = conductor.count(play, 1)
    end = begin + warmup + step.seconds

    def words() -> str:
        at = conductor.elapsed() - begin
        what = (
            "warm-up" if at < warmup else "measured" if at < warmup + step.seconds else "waits for open ones"
        )
        return f"search: step {number + 1}, {step.rate:.4g} requests/s, {max(0.0, at):.0f} s, {what}"

    def over() -> bool:
        elapsed = conductor.elapsed()
        settled = len(ended) >= step.offered and conductor.total("open") == 0
        return elapsed >= end and (settled or elapsed >= end + SETTLE)

    conductor.watch(over, words)
    conductor.on_record = None
    step.good = sum(good for good, _ in ended)
    lags = Exact()
    lags.add_many([lag for _, lag in ended if lag is not None])
    step.lag = lags.quantile(0.99)
    if step.lag is not None and step.lag > run.limits["lag"]:
        step.verdict = "void"
    return step
