"""Many nodes side by side: what has to be equal and is not, and what single nodes found.

The value that most nodes have is the usual one; the others are named. Pure: results in, rows out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporters.doctor.check import Finding, Verdict
from exporters.doctor.hosts import fold
from exporters.doctor.result import NodeResult

#: Other values of one row that are told apart; the rest are counted.
MAX_OTHERS = 5
#: How the usual value is reached, where that can be said in a few words.
_HOW = {
    ("mtu", "interface"): ": ip link set {item} mtu {usual}, on its switch port, too",
    ("gpu", "driver"): ": install that driver, reboot",
    ("infiniband", "rate"): ": cable and switch port of {item}; mlxlink",
    ("limits", "open files"): ": LimitNOFILE= of the unit, /etc/security/limits.conf",
    ("model", "bytes of weights"): ": copy the weights again",
}
_MISSING = "no such row"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity across nodes.

    values: nodes by value, the usual one first; usual: None where no value has more nodes than every other.
    text: a line for people, odd nodes named.
    """

    name: str
    verdict: Verdict
    values: tuple[tuple[str, tuple[str, ...]], ...]
    usual: str | None
    text: str
    cure: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """The same warning or failure on some nodes."""

    name: str
    verdict: Verdict
    nodes: tuple[str, ...]
    text: str
    cure: str


def compare(results: Sequence[NodeResult]) -> list[Comparison]:
    """A row for each quantity that some node gave to be compared, in the order of the checks.

    Of a node that has findings but not this one, the value is missing, which differs from every other. Nodes
    without findings are left out. Items that were equal on all nodes are one row (``infiniband rate, 8 items``).
    """
    nodes = {
        r.node: {(f.check, f.what, f.item): f for f in r.findings if f.compare}
        for r in results
        if not r.problem
    }
    keys = list(dict.fromkeys(key for found in nodes.values() for key in found))
    rows = [_row(key, nodes) for key in keys] if len(nodes) > 1 else []
    return _grouped(rows)


_Key = tuple[str, str, str]
_Row = tuple[_Key, Comparison]


def _row(key: _Key, nodes: dict[str, dict[_Key, Finding]]) -> _Row:
    by_value: dict[str, list[str]] = defaultdict(list)
    severity: Verdict = "warn"
    seen = []
    for node, found in nodes.items():
        finding = found.get(key)
        if finding is not None:
            seen.append(finding.verdict)
            severity = "fail" if finding.compare == "fail" else severity
        by_value[_value(finding)].append(node)
    values = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
    usual = values[0][0] if len(values) == 1 or len(values[0][1]) > len(values[1][1]) else None
    verdict: Verdict = severity if len(values) > 1 else "ok"
    if len(values) == 1 and set(seen) <= {"not here", "unknown"}:
        verdict = "not here" if "not here" in seen else "unknown"
    cure = ""
    if len(values) > 1:
        odd = [node for value, names in values if value != usual for node in names]
        cure = "no value has the most nodes: choose one"
        if usual is not None:
            how = _HOW.get(key[:2], "").format(item=key[2], usual=usual)
            cure = f"bring {fold(odd)} to {usual}{how}"
    name = " ".join(part for part in key if part)
    frozen = tuple((value, tuple(names)) for value, names in values)
    return key, Comparison(name, verdict, frozen, usual, _text(frozen), cure)


def _value(finding: Finding | None) -> str:
    if finding is None:
        return _MISSING
    if finding.verdict == "unknown":
        return f"unknown ({finding.value})"
    return "not here" if finding.verdict == "not here" else finding.value


def _text(values: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    every = list(values)
    if len(every) == 1:
        return f"{every[0][0]} on all {len(every[0][1])}"
    parts = [
        f"{_nodes(names)}: {value}{f' ({fold(names)})' if i else ''}"
        for i, (value, names) in enumerate(every)
    ]
    if len(every) > 1 and len(every[0][1]) == len(every[1][1]):
        parts[0] += f" ({fold(every[0][1])})"
    if len(parts) > MAX_OTHERS + 1:
        left = sum(len(names) for _, names in every[MAX_OTHERS + 1 :])
        parts = [
            *parts[: MAX_OTHERS + 1],
            f"{_nodes(range(left))}: {len(every) - MAX_OTHERS - 1} more values",
        ]
    return "; ".join(parts)


def _nodes(names: Sequence[object]) -> str:
    return f"{len(names)} node{'s' if len(names) != 1 else ''}"


def _grouped(rows: Sequence[_Row]) -> list[Comparison]:
    """Items of one quantity with the same outcome become one row."""
    same: dict[tuple[str, str, Comparison], list[str]] = {}
    for (check, what, item), row in rows:
        plain = Comparison("", row.verdict, row.values, row.usual, row.text, row.cure)
        same.setdefault((check, what, plain), []).append(item)
    found = []
    for (check, what, row), items in same.items():
        several = (
            f"{check} {what}, {len(items)} items"
            if len(items) > 1
            else " ".join(filter(None, (check, what, *items)))
        )
        found.append(Comparison(several, row.verdict, row.values, row.usual, row.text, row.cure))
    return found


def troubles(results: Sequence[NodeResult]) -> list[Trouble]:
    """Warnings, failures and unknowns of single nodes; the same one of several nodes is one row."""
    groups: dict[tuple[str, str, Verdict], dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        for f in result.findings:
            if f.verdict in ("warn", "fail", "unknown"):
                groups[f.check, f.what, f.verdict][result.node].append(f)
    found = []
    for (check, what, verdict), by_node in groups.items():
        every = [f for findings in by_node.values() for f in findings]
        values = Counter(f"{f.item} {f.value}".strip() for f in every)
        shown = "; ".join(value for value, _ in values.most_common(2))
        more = f"; {len(values) - 2} other values" if len(values) > 2 else ""
        nodes = tuple(by_node)
        cure = Counter(f.cure for f in every).most_common(1)[0][0]
        text = f"{_nodes(nodes)} ({fold(nodes)}): {shown}{more}"
        found.append(Trouble(f"{check} {what}", verdict, nodes, text, cure))
    return found
