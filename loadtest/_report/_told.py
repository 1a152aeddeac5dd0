"""A report as Markdown (for a pull request, a CI log) and as JSON (for programs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest._report import _compare
from loadtest._report import _words as words
from loadtest._report._definitions import LATENCIES, NUMBERS, QUANTILE, QUANTILES, REASONS
from loadtest._report._gather import Gathered

VERSION = 1
_MARKS = {"bad": "🔴", "worse": "🟠", "better": "🟢", "": ""}


def markdown(found: Gathered) -> str:
    """One document; tables of everything together, the baseline's beside it."""
    _, title, why = words.verdict(found.summary)
    run = found.run.run
    out = [f"## Load test {_cell(found.run.name)}: {title}", "", *why, ""]
    out += [f"> {note}" for note in found.notes] + ([""] if found.notes else [])
    facts = [("profile", run.get("profile")), ("model", run.get("model")), ("address", run.get("host"))]
    facts += [("baseline", found.baseline.name)] if found.baseline else []
    out += [", ".join(f"{name} `{_cell(str(value))}`" for name, value in facts if value), ""]
    if found.differences:
        out += ["**The two runs differ in more than what is compared:**", ""]
        out += _table(["setting", "this run", "baseline"], [tuple(row) for row in found.differences])
    out += _comparison(found) if found.baseline else _latencies(found)
    out += _groups(found)
    out += _failures(found)
    out += [
        "<details><summary>Definitions</summary>",
        "",
        *(f"- **{m.title}**: {m.formula}" for m in (*LATENCIES.values(), *NUMBERS.values())),
        f"- {QUANTILE}",
        "",
        "</details>",
    ]
    return "\n".join(out) + "\n"


def _latencies(found: Gathered) -> list[str]:
    every = found.summary["all"]
    rows = []
    for latency, meaning in LATENCIES.items():
        told = (every.get("latency") or {}).get(latency) or {}
        if told.get("count"):
            values = [words.number(told.get(q), "s") for q in ("mean", *QUANTILES, "max")]
            rows.append((meaning.title, f"{int(told['count']):,}", *values))
    numbers = [
        (meaning.title, words.number(every.get(key), meaning.unit))
        for key, meaning in NUMBERS.items()
        if every.get(key) is not None
    ]
    return _table(["", "values", "mean", *QUANTILES, "max"], rows) + _table(["", ""], numbers)


def _comparison(found: Gathered) -> list[str]:
    rows = []
    for row in found.rows:
        meaning = LATENCIES.get(row.name) or NUMBERS[row.name]
        name = f"{meaning.title} {row.quantile}".strip() + ("" if row.group == "all" else f" ({row.group})")
        ratio = "–" if row.ratio is None else f"{row.ratio:.3f} {_MARKS[row.mark]}".strip()
        rows.append((name, words.number(row.run, row.unit), words.number(row.baseline, row.unit), ratio))
    return _table(["", "run", "baseline", "run ÷ baseline"], rows)


def _groups(found: Gathered) -> list[str]:
    out: list[str] = []
    for key, title in (
        ("profiles", "profile"),
        ("intents", "intent"),
        ("pools", "pool"),
        ("replicas", "replica"),
    ):
        there = found.summary.get(key) or {}
        if len(there) < 2:
            continue
        rows = []
        for name, group in list(there.items())[:40]:
            latency = group.get("latency") or {}
            row = [name, *(words.number(group.get(k), NUMBERS[k].unit) for k in ("offered", "attainment"))]
            row += [
                words.number((latency.get(k) or {}).get(q), "s")
                for k in ("ttft", "e2e")
                for q in ("p50", "p99")
            ]
            rows.append(tuple(row))
        out += _table(
            [title, "offered", "SLO attainment", "TTFT p50", "TTFT p99", "E2E p50", "E2E p99"], rows
        )
    return out


def _failures(found: Gathered) -> list[str]:
    reasons = {r: n for r, n in (found.summary["all"].get("reasons") or {}).items() if n}
    rows = []
    for reason, number in sorted(reasons.items(), key=lambda one: -one[1]):
        example = next((e["detail"] for e in found.requests.examples.get(reason, ()) if e["detail"]), "")
        rows.append((reason, f"{int(number):,}", REASONS.get(reason, ""), example))
    return _table(["failed", "requests", "which means", "for example"], rows) if rows else []


def _table(heads: list[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' + ' ---: |' * (len(heads) - 1)}"]
    return [*lines, *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows), ""]


def _cell(text: str) -> str:
    """In one cell: what came from outside can't end it, or be markup."""
    text = " ".join(str(text).split())
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text


def as_json(found: Gathered) -> dict[str, Any]:
    """{"version", "run": summary, "baseline": summary | null, "verdict", "why", "notes", "differences", "rows"}."""
    key, _, why = words.verdict(found.summary)
    return {
        "version": VERSION,
        "verdict": key,
        "why": why,
        "notes": found.notes,
        "run": found.summary,
        "baseline": found.baseline.summary if found.baseline else None,
        "differences": [
            {"setting": what, "run": mine, "baseline": its} for what, mine, its in found.differences
        ],
        "rows": [
            {
                "group": row.group,
                "name": row.name,
                "quantile": row.quantile or None,
                "unit": row.unit,
                "run": row.run,
                "baseline": row.baseline,
                "ratio": row.ratio,
                "mark": row.mark or None,
            }
            for row in found.rows
        ],
        "failures": {
            reason: {
                "requests": number,
                "means": REASONS.get(reason),
                "examples": found.requests.examples.get(reason, []),
            }
            for reason, number in (found.summary["all"].get("reasons") or {}).items()
        },
        "marks_from": {"worse": _compare.WORSE, "bad": _compare.MUCH_WORSE},
    }
