"""What tests of the framework share: a place of child processes, faults made of plain steps, a controller to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos import ask, identity, undo
from chaos.fault import Engine, Fault, Plan, Proof, Target
from chaos.place import Identity, Node, Part, Place, Replica

#: Seconds of a fault that is proven and then ends by itself: a machine that stands still between the two must not make
#: it over before it is proven.
BRIEF = 4.0


def eventually(true: Callable[[], Any], seconds: float = 60) -> bool:
    """Whether it comes true. Nobody waits for so long but where it does not: other tests take the machine's time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.01)
    return False


def answer(url: str, name: str = "m", max_tokens: int = 4) -> ask.Answer:
    """A stream to its end. Silence alone is asked again: a machine that stands still says nothing of who answers."""
    for _ in range(5):
        found = ask.stream(url, name, max_tokens, 30.0)
        if "timed out" not in found.error:
            break
    return found


class Here(Place):
    """Replicas on this machine, all in rotation: name -> (url, pid). Nodes and parts as given."""

    name = "here"

    def __init__(
        self,
        replicas: dict[str, tuple[str, int]] | None = None,
        nodes: list[Node] | None = None,
        parts: dict[str, Part] | None = None,
        **addresses: str,
    ) -> None:
        super().__init__()
        self._replicas, self._parts = replicas or {}, parts or {}
        self._nodes = nodes or [Node("here", replicas=list(self._replicas), control=True)]
        self.addresses = addresses

    def nodes(self) -> list[Node]:
        return self._nodes

    def replicas(self) -> list[Replica]:
        return [
            Replica(name, url, "here", pid, int(url.rpartition(":")[2]), True)
            for name, (url, pid) in self._replicas.items()
        ]

    def parts(self) -> dict[str, Part]:
        return self._parts

    def processes(self, replica: Replica) -> list[Identity]:
        return identity.tree(replica.pid or 0)


class Steps(Engine):
    """An engine of plain steps; its proof: whether a file is there."""

    name = "steps"
    how = "carries out the steps that a test gives"

    def __init__(
        self,
        do: list[Any],
        undo: list[Any],
        proof: str = "",
        within: float = 10.0,
        before: float = 0.0,
        claims: tuple[str, ...] = (),
    ) -> None:
        self._plan, self._proof, self._before, self.prove_within = (
            Plan(do, undo, claims),
            proof,
            before,
            within,
        )

    def before(self, target: Target, p: Any) -> Any:
        time.sleep(self._before)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        return self._plan

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        there = not self._proof or Path(self._proof).exists()
        return Proof(there, f"{self._proof} is {'there' if there else 'not there'}", float(there))


def fault(name: str = "of_test", **steps: Any) -> Fault:
    return Fault(name, "traffic", "what a test needs", (Steps(**steps),))


def records(home: Path) -> list[Path]:
    return sorted((home / "chaos" / "undo").glob("*")) if (home / "chaos" / "undo").exists() else []


def the_record(home: Path) -> dict[str, Any] | None:
    """The only record, as far as it can be read."""
    for path in records(home):
        if path.suffix == ".json" and not path.name.startswith("."):
            try:
                return undo.read(str(path))
            except (FileNotFoundError, undo.Damaged):
                return None
    return None


_CONTROLLER = """
import json, sys, time
from chaos import inject
from tests.chaos.framework import Here, fault
given = json.loads(sys.argv[1])
injections = inject.start(fault(**given["steps"]), "fleet", Here(), given["duration"])
print("in", flush=True)
time.sleep(60)
"""


def controller(duration: float, **steps: Any) -> subprocess.Popen[str]:
    """Another process that puts a fault of these steps in, says ``in`` when it is proven, and waits."""
    given = json.dumps({"duration": duration, "steps": steps})
    return subprocess.Popen(
        [sys.executable, "-c", _CONTROLLER, given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ,
    )


def kill_both(process: subprocess.Popen[str], deadman: Identity | None) -> None:
    """SIGKILL to a controller and to its dead-man, neither of which gets the time to undo when the other one goes."""
    process.send_signal(signal.SIGSTOP)
    assert eventually(lambda: (identity.stat(process.pid) or "Z")[0] in "TZ")
    if deadman:
        os.kill(deadman["pid"], signal.SIGKILL)
        assert eventually(lambda: not identity.alive(deadman))
    process.kill()
    process.communicate()


def recover() -> tuple[int, str]:
    """``exaserve chaos recover`` as a user calls it, for records alone: (exit status, all it said)."""
    done = subprocess.run(
        [sys.executable, "-m", "chaos.cli", "recover"], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr
