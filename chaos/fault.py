"""What a fault is: one file in ``chaos/faults``, found by its name, with the engines that can bring it about.

Choosing a target is ``selector.py``, putting a fault in is ``inject.py``, taking it out ``undo.py`` and ``recover.py``.
How to add one: ``chaos/README.md``.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from chaoslib.exceptions import ActivityFailed
from pydantic import BaseModel, ConfigDict, ValidationError

from chaos.place import Node, Part, Place, Replica
from chaos.steps import Step

Kind = Literal["replica", "node", "link", "storage", "gpu", "traffic", "control"]
KINDS: tuple[str, ...] = get_args(Kind)
#: Longest duration of any fault, in seconds, unless the fault allows less.
MAX_DURATION = 600.0


class Refused(ActivityFailed):
    """Nothing was done; the text says why and what would help."""


class NotProven(ActivityFailed):
    """The fault's steps ran, but it is not in; it was undone again."""


class Left(ActivityFailed):
    """Something of a fault could not be undone; its record is kept for ``exaserve chaos recover``."""


class Parameters(BaseModel):
    """Base of a fault's parameters; without a field: none. Every field's description says its unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Target:
    """What a fault is done to.

    node: where it is, None for a part of nothing that is a node. replica: for kind replica.
    mount, mount_name: for kind storage, path on the node and name. part: for kind control.
    """

    name: str
    place: Place
    node: Node | None = None
    replica: Replica | None = None
    mount: str = ""
    mount_name: str = ""
    part: Part | None = None

    @property
    def remote(self) -> bool:
        """Whether steps are carried out on the node, by a dead-man there."""
        return self.node is not None and self.node.remote


@dataclass(frozen=True)
class Plan:
    """Steps that put a fault in, and those that take it out from any state.

    claims: what two faults may not have at once (``qdisc:exal-lab-1``); refused while another record has one.
    """

    do: list[Step]
    undo: list[Step] = field(default_factory=list)
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proof:
    """What was measured. value: the figure in it, in the unit that ``measured`` says."""

    proven: bool
    measured: str
    value: float | None = None


class Engine:
    """One way to bring a fault about.

    how: one sentence. prove_within: seconds for the proof to come. momentary: as ``Fault.momentary``, of this way.
    """

    name: str = ""
    how: str = ""
    prove_within: float = 10.0
    momentary: bool = False

    def missing(self, place: Place) -> str | None:
        """What it lacks at this place whatever the target: programs, rights, parts of the kernel. None: nothing."""
        return None

    def refusal(self, target: Target, p: Any) -> str | None:
        """Why it can't do it to this target, as a sentence; None if it can. Asked only if nothing is missing."""
        return None

    def before(self, target: Target, p: Any) -> Any:
        """A reading that the proof is compared with, or what a proof needs to have begun before the fault."""
        return None

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        """The steps; changes nothing."""
        raise NotImplementedError

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        """Measure whether the fault is in: at most 3 s a call, asked again until it is, or ``prove_within`` is over."""
        raise NotImplementedError


@dataclass(frozen=True)
class Fault:
    """A fault. name: its file's. engines: the first that does not refuse is taken.

    targets: for kind control, the parts that it may be done to.
    momentary: nothing is held (a crash): it is over once proven, and its duration only bounds the proof.
    """

    name: str
    kind: Kind
    summary: str
    engines: tuple[Engine, ...]
    parameters: type[Parameters] = Parameters
    targets: tuple[str, ...] = ()
    max_duration: float = MAX_DURATION
    momentary: bool = False

    def parse(self, given: dict[str, Any]) -> Parameters:
        """Its parameters, from values or texts. Raises Refused naming the parameter."""
        try:
            return self.parameters.model_validate(given)
        except ValidationError as error:
            known = ", ".join(self.parameters.model_fields) or "none"
            told = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'parameters'}: {e['msg'].removeprefix('Value error, ')}"
                for e in error.errors()
            )
            raise Refused(f"{self.name}: {told} (parameters: {known})") from None

    def check_duration(self, duration: float) -> float:
        """Seconds over 0 and at most ``max_duration``. Raises Refused."""
        if not 0 < duration <= self.max_duration:
            raise Refused(
                f"{self.name}: duration must be over 0 and at most {self.max_duration:g} s, not {duration:g}"
            )
        return float(duration)


def names() -> list[str]:
    """Every fault there is, by file name."""
    return sorted(
        p.stem for p in (Path(__file__).parent / "faults").glob("*.py") if not p.stem.startswith("_")
    )


def load(name: str) -> Fault:
    """The fault of that name. Raises Refused for a name that is none."""
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "exaserve chaos list shows all"
        raise Refused(f"no fault {name!r}; {hint}")
    fault: Fault = importlib.import_module(f"chaos.faults.{name}").FAULT
    return fault
