"""Putting a fault in: the target chosen, the first engine that can taken, the undo recorded, the effect proven.

The order is what keeps a system whole: the record is on the disk and a dead-man stands ready before anything is done,
and a fault that can't be proven is taken out again and reported as failed.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import fault as faults
from chaos import identity, recover, selector, undo
from chaos.agent import START, Agent
from chaos.fault import Engine, Fault, Left, NotProven, Parameters, Plan, Proof, Refused, Target
from chaos.place import Place


@dataclass
class Injection:
    """One fault in one target. Times are unix seconds of this machine; proven_at None until it is proven."""

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
    _agent: Agent | None = field(default=None, repr=False)

    @property
    def until(self) -> float:
        """When the dead-man takes it out whatever happens."""
        return self.injected_at + self.duration

    @property
    def over(self) -> bool:
        """Whether it was taken out already (duration, undo, ``exaserve chaos recover``)."""
        return self._agent is None or self._agent.ended()

    def undo(self) -> None:
        """Take it out; again is nothing. Raises Left if something could not be undone."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        agent.tell("undo")
        self._farewell(agent, undo.PERSIST + 15.0)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is over by itself, at most so long; whether it is. Raises Left as ``undo`` does."""
        agent = self._agent
        if agent is None:
            return True
        limit = self.duration + undo.PERSIST + 15.0 if seconds is None else seconds
        answer = agent.hear(limit)
        if answer is None and not agent.ended():
            return False
        self._agent = None
        self._finish(agent, answer)
        return True

    def _farewell(self, agent: Agent, seconds: float) -> None:
        end = time.monotonic() + seconds
        answer = agent.hear(seconds)
        while answer is not None and "undone" not in answer:
            answer = agent.hear(max(0.0, end - time.monotonic()))
        self._finish(agent, answer)

    def _finish(self, agent: Agent, answer: dict[str, Any] | None) -> None:
        """It has ended, or hangs. What it did not say is read from the record: no record, nothing left."""
        agent.close()
        problems = answer.get("problems", []) if answer else []
        if self.target.remote:
            if answer and not problems:
                self.path.unlink(missing_ok=True)
            elif not answer:
                problems = [f"the dead-man on {agent.where} can't be heard; it undoes by itself"]
        elif not problems and self.path.exists():
            problems = recover.one(self.path)
        if problems:
            raise Left(f"{self.fault.name} on {self.target.name}: {'; '.join(problems)} ({self.path})")


def dry_run(
    name: str | Fault,
    target: str,
    place: Place,
    duration: float,
    parameters: dict[str, Any] | None = None,
    max_affected: int = 1,
    allow_last: bool = False,
) -> list[tuple[Target, Engine, Plan]]:
    """What ``start`` would do, with nothing done. name: a fault's, or one that is in no file. Raises Refused."""
    fault = name if isinstance(name, Fault) else faults.load(name)
    duration, p = fault.check_duration(duration), fault.parse(parameters or {})
    planned = []
    try:
        for one in selector.choose(place, fault, target, max_affected, allow_last):
            engine = engine_for(fault, one, p)
            plan = engine.plan(one, p, duration)
            _check_claims(fault, one, plan)
            planned.append((one, engine, plan))
    except Refused:
        raise
    except faults.ActivityFailed as error:  # the router, Prometheus or a process could not be asked
        raise Refused(f"{error}; nothing was done") from None
    return planned


def start(
    name: str | Fault,
    target: str,
    place: Place,
    duration: float,
    parameters: dict[str, Any] | None = None,
    max_affected: int = 1,
    allow_last: bool = False,
) -> list[Injection]:
    """Put the fault into every chosen target and prove it there; returns once all are proven.

    duration: seconds, after which it is taken out whatever happens. The other arguments: ``selector.choose``.
    Raises Refused (nothing was done), NotProven (taken out again), Left (could not be taken out again).
    The injections live as long as this process, at most ``duration``.
    """
    fault = name if isinstance(name, Fault) else faults.load(name)
    p = fault.parse(parameters or {})
    planned = dry_run(name, target, place, duration, parameters, max_affected, allow_last)
    done: list[Injection] = []
    try:
        for one, engine, plan in planned:
            done.append(_inject(fault, one, engine, p, float(duration), plan))
    except BaseException:
        left = []
        for injection in done:
            try:
                injection.undo()
            except Left as error:
                left.append(str(error))
        if left:
            raise Left("; ".join(left)) from None
        raise
    return done


@contextmanager
def held(*arguments: Any, **options: Any) -> Iterator[list[Injection]]:
    """``start``, and all taken out again at the end of the block."""
    injections = start(*arguments, **options)
    try:
        yield injections
    finally:
        left = []
        for injection in injections:
            try:
                injection.undo()
            except Left as error:
                left.append(str(error))
        if left:
            raise Left("; ".join(left))


