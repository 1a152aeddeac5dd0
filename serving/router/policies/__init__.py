"""Routing policies: which of the replicas that may take a request gets it. One policy a file.

A policy is a class ``Policy`` in ``policies/<name>.py``; the file name is the name in the configuration. It only
chooses: who may take a request at all is the caller's business (``eligible.py`` holds them), what a request
weighs is ``router/work.py``'s, which session it belongs to ``router/session.py``'s.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from serving.fleet.replica import Replica
    from serving.router.policies.eligible import Eligible

NAMES = ("hybrid", "least_work", "consistent_hash", "round_robin", "least_requests", "power_of_two")


class Request(Protocol):
    """What a policy reads of an exchange.

    session: 64-bit key of the session or shared prefix, 0 = none. work: estimated token equivalents, in which the
    expected output_tokens count 1 each.
    """

    @property
    def session(self) -> int: ...
    @property
    def work(self) -> float: ...
    @property
    def output_tokens(self) -> int: ...


class Policy(Protocol):
    """One pool's way to choose."""

    name: str

    def __init__(self, settings: object = None) -> None: ...

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """The pool's members, whatever their state. Called at the start and when members come or go."""

    def choose(self, exchange: Request, eligible: Eligible, tried: Collection[Replica]) -> Replica | None:
        """A replica of ``eligible`` that is not in ``tried``; None if there is none. Changes no replica."""


def load(name: str, settings: object = None) -> Policy:
    """A new policy of that name. Raises ValueError, with the names there are, for an unknown one."""
    if name not in NAMES:
        raise ValueError(f"no routing policy is called {name!r}; there are: {', '.join(NAMES)}")
    policy: Policy = importlib.import_module(f"{__name__}.{name}").Policy(settings)
    return policy
