"""Puts the load test into locust, once however many locustfiles import it: options, a run's begin and end, hooks.

Other parts of the load test append to the lists below when they are imported (the imports stand at this file's end).
Not here: what begins and ends (``_load``), what a user does (``_user``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gevent
from locust import events

from loadtest._lib import _hooks, _load, _options, _stats, _worker_options
from loadtest._lib._hooks import on_begin, on_client, on_end, on_options, on_records
from loadtest._lib._sender import Sender

__all__ = ["on_begin", "on_client", "on_end", "on_options", "on_records", "sender"]

_stats.keep_three_digits()
_worker_options.look_up_once()


def sender(environment: Any) -> Sender:
    """This process's sender in the current run. Raises RuntimeError before a run."""
    return _load.of(environment).sender()


@events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    _options.add(parser)
    for add in _hooks.on_options:
        add(parser)


@events.init.add_listener
def _init(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    if options is None:  # locust as a library
        return
    problem = _load.problem(environment)
    if problem is not None:
        print(f"{problem}\nsee `locust -f loadtest/ --help`", file=sys.stderr)
        sys.exit(2)
    if not options.user_classes and not options.class_picker:
        chosen = [c for c in environment.user_classes if getattr(c, "by_default", True)]
        environment.user_classes[:] = chosen or environment.user_classes
    _load.attach(environment)
    # gevent starts timers from the time of its loop's last turn, which was before all that was imported: -t would be over
    # that much too early.
    gevent.get_hub().loop.update_now()


def _listen(event: Any, do: Callable[[_load.Load], None]) -> None:
    def listener(environment: Any, **_: Any) -> None:
        load = _load.found(environment)
        if load is not None:
            do(load)

    event.add_listener(listener)


_listen(events.test_start, _load.Load.begin)
_listen(events.test_stopping, _load.Load.stopping)
_listen(events.test_stop, _load.Load.end)
_listen(events.quitting, _load.Load.quitting)

# The other parts join by appending to the hooks.
from loadtest._lib import _live, _open_loop, _profile_options, _progress  # noqa: E402, F401
