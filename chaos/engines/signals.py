"""Processes stopped, killed or slowed down by signals. Works on every process that this user may signal.

Whose processes they are is the place's to say (``Place.processes``): on a node of a cluster they are that host's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos import ask, steps
from chaos.fault import Engine, Plan, Proof, Refused, Target
from chaos.place import Identity

#: Seconds of one turn of stopping and continuing; short against a probe of health, long against a token.
_TURN = 0.1
# Given as text: a node of a cluster has no file of ours. A handle is opened before the start time is compared, so that
# no other process can be hit; all are continued at its end.
_DUTY = """
import os, signal, sys, time
period, share = float(sys.argv[1]), float(sys.argv[2])
handles = []
for text in sys.argv[3:]:
    pid, ticks = map(int, text.split(":"))
    try:
        handle = os.pidfd_open(pid)
        if int(open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[19]) == ticks:
            handles.append(handle)
    except (OSError, ValueError):
        pass
def to_all(number):
    for handle in list(handles):
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            handles.remove(handle)
def end(*_):
    to_all(signal.SIGCONT)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print("ready" if handles else "the processes are gone", flush=True)
while handles:
    to_all(signal.SIGSTOP)
    time.sleep(period * share)
    to_all(signal.SIGCONT)
    time.sleep(period * (1 - share))
"""


def processes(target: Target) -> list[Identity]:
    """The processes of a replica or of a part, parents first. Raises Refused."""
    if target.replica is not None:
        found = target.place.processes(target.replica)
    elif target.part is not None and target.part.identity is not None:
        from chaos import identity

        found = identity.tree(target.part.identity["pid"])
    else:
        found = []
    if not found:
        raise Refused(f"the processes of {target.name} can't be seen from here")
    return found


def states(target: Target, pids: list[int]) -> dict[int, str]:
    """Each process's state (proc(5), stat: T stopped, Z zombie, …); those that are gone are absent."""
    paths = [f"/proc/{pid}/stat" for pid in pids]
    if target.remote and target.node is not None:
        texts = target.node.read(["cat", *paths]).stdout.splitlines()
    else:
        texts = [text for path in paths if (text := _text(path))]
    return {int(t.split()[0]): t.rpartition(")")[2].split()[0] for t in texts if ")" in t}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


class Signals(Engine):
    """What they have in common: without processes there is nothing to signal."""

    name = "signals"

    def refusal(self, target: Target, p: Any) -> str | None:
        try:
            processes(target)
        except Refused as error:
            return str(error)
        return None


class Freeze(Signals):
    """SIGSTOP; parameter ``scope``: tree, process (the listening one alone), children (all but it)."""

    how = "SIGSTOP to its processes; SIGCONT undoes it"

    def _chosen(self, target: Target, p: Any) -> list[Identity]:
        tree = processes(target)
        scope = getattr(p, "scope", "tree")
        return {"tree": tree, "process": tree[:1], "children": tree[1:]}[scope]

    def refusal(self, target: Target, p: Any) -> str | None:
        why = super().refusal(target, p)
        if why is None and not self._chosen(target, p):
            return f"nothing to freeze with scope {p.scope!r}: {target.name} is a single process"
        return why

    def before(self, target: Target, p: Any) -> list[int]:
        return [who["pid"] for who in self._chosen(target, p)]

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        chosen = self._chosen(target, p)
        do = [steps.signal(who, "SIGSTOP") for who in chosen]
        # Children first: a parent that is continued before them could take a stopped one for a dead one.
        undo = [steps.signal(who, "SIGCONT") for who in reversed(chosen)]
        return Plan(do, undo, claims=tuple(f"process:{who['pid']}" for who in chosen))

    def prove(self, target: Target, p: Any, before: list[int]) -> Proof:
        found = states(target, before)
        stopped = sum(state in "Tt" for state in found.values())
        told = f"{stopped} of {len(before)} processes are stopped"
        return Proof(stopped == len(before), told, float(stopped))


class Kill(Signals):
    """SIGKILL to the listening process. Momentary: whoever supervises it starts it again."""

    how = "SIGKILL to its listening process"
    momentary = True

    def before(self, target: Target, p: Any) -> Any:
        return [who["pid"] for who in processes(target)]

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        return Plan([steps.signal(processes(target)[0], "SIGKILL")])

    def prove(self, target: Target, p: Any, before: list[int]) -> Proof:
        found = states(target, before)
        there = [pid for pid, state in found.items() if state not in "ZX"]
        if before[0] in there:
            return Proof(False, f"process {before[0]} is still there")
        told = f"process {before[0]} is gone"
        return Proof(True, told + (f", of its children {len(there)} are left" if there else ""), 1.0)


class Duty(Signals):
    """Stopped for a share of every 0.1 s; parameter ``factor``: how many times as slow."""

    name = "duty"
    how = "SIGSTOP and SIGCONT in turn, so that it runs for 1/factor of the time"
    prove_within = 15.0

    def refusal(self, target: Target, p: Any) -> str | None:
        if p.factor * _TURN > 1000:
            return "a factor this large is a freeze"
        return super().refusal(target, p)

    def before(self, target: Target, p: Any) -> float:
        return pace(target)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        tree = processes(target)
        python = "python3" if target.remote else _python()
        numbers = [f"{who['pid']}:{who['ticks']}" for who in tree]
        argv = [python, "-I", "-c", _DUTY, str(_TURN), f"{1 - 1 / p.factor:.6f}", *numbers]
        undo = [steps.stop("duty"), *(steps.signal(who, "SIGCONT") for who in reversed(tree))]
        return Plan(
            [steps.spawn("duty", argv, ready="ready")],
            undo,
            claims=tuple(f"process:{who['pid']}" for who in tree),
        )

    def prove(self, target: Target, p: Any, before: float) -> Proof:
        return slower(target, p.factor, before)


def pace(target: Target, seconds: float = 3.0) -> float:
    """Seconds per token straight from the replica. Raises Refused if it gives none.

    The shortest of three short streams: a machine that stands still meanwhile makes a token take longer, never less,
    and what is compared with it would have to be slower still.
    """
    import time

    assert target.replica is not None
    url = target.replica.url
    name, found = ask.model(url), []
    for _ in range(3):
        answer = ask.stream(url, name, 16, seconds)
        if len(answer.arrivals) >= 2:
            found.append(answer.seconds_per_token(time.monotonic()))
    if not found:
        raise Refused(f"{target.name} gave no tokens to measure: HTTP {answer.status} {answer.error}")
    return min(found)


def slower(target: Target, factor: float, before: float) -> Proof:
    """Whether a token takes more than half the factor of the time from before (and 1.3 times at least)."""
    import time

    assert target.replica is not None
    answer = ask.stream(target.replica.url, ask.model(target.replica.url), 12, 3.0)
    now = answer.seconds_per_token(time.monotonic())
    told = f"{now * 1000:.0f} ms a token, {before * 1000:.0f} ms before"
    ratio = now / before if before > 0 else float("inf")
    return Proof(ratio >= max(1.3, factor / 2) or (now >= 2.5 and ratio >= 1.3), told, ratio)


def _python() -> str:
    import sys

    return sys.executable
