"""Putting a fault in: the target chosen, the first engine that can taken, the undo recorded, the effect proven.

The order is what keeps a system whole: a dead-man stands ready, and has put the record on the disk, before anything is
done; a fault that can't be proven is taken out again and reported as failed. The dead-man writes the record, not we:
there is none that nobody would take away if we died at that moment.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos import fault as faults
from chaos import identity, recover, selector, undo
from chaos.agent import START, Agent
from chaos.fault import Engine, Fault, Left, NotProven, Parameters, Plan, Proof, Refused, Target
from chaos.injection import Injection
from chaos.place import Place


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
    planned: list[tuple[Target, Engine, Plan]] = []
    there = [(path, record) for path, record in recover.records() if isinstance(record, dict)]
    there = [(path, record) for path, record in there if _scope(record["place"]) == _scope(place.name)]
    broken = {
        record["target"].partition("/")[0] for _, record in there if record.get("kind", "node") in _BREAKING
    }
    try:
        for one in selector.choose(place, fault, target, max_affected, allow_last, broken):
            engine = engine_for(fault, one, p)
            plan = engine.plan(one, p, duration)
            _check_claims(fault, one, plan, there)
            planned.append((one, engine, plan))
    except Refused:
        raise
    except ActivityErrors as error:  # the router, Prometheus or a process could not be asked
        raise Refused(f"{error or type(error).__name__}; nothing was done") from None
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
    injections: list[Injection] = []
    try:
        with recover.alone("plan"):  # so that of two at once the second one sees the first one's records
            planned = dry_run(name, target, place, duration, parameters, max_affected, allow_last)
            for one, engine, plan in planned:
                injections.append(_planned(fault, one, engine, p, float(duration), plan))
                _call_deadman(injections[-1])
            for injection in injections:
                _hear_ready(injection)
        for injection in injections:
            _inject(injection)
        now = time.time()  # a dead-man whose time is up may still be at it
        early = [one for one in injections if (one.over or one.until <= now) and not one.momentary]
        if early and len(injections) > 1:
            raise NotProven(
                f"{fault.name} on {early[0].target.name} was over before all {len(injections)} were in: "
                f"{duration:g} s are too short; all was undone"
            )
    except BaseException as error:
        begun = [one for one in injections if one.injected_at]
        _end_all(injections)
        if isinstance(error, Refused) and begun:
            raise NotProven(f"{error}. {begun[0].target.name}, where it was in, was undone") from None
        raise
    return injections


@contextmanager
def held(*arguments: Any, **options: Any) -> Iterator[list[Injection]]:
    """``start``, and all taken out again at the end of the block."""
    injections = start(*arguments, **options)
    try:
        yield injections
    finally:
        _end_all(injections)


def _end_all(injections: list[Injection]) -> None:
    """Every one taken out, those that never began forgotten. Raises Left."""
    left = []
    with _uninterrupted():
        for injection in injections:
            try:
                injection.undo()
            except Left as error:
                left.append(str(error))
            if not injection.injected_at:
                injection.path.unlink(missing_ok=True)
    if left:
        raise Left("; ".join(left)) from None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C does not leave an undo (bounded) halfway; only a main thread gets any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:  # one that Python did not set can't be set again
            signal.signal(signal.SIGINT, before)


def engine_for(fault: Fault, target: Target, p: Parameters) -> Engine:
    """The first engine that can. Raises Refused with what every one says."""
    said = []
    for engine in fault.engines:
        why = engine.missing(target.place) or engine.refusal(target, p)
        if why is None:
            return engine
        said.append(f"{engine.name}: {why}")
    raise Refused(f"{fault.name} can't be done to {target.name} here; nothing was done. {'; '.join(said)}")


def _scope(place: str) -> str:
    """What a place's names are unique in: a lab for all its regions."""
    return place.partition("/")[0] if place.startswith("lab:") else place


def _claims(target: Target, plan: Plan) -> list[str]:
    """Another machine's processes and interfaces are others than those of the same name here."""
    on = f"{target.node.name}:" if target.remote and target.node is not None else ""
    return [f"{on}{claim}" for claim in plan.claims]


def _check_claims(fault: Fault, target: Target, plan: Plan, there: list[tuple[Path, dict[str, Any]]]) -> None:
    for path, record in there:
        same = record["fault"] == fault.name and record["target"] == target.name
        taken = sorted(set(_claims(target, plan)) & set(record["claims"]))
        if same or taken:
            what = f"has {', '.join(taken)}" if taken else "is in already"
            end = "It ends by itself, or" if undo.held(record) else "Nobody takes it out any more, but"
            raise Refused(
                f"{record['fault']} on {record['target']} {what}; nothing was done. {end}: "
                f"exaserve chaos recover ({path})"
            )


def _planned(
    fault: Fault, target: Target, engine: Engine, p: Parameters, duration: float, plan: Plan
) -> Injection:
    """The injection with the name of its record, and nothing else done."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", target.name)
    unique = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{random.getrandbits(24):06x}"
    path = recover.folder() / f"{fault.name}-{safe}-{unique}.json"
    return Injection(path.stem, fault, engine, target, p, duration, plan, path)


def _call_deadman(injection: Injection) -> None:
    """Start the dead-man, which writes the record. One on another machine writes its half of it; ours says where it is.

    Raises Refused.
    """
    record = _record(injection)
    path = str(injection.path)
    if record["remote"]:
        try:
            undo.write(path, record)
        except OSError as error:
            raise Refused(_no_record(f"{error.filename or path}: {error.strerror}")) from None
        path, record = record["remote"]["path"], dict(record, remote=None, controller=None)
    injection.agent = Agent(injection.target.node, {"op": "hold", "path": path, "record": record})


def _hear_ready(injection: Injection) -> None:
    """Its record is on the disk and it waits for the word. Raises Refused."""
    agent = injection.agent
    assert agent is not None
    answer = agent.hear(START)
    if answer and "unwritten" in answer:
        raise Refused(_no_record(answer["unwritten"]))
    if answer is None or "ready" not in answer:
        why = answer.get("error", "it said something else") if answer else agent.last_words()
        raise Refused(f"the dead-man on {agent.where} did not start: {why}; nothing was done")


def _no_record(why: str) -> str:
    return f"no undo record, so no fault: {why}; nothing was done"


def _inject(injection: Injection) -> None:
    """In and proven, or out again. Raises Refused, NotProven, Left."""
    try:
        before = injection.engine.before(injection.target, injection.parameters)
    except Refused:
        raise
    except ActivityErrors as error:
        raise Refused(
            f"{injection.target.name} could not be measured before: {error or type(error).__name__}; nothing was done"
        ) from None
    try:
        _begin(injection)
        _prove(injection, before)
        if injection.momentary:
            injection.undo()
    except BaseException as error:
        try:
            _end_all([injection])
        except Left as left:
            raise Left(f"{error or type(error).__name__}. {left}") from None
        raise


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
        "kind": injection.fault.kind,
        "engine": injection.engine.name,
        "target": target.name,
        "place": target.place.name,
        "claims": _claims(target, injection.plan),
        "created": time.time(),
        "duration": injection.duration,
        "until": None,
        "controller": identity.of(os.getpid()),
        "deadman": None,
        "state": "planned",
        "momentary": injection.momentary,
        "do": injection.plan.do,
        "undo": injection.plan.undo,
        "spawned": {},
        "problems": [],
        "remote": remote,
    }


def _begin(injection: Injection) -> None:
    """The word to the dead-man, and its steps done. Raises NotProven."""
    agent = injection.agent
    assert agent is not None
    injection.injected_at = time.time()
    agent.tell("do")
    answer = agent.hear(injection.duration + 60.0)
    if answer is None or "done" not in answer:
        why = answer.get("failed") or answer.get("error") if answer else agent.last_words()
        injection.agent = None
        injection.finish(agent, answer)
        raise NotProven(
            f"{injection.fault.name} on {injection.target.name} was not put in: "
            f"{why or 'its dead-man had been ended, or had waited too long'}; it was undone"
        )


def _prove(injection: Injection, before: Any) -> None:
    engine, agent = injection.engine, injection.agent
    assert agent is not None
    within = min(engine.prove_within, injection.duration)
    end = time.monotonic() + within
    while True:
        try:
            proof = engine.prove(injection.target, injection.parameters, before)
        except ActivityErrors as error:
            proof = Proof(False, str(error) or type(error).__name__)
        over = agent.ended()
        if proof.proven and (injection.momentary or not over):
            injection.proof, injection.proven_at = proof, time.time()
            return
        if over or time.monotonic() >= end:
            why = "it was over before it was proven" if over else f"not proven within {within:g} s"
            raise NotProven(
                f"{injection.fault.name} on {injection.target.name} by {engine.name}: {why}: {proof.measured}; "
                "it was undone"
            )
        time.sleep(0.05)


#: What a reading may raise: things break while they are looked at. A proof is tried again then.
ActivityErrors = (
    faults.ActivityFailed,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    subprocess.SubprocessError,
)
#: Kinds of faults whose target is broken by them, as far as blast radius goes.
_BREAKING = ("replica", "node", "link", "storage")
