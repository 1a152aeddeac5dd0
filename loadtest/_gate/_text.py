"""The verdict in words: a table on screen, and Markdown for a pull request. The page with the plot: ``_page.py``."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ._compare import FAIL, INCONCLUSIVE, PASS, REFUSED, Result, Row

HEADS = ("metric", "baseline", "candidate", "change", "bounds (95 % each)", "margin", "verdict", "why")
_COLOURS = {PASS: "green", FAIL: "red", INCONCLUSIVE: "yellow", REFUSED: "dim"}
VERDICTS = {PASS: "PASS", FAIL: "FAIL", INCONCLUSIVE: "INCONCLUSIVE"}


def value(row: Row, number: float | None) -> str:
    """A time with its unit, a share in percent, a dash for what is unknown."""
    if number is None:
        return "–"
    if not row.quantile:
        return f"{100 * number:.2f} %"
    return f"{number * 1000:.2f} ms" if number < 1 else f"{number:.3f} s"


def share(number: float | None, points: bool = False) -> str:
    return "–" if number is None else f"{100 * number:+.1f} {'pp' if points else '%'}"


def cells(row: Row) -> tuple[str, ...]:
    points = not row.quantile
    bounds = (
        "–"
        if row.low is None
        else f"{share(row.low, points)} … {share(row.high, points).removesuffix(' pp')}"
    )
    why = row.why + (f"; about {row.further} more runs a side" if row.further else "")
    return (
        row.label,
        value(row, row.baseline),
        value(row, row.candidate),
        share(row.change, points),
        bounds,
        "–" if row.margin is None else f"{100 * row.margin:g} %",
        row.status,
        why,
    )


def headline(result: Result) -> str:
    more = f"; about {result.further} more runs a side" if result.further else ""
    return f"{VERDICTS[result.verdict]}: {result.reason}{more}"


def remarks(result: Result) -> list[str]:
    """What has to be known beside the table: runs used and not used, sides that differ."""
    lines = [f"runs used: {len(result.used['baseline'])} baseline, {len(result.used['candidate'])} candidate"]
    lines += [f"not used: {u['run']} ({u['side']}): {u['why']}" for u in result.unused]
    return [*lines, *result.notes]


def show(result: Result, console: Console, everything: bool = False) -> None:
    """Metrics that did not pass, or all of them if all passed or ``everything`` is wanted; then the verdict."""
    rows = [r for r in result.rows if everything or r.status != PASS]
    if all(r.status == REFUSED for r in rows):
        rows = result.rows
    # A narrow window keeps what decides.
    kept = [i for i in range(len(HEADS)) if console.width >= 130 or i not in (1, 2, 5)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in (HEADS[i] for i in kept):
        table.add_column(head, justify="right" if head in HEADS[1:6] else "left", no_wrap=head != "why")
    for row in rows:
        colour = _COLOURS[row.status]
        found = cells(row)
        table.add_row(*[f"[{colour}]{found[i]}[/]" if i == 6 else found[i] for i in kept])
    if rows:
        console.print(table)
    hidden = len(result.rows) - len(rows)
    if hidden:
        console.print(f"({hidden} more passed; --all shows them)")
    for line in remarks(result):
        console.print(line, markup=False)
    console.print(headline(result), markup=False, style=f"bold {_COLOURS[result.verdict]}")


def markdown(result: Result) -> str:
    lines = [f"## Gate: {headline(result)}", ""]
    lines += ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    lines += ["| " + " | ".join(c.replace("|", "\\|") for c in cells(r)) + " |" for r in result.rows]
    lines += ["", *(f"- {r}" for r in remarks(result)), ""]
    return "\n".join(lines)