def engine_for(fault: Fault, target: Target, p: Parameters) -> Engine:
    """The first engine that can. Raises Refused with what every one says."""
    said = []
    for engine in fault.engines:
        why = engine.missing(target.place) or engine.refusal(target, p)
        if why is None:
            return engine
        said.append(f"{engine.name}: {why}")
    raise Refused(f"{fault.name} can't be done to {target.name} here; nothing was done. {'; '.join(said)}")


def _check_claims(fault: Fault, target: Target, plan: Plan) -> None:
    for path, record in recover.records():
        if isinstance(record, str):
            continue
        same = record["fault"] == fault.name and record["target"] == target.name
        taken = sorted(set(plan.claims) & set(record.get("claims", ())))
        if record.get("place") == target.place.name and (same or taken):
            what = f"has {', '.join(taken)}" if taken else "is in already"
            raise Refused(
                f"{record['fault']} on {record['target']} {what}; nothing was done. It ends by itself, or: "
                f"exaserve chaos recover ({path})"
            )


def _inject(
    fault: Fault, target: Target, engine: Engine, p: Parameters, duration: float, plan: Plan
) -> Injection:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", target.name)
    unique = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{random.getrandbits(24):06x}"
    path = recover.folder() / f"{fault.name}-{safe}-{unique}.json"
    injection = Injection(path.stem, fault, engine, target, p, duration, plan, path)
    before = engine.before(target, p)
    record = _record(injection)
    try:
        undo.write(str(path), record)
    except OSError as error:
        raise Refused(
            f"no undo record, so no fault: {error.filename or path}: {error.strerror}; nothing was done"
        ) from None
    try:
        _begin(injection, record)
        _prove(injection, before)
        if fault.momentary or engine.momentary:
            injection.undo()
    except BaseException as error:
        _take_out(injection, error)
        raise
    return injection


def _record(injection: Injection) -> dict[str, Any]:
    target, node = injection.target, injection.target.node
    remote = None
    if target.remote and node is not None:
        remote = {
            "host": node.prefix,
            "node": node.name,
            "path": f"{node.state_folder}/{injection.path.name}",
        }
    return {
        "version": 1,
        "id": injection.id,
        "fault": injection.fault.name,
        "engine": injection.engine.name,
        "target": target.name,
        "place": target.place.name,
        "claims": list(injection.plan.claims),
        "created": time.time(),
        "duration": injection.duration,
        "until": None,
        "controller": identity.of(os.getpid()),
        "deadman": None,
        "state": "planned",
        "do": injection.plan.do,
        "undo": injection.plan.undo,
        "spawned": {},
        "problems": [],
        "remote": remote,
    }


def _begin(injection: Injection, record: dict[str, Any]) -> None:
    """Dead-man ready, then the steps. Raises Refused, NotProven."""
    own = dict(record, remote=None, controller=None if record["remote"] else record["controller"])
    path = record["remote"]["path"] if record["remote"] else str(injection.path)
    agent = injection._agent = Agent(injection.target.node, {"op": "hold", "path": path, "record": own})
    answer = agent.hear(START)
    if answer is None or "ready" not in answer:
        why = answer.get("error", "it said something else") if answer else agent.last_words()
        raise Refused(f"the dead-man on {agent.where} did not start: {why}; nothing was done")
    injection.injected_at = time.time()
    agent.tell("do")
    answer = agent.hear(injection.duration + 60.0)
    if answer is None or "done" not in answer:
        why = answer.get("failed") or answer.get("error") if answer else agent.last_words()
        injection._agent = None
        injection._finish(agent, answer)
        raise NotProven(
            f"{injection.fault.name} on {injection.target.name} was not put in: {why}; it was undone"
        )


def _prove(injection: Injection, before: Any) -> None:
    engine, agent = injection.engine, injection._agent
    assert agent is not None
    end = time.monotonic() + min(engine.prove_within, injection.duration)
    while True:
        try:
            proof = engine.prove(injection.target, injection.parameters, before)
        except ActivityErrors as error:
            proof = Proof(False, str(error) or type(error).__name__)
        over = agent.ended()
        if proof.proven and not over:
            injection.proof, injection.proven_at = proof, time.time()
            return
        if over or time.monotonic() >= end:
            why = (
                "it was over before it was proven" if over else f"not proven within {engine.prove_within:g} s"
            )
            raise NotProven(
                f"{injection.fault.name} on {injection.target.name} by {engine.name}: {why}: {proof.measured}; "
                "it was undone"
            )
        time.sleep(0.05)


def _take_out(injection: Injection, error: BaseException) -> None:
    """After a failure: undo, and the record of a fault that never began goes."""
    try:
        injection.undo()
    except Left as left:
        raise Left(f"{error}. {left}") from None
    if injection.injected_at == 0.0:
        injection.path.unlink(missing_ok=True)


#: What a proof may raise without ending the injection at once: readings fail while things break.
ActivityErrors = (faults.ActivityFailed, OSError, ValueError, KeyError, TypeError)
