"""The user of a closed loop: plays its profile's sessions one after the other.

A locustfile is one class: its profile, its weight and its docs. In an open loop these classes stand for their profiles
and weights only; the dispatcher sends (``_dispatch``), and such a user sleeps.
"""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import gevent
from locust import User, constant, task
from locust.exception import StopUser

from loadtest._lib import _hooks, _load, _plugin  # noqa: F401 - the plugin registers itself
from loadtest._lib._ask import Profile, Session
from loadtest._lib._run import Run
from loadtest._lib._sessions import Sessions

#: A server that refuses at once would otherwise be asked thousands of times a second.
PAUSE_AFTER_REFUSAL = 0.2
_numbers = count()


def _renumber(_: Any, __: Run) -> None:
    global _numbers
    _numbers = count()


_hooks.on_begin.append(_renumber)


class ProfileUser(User):
    """profile: makes sessions. profile_name: the label, by default ``ChatUser`` → ``chat``, ``MultiTurnUser`` →
    ``multi_turn``. by_default: play it also where no class is named; False for what a model for chat refuses.
    """

    abstract = True
    by_default = True
    wait_time = constant(0)
    profile: Profile
    profile_name = ""

    def __init_subclass__(cls, **_: Any) -> None:
        super().__init_subclass__()
        cls.profile_name = cls.__dict__.get("profile_name") or _label(cls.__name__)

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._load = _load.of(environment)
        self._sessions: Sessions | None = None
        self._session: Session | None = None
        self._answer: Any = None

    @task
    def play(self) -> None:
        """One ask. Returning after each lets locust end the user between two, also within a session."""
        load = self._load
        if load.open_loop or load.run is None:  # None: a worker that joined late waits for the run's settings
            gevent.sleep(0.2)
            return
        if load.run.stopping is not None:
            raise StopUser
        if self._sessions is None:
            self._sessions = Sessions(type(self).profile, load.run, f"{load.worker}/{next(_numbers)}")
        if self._session is None:
            self._session, self._answer = self._sessions.next(), None
        try:
            ask = next(self._session) if self._answer is None else self._session.send(self._answer)
        except StopIteration:
            self._session = None
            return
        if ask.think:
            gevent.sleep(ask.think)
            if load.run is None or load.run.stopping is not None:
                raise StopUser
        self._answer = load.sender().send(ask)
        if not self._answer.good and not self._answer.record.chunks:
            gevent.sleep(PAUSE_AFTER_REFUSAL)


def _label(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix("User") or name).lower()
