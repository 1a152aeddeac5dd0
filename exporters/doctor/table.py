"""Draws findings as plain text: worst last, so that it stands above the prompt, with the cure below each.

Equal rows of several items (eight ports at one rate) are one row. Colour only where a terminal reads it.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from exporters.doctor.check import Finding, Verdict
from exporters.doctor.compare import Comparison, Trouble
from exporters.doctor.files import listed, printable
from exporters.doctor.hosts import fold
from exporters.doctor.result import NodeResult, counts

#: In the order in which rows are shown.
_ORDER: tuple[Verdict, ...] = ("not here", "ok", "unknown", "warn", "fail")
_COLOUR = {"ok": "32", "warn": "33", "fail": "31;1", "unknown": "35", "not here": "90"}
_LOUD = ("unknown", "warn", "fail")
_NAMED = 3  # items of one row that are named


class Table:
    """width: characters of a line. colour: whether verdicts are coloured."""

    def __init__(self, width: int | None = None, colour: bool = False) -> None:
        self._width = width or max(60, min(160, shutil.get_terminal_size((110, 24)).columns))
        self._colour = colour

    def node(self, result: NodeResult, quiet: bool = False) -> str:
        """One node's table and its summary. quiet: only rows that need somebody."""
        shown = [f for f in result.findings if not quiet or f.verdict in _LOUD]
        lines = self._findings(shown)
        return "\n".join([*lines, "", f"{result.node}: {self._summary(counts(result.findings))}"])

    def fleet(
        self,
        results: Sequence[NodeResult],
        compared: Sequence[Comparison],
        troubles: Sequence[Trouble],
        quiet: bool = False,
    ) -> str:
        """Many nodes: what is compared, what single nodes found, which nodes gave nothing."""
        answered = sum(not r.problem for r in results)
        lines = [f"Compared across {answered} nodes"]
        shown = [c for c in compared if not quiet or c.verdict in _LOUD]
        width = max((len(c.name) for c in shown), default=0)
        for c in sorted(shown, key=lambda c: (_ORDER.index(c.verdict), c.name)):
            lines += self._row(c.verdict, f"{c.name:<{width}}  {c.text}", c.cure)
        if answered < 2:
            lines.append("  nothing: that takes the results of two nodes")
        lines += ["", "On single nodes"]
        for trouble in sorted(troubles, key=lambda t: (_ORDER.index(t.verdict), t.name)):
            lines += self._row(trouble.verdict, f"{trouble.name}: {trouble.text}", trouble.cure)
        if not troubles:
            lines.append("  nothing to do")
        silent: dict[str, list[str]] = {}
        for r in results:
            if r.problem:
                silent.setdefault(r.problem, []).append(r.node)
        if silent:
            lines += ["", "No result"]
            for problem, nodes in sorted(silent.items()):
                lines += self._row("fail", f"{_count(nodes)}: {problem}", "")
        failed = sum(r.failed for r in results)
        verdicts = counts([])
        for c in compared:
            verdicts[c.verdict] += 1
        lines += ["", f"{len(results)} nodes, {failed} with failures; compared: {self._summary(verdicts)}"]
        return "\n".join(lines)

    def _findings(self, findings: Iterable[Finding]) -> list[str]:
        groups: dict[Finding, list[str]] = {}
        for f in findings:
            same = Finding(f.what, f.value, f.verdict, f.expected, f.cure, compare=f.compare, check=f.check)
            groups.setdefault(same, []).append(f.item)
        rows = sorted(groups.items(), key=lambda row: _ORDER.index(row[0].verdict))
        names = [_name(f, items) for f, items in rows]
        width = min(46, max(map(len, names), default=0))
        lines = []
        for (f, _), name in zip(rows, names, strict=True):
            value = f.value
            if f.expected and f.verdict not in ("ok", "not here"):
                value += f"; expected: {f.expected}"
            lines += self._row(
                f.verdict, f"{name:<{width}}  {value}", f.cure if f.verdict != "not here" else ""
            )
        return lines

    def _row(self, verdict: Verdict, text: str, cure: str) -> list[str]:
        indent = " " * 10
        # Mounts, interfaces and label values have the names that somebody gave them.
        text, cure = printable(text), printable(cure)
        body = textwrap.wrap(text, self._width - 10, break_long_words=False, break_on_hyphens=False) or [""]
        # Wrapping joins runs of blanks at a line's end only; the columns of the first line stay.
        lines = [
            f"{self._painted(verdict)}{' ' * (10 - len(verdict))}{body[0]}",
            *(indent + line for line in body[1:]),
        ]
        if cure:
            wrapped = textwrap.wrap(
                f"→ {cure}", self._width - 12, break_long_words=False, break_on_hyphens=False
            )
            lines += [f"{indent}  {line}" for line in wrapped]
        return lines

    def _painted(self, verdict: Verdict) -> str:
        return f"\x1b[{_COLOUR[verdict]}m{verdict}\x1b[0m" if self._colour else verdict

    def _summary(self, found: dict[str, int]) -> str:
        return ", ".join(f"{found[v]} {v}" for v in reversed(_ORDER) if found[v]) or "nothing checked"


def _name(finding: Finding, items: list[str]) -> str:
    named = [item for item in items if item]
    suffix = f" {listed(named, _NAMED)}" if named else ""
    return f"{finding.check} {finding.what}{suffix}"


def _count(nodes: list[str]) -> str:
    return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} ({fold(nodes)})"
