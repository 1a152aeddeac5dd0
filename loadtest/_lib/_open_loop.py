"""Joins open loops to a run and to locust: options, who conducts, who sends, and the end.

Imported once by ``_plugin``. In an open loop locust's users sleep; ``-u`` does not matter. Classes that are picked split
the rate by their weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import gevent
from locust import events
from locust.runners import MasterRunner, WorkerRunner

from loadtest._lib import _arrival_options, _hooks, _load, _options, _verdict
from loadtest._lib._conduct import HERE, PACE, PLAY, Conductor
from loadtest._lib._dispatch import Dispatcher
from loadtest._lib._plan import Plan
from loadtest._lib._play import TRACE
from loadtest._lib._record import Record
from loadtest._lib._run import Run


class _Now:
    """What this process has of the current run; one locust a process."""

    conductor: Conductor | None = None
    dispatcher: Dispatcher | None = None
    listening = False


def _check(options: Any) -> str | None:
    if options.worker:  # the master says it
        return None
    try:
        plan = _arrival_options.plan(options)
    except ValueError as error:
        return str(error)
    if options.headless and not plan.search and not plan.trace and len(plan.stages) == 1 and options.run_time:
        # locust counts -t from the start of its users. The schedule begins once all workers are there, and ends by
        # itself, so that it has rate x seconds requests.
        options.schedule_seconds, options.run_time = float(options.run_time), None
    return None


def _begin(environment: Any, run: Run) -> None:
    options, runner = environment.parsed_options, environment.runner
    _Now.conductor = _Now.dispatcher = None
    plan = _arrival_options.plan(options, getattr(options, "schedule_seconds", None))
    load = _load.of(environment)
    holds = not isinstance(runner, WorkerRunner)
    if holds:
        run.arrivals = plan.as_dict()
    if plan.kind == "closed":
        return
    _listen(runner)
    if holds:
        run.warmup = _warmup(options, plan)
        run.profile = TRACE if plan.kind == "trace" else run.profile
        run.save()
        classes = _classes(environment, plan)

        def over() -> None:
            if _Now.conductor is not None and _Now.conductor.broken:
                environment.process_exit_code = _verdict.VOID
            gevent.spawn(runner.quit if options.headless else runner.stop)

        _Now.conductor = Conductor(runner, run, plan, classes, load.sender().unsent, over)
    if not isinstance(runner, MasterRunner):

        def report(pace: dict[str, Any]) -> None:
            runner.send_message(PACE, pace)

        _Now.dispatcher = Dispatcher(run, load.sender(), plan, _profiles(environment), load.worker, report)
        runner.send_message(HERE, {"run": run.name})


def _warmup(options: Any, plan: Plan) -> dict[str, Any]:
    """As in a closed loop, but from the schedule's start."""
    given = _options.warmup(options.warmup)
    if plan.search is not None:
        return {"seconds": 0.0, "rule": f"{plan.search.warmup:g} s of each step"}
    if given is not None:
        return {"seconds": given, "rule": f"--warmup {given:g}"}
    if math.isinf(plan.seconds):
        return {"seconds": 10.0, "rule": "auto: 10 s"}
    seconds = min(30.0, plan.seconds / 10)
    return {"seconds": seconds, "rule": f"auto: a tenth of {plan.seconds:g} s, at most 30 s"}


def _classes(environment: Any, plan: Plan) -> list[list[Any]]:
    if plan.kind == "trace":
        return [[TRACE, 1]]
    weights: dict[str, float] = defaultdict(float)
    for user in environment.user_classes:
        if getattr(user, "profile_name", ""):
            weights[user.profile_name] += user.weight
    found = [[name, weight] for name, weight in sorted(weights.items()) if weight > 0]
    if not found:
        raise ValueError("--arrivals: no user class with a profile and a weight above 0 was picked")
    return found


def _profiles(environment: Any) -> dict[str, Callable[..., Any]]:
    users = {**(environment.available_user_classes or {}), **environment.user_classes_by_name}
    return {user.profile_name: user.profile for user in users.values() if getattr(user, "profile_name", "")}


def _records(worker: int, lines: bytes, records: list[Record]) -> None:
    conductor = _Now.conductor
    if conductor is None:
        return
    conductor.received[worker] += len(records)
    if conductor.on_record is not None:
        for record in records:
            conductor.on_record(record)


def _stopping(environment: Any, **_: Any) -> None:
    """locust's test_stopping: what is open gets --stop-timeout to end. A conductor sees it by itself."""
    if _Now.dispatcher is not None:
        _Now.dispatcher.stop(environment.stop_timeout or 0.0)


def _listen(runner: Any) -> None:
    if _Now.listening:
        return
    _Now.listening = True
    if not isinstance(runner, MasterRunner):

        def play(msg: Any, **_: Any) -> None:
            if _Now.dispatcher is not None:
                _Now.dispatcher.play(msg.data)

        runner.register_message(PLAY, play)
    if not isinstance(runner, WorkerRunner):

        def here(msg: Any, **_: Any) -> None:
            if _Now.conductor is not None:
                _Now.conductor.here(msg.node_id, msg.data)

        def pace(msg: Any, **_: Any) -> None:
            if _Now.conductor is not None:
                _Now.conductor.paced(msg.node_id, msg.data)

        runner.register_message(HERE, here)
        runner.register_message(PACE, pace)


_hooks.on_options.append(_arrival_options.add)
_hooks.on_check.append(_check)
_hooks.on_begin.append(_begin)
_hooks.on_records.append(_records)
events.test_stopping.add_listener(_stopping)
