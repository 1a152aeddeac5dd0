"""Tables: what holds at the end of the time shown, the queries' rows joined where their labels are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboards.snapshot import colours, fields
from dashboards.snapshot.data import Result
from dashboards.snapshot.markup import View, esc, nothing

#: Rows that a panel shows.
MOST = 100

Row = dict[str, str | float | None]


def draw(panel: dict[str, Any], results: Sequence[Result], view: View) -> str:
    """The panel's inside."""
    wanted, order, renamed = _columns(panel)
    rows = _joined(results, wanted)
    if not rows:
        return nothing(fields.of(panel, "").empty)
    names = [name for name in order if any(name in row for row in rows)]
    shown = [renamed.get(name, name) for name in names]
    rows = [{renamed.get(k, k): v for k, v in row.items()} for row in rows]
    for key in reversed(panel.get("options", {}).get("sortBy") or ()):
        rows = _sorted(rows, key["displayName"], bool(key.get("desc")))
    if len(rows) > MOST:
        view.notes.append(f"{len(rows) - MOST} of {len(rows)} rows are left out: the last ones")
    looks = {name: fields.of(panel, name) for name in shown}
    numbers = {name for name in shown if any(isinstance(row.get(name), float) for row in rows)}
    head = "".join(f"<th scope=col{_right(n, numbers)}>{esc(n)}</th>" for n in shown)
    body = []
    for row in rows[:MOST]:
        cells = "".join(f"<td{_right(n, numbers)}>{_cell(row.get(n), looks[n])}</td>" for n in shown)
        body.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="rows" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _columns(panel: dict[str, Any]) -> tuple[set[str] | None, list[str], dict[str, str]]:
    """(columns that are kept or None for all, their order, their names for people), of the transformations."""
    wanted: set[str] | None = None
    order: list[str] = []
    renamed: dict[str, str] = {}
    for step in panel.get("transformations", ()):
        options = step.get("options") or {}
        if step["id"] == "filterFieldsByName":
            wanted = set((options.get("include") or {}).get("names") or ())
        elif step["id"] == "organize":
            places = options.get("indexByName") or {}
            left_out = {name for name, out in (options.get("excludeByName") or {}).items() if out}
            order = [name for name in sorted(places, key=lambda n: places[n]) if name not in left_out]
            renamed = dict(options.get("renameByName") or {})
    return wanted, order or sorted(wanted or ()), renamed


def _joined(results: Sequence[Result], wanted: set[str] | None) -> list[Row]:
    rows: list[Row] = []
    for result in results:
        value = "Value" if len(results) == 1 else f"Value #{result.ref}"
        for series in result.series:
            new: Row = {k: v for k, v in series.labels.items() if wanted is None or k in wanted}
            labels = set(new)
            new[value] = series.last
            fits = [row for row in rows if labels and _fits(row, new, labels)]
            for row in fits:
                row |= new
            if not fits:
                rows.append(new)
    return rows


def _fits(row: Row, new: Row, labels: set[str]) -> bool:
    common = labels & row.keys()
    return bool(common) and all(row[k] == new[k] for k in common) and not ((new.keys() - labels) & row.keys())


def _sorted(rows: list[Row], by: str, descending: bool) -> list[Row]:
    """Rows without a value come last, whichever way the others go."""
    there = [row for row in rows if row.get(by) is not None]
    numbers = all(isinstance(row[by], float) for row in there)
    key = (lambda row: row[by]) if numbers else (lambda row: str(row[by]))
    return sorted(there, key=key, reverse=descending) + [row for row in rows if row.get(by) is None]


def _right(name: str, numbers: set[str]) -> str:
    return ' class="number"' if name in numbers else ""


def _cell(value: str | float | None, look: fields.Field) -> str:
    if value is None:
        return '<span class="absent">–</span>'
    if isinstance(value, str):
        return esc(value)
    text = esc(look.text(value))
    name = look.threshold(value)
    if not look.coloured_text or name == "text":
        return text
    return f'<b style="color:{colours.css(name)}">{text}</b>'
