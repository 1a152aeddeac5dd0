"""What came of a row, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["passed", "failed", "not run", "not built"]
#: States that are no pass. A row whose part of the product does not exist counts neither way.
BAD = ("failed", "not run")


@dataclass(frozen=True)
class Check:
    """One expectation: its words, what was measured, whether it held."""

    expected: str
    seen: str
    held: bool


@dataclass
class Result:
    """key, title: the row's. done: what was done to the fleet, with the fault's own proof. checks: in order.

    notes: what a reader should know besides. evidence: files below the report's folder, and ``alert NAME``.
    figures: numbers for programs. seconds: how long the row took. reason: why it was not run or is not built.
    """

    key: str
    title: str
    state: State = "not run"
    done: str = ""
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""

    def check(self, expected: str, seen: str, held: bool) -> None:
        self.checks.append(Check(expected, seen, held))

    def judge(self) -> None:
        """Passed if there is a check and all held."""
        self.state = "passed" if self.checks and all(c.held for c in self.checks) else "failed"

    def data(self) -> dict[str, Any]:
        return asdict(self)


def exit_code(results: Iterable[Result]) -> int:
    """0 if every row passed or is not built, and one passed; else 1."""
    states = [r.state for r in results]
    return 0 if "passed" in states and not any(s in BAD for s in states) else 1


def verdict(results: Iterable[Result]) -> str:
    """``7 passed, 0 failed, 1 not built``; a row that was not run is told too."""
    states = [r.state for r in results]
    words = [f"{states.count('passed')} passed", f"{states.count('failed')} failed"]
    words += [f"{states.count(w)} {w}" for w in ("not run", "not built") if w in states]
    return ", ".join(words)
