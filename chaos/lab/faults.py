"""Faults that are in a lab which is to be removed, or were when its machine went down: taken out, and said."""

from __future__ import annotations

from collections.abc import Callable

from chaos.lab import teardown
from chaos.lab.state import LabError


def take_out(name: str, say: Callable[[str], None]) -> None:
    """Take out what is in the lab, and say so: somebody may be measuring it. One that fails is said too.

    Nothing where the lab of that name is another home's. To be called without the lab's lock (``state.alone``): the
    undo of a killed node is `exaserve lab node start`, which takes it, and says that there is no lab to start it in
    once that is marked as ending.
    """
    from chaos import recover
    from chaos.fault import Refused

    try:
        if teardown.is_foreign(name):
            return
        for path, record in recover.records():
            if isinstance(record, dict) and record["place"].partition("/")[0] == f"lab:{name}":
                problems = recover.one(path)
                said = f", but: {'; '.join(problems)}" if problems else ""
                say(f"{record['fault']} on {record['target']} was in and is taken out{said}")
    except (Refused, LabError) as error:
        say(f"whether a fault is in can't be seen: {error}")
