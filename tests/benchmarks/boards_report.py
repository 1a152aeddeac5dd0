"""The tables of ``boards.py`` and its goals. Only words: nothing is measured here."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.benchmarks.report import Goal, table

FLEET_SECONDS = 1.0


class Asked(NamedTuple):
    """One query of a board. seconds: until the answer, cpu: of Prometheus meanwhile. series: of the answer."""

    name: str
    seconds: float
    cpu: float
    series: int


def goals(result: dict[str, Any]) -> list[Goal]:
    """Of the parts that were asked for. CPU, not time: what else the machine does is not the boards'."""
    found = []
    if "boards" in result:
        slowest = max(result["boards"]["fleet"], key=lambda a: a.cpu)
        said = f"{slowest.cpu:.2f} s ({slowest.name}; {slowest.seconds:.2f} s until the answer)"
        found.append(Goal(f"Fleet's slowest query < {FLEET_SECONDS:g} s", said, slowest.cpu < FLEET_SECONDS))
    if "groups" in result:
        late = [g for g, s in result["groups"].items() if s[0] > result["intervals"].get(g, 15)]
        said = f"{len(late)} late" if late else "all"
        found.append(Goal("every rule group within its interval", said, not late))
        found.append(Goal("no rule fails", f"{result['failed']:.0f} failures", not result["failed"]))
    return found


def markdown(result: dict[str, Any]) -> str:
    parts = [f"# Boards and rules at {result['replicas']:,} replicas"]
    parts.append(f"{result['series']:,} series, {result['recorded']:,} recorded from them")
    if "boards" in result:
        parts += _boards(result)
    parts += _rules(result)
    verdicts = [[g.name, g.measured, g.verdict] for g in goals(result)]
    return "\n\n".join([*parts, table(["goal", "measured", "verdict"], verdicts)])


def _boards(result: dict[str, Any]) -> list[str]:
    rows = []
    for name, asked in [*result["boards"].items(), ("fleet, unrecorded", result["without"])]:
        if asked:
            slow = max(asked, key=lambda a: a.cpu)
            cells = [str(len(asked)), str(sum(1 for a in asked if a.series))]
            cells += [f"{slow.seconds:.2f}", f"{slow.cpu:.2f}", slow.name]
            rows.append(
                [name, *cells, f"{sum(a.seconds for a in asked):.1f}", f"{sum(a.cpu for a in asked):.1f}"]
            )
    head = ["board", "queries", "with series", "slowest, s", "its CPU, s", "which", "all, s", "all, CPU s"]
    patience = result["patience"]
    given_up = sum(1 for a in result["without"] if a.seconds >= patience)
    said = (
        f"Without recording rules {given_up} of {len(result['without'])} queries of Fleet were given up"
        f" after {patience:g} s."
    )
    slow_ones = sorted(result["boards"]["fleet"], key=lambda a: -a.cpu)[:8]
    worst = [[a.name, f"{a.seconds:.2f}", f"{a.cpu:.2f}", str(a.series)] for a in slow_ones]
    return [table(head, rows), said, table(["slowest of Fleet", "s", "CPU, s", "series"], worst)]


def _rules(result: dict[str, Any]) -> list[str]:
    groups: dict[str, tuple[float, float, int]] = {}
    for r in result["rules"]:
        cpu, _, count = groups.get(r["group"], (0.0, 0.0, 0))
        every = result.get("intervals", {}).get(r["group"], r["every"])
        groups[r["group"]] = (cpu + r["cpu"], every, count + 1)
    rows = [
        [group, str(count), f"{every:g}", f"{cpu:.2f}", f"{1000 * cpu / every:.0f}", *_took(result, group)]
        for group, (cpu, every, count) in sorted(groups.items(), key=lambda item: -item[1][0])
    ]
    total = sum(cpu / every for cpu, every, _ in groups.values())
    rows.append(["all", str(len(result["rules"])), "", "", f"{1000 * total:.0f}", "", ""])
    head = ["rule group", "rules", "every, s", "CPU, s", "CPU, ms/s", "evaluation, s", "slowest, s"]
    dear = sorted(result["rules"], key=lambda r: -r["cpu"])[:12]
    worst = [
        [r["name"], r["group"], f"{r['cpu']:.2f}", f"{r['seconds']:.2f}", str(r["series"])] for r in dear
    ]
    parts = [table(head, rows), table(["dearest rules", "group", "CPU, s", "took, s", "series"], worst)]
    if "groups" in result:
        parts.append(
            f"Prometheus while the fleet goes on and all rules run: {result['rss_gib']:.1f} GiB,"
            f" {result['head_series']:,.0f} series in the head, {result['cores']:.2f} cores,"
            f" {result['missed']:.0f} evaluations left out."
        )
    return parts


def _took(result: dict[str, Any], group: str) -> list[str]:
    return [f"{s:.2f}" for s in result.get("groups", {}).get(group, ())] or ["–", "–"]
