"""The report: ``acceptance.json``, ``acceptance.md`` and ``acceptance.html``, which needs nothing else."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.acceptance.result import Result, exit_code, verdict
from chaos.acceptance.rows import ROWS, Row

_ROWS: dict[str, Row] = {row.key: row for row in ROWS}
_STYLE = """
:root{color-scheme:light}body{font:15px/1.5 system-ui,sans-serif;margin:0;color:#1b1f24;background:#fff}
main{max-width:1280px;margin:0 auto;padding:1rem 1.5rem}h1{font-size:1.5rem;margin:.3rem 0}
table{border-collapse:collapse;width:100%;table-layout:fixed}th,td{text-align:left;padding:.5rem .7rem;border-bottom:1px solid #d8dce1;
vertical-align:top;overflow-wrap:anywhere}thead th{background:#f3f5f7}tbody th{font-weight:600}ul{margin:0;padding:0;list-style:none}
li+li{margin-top:.35rem}.state{display:inline-block;padding:.1rem .6rem;border-radius:4px;color:#fff;font-weight:600;white-space:nowrap}
.passed{background:#2a7f3e}.failed{background:#b3261e}.run{background:#8a4b00}.built{background:#5b6470}
.missed{color:#b3261e}.muted{color:#59626d}.small{font-size:.86rem}code{font-size:.92em}
col:nth-child(1){width:14%}col:nth-child(2){width:18%}col:nth-child(3){width:39%}col:nth-child(4){width:7rem}col:nth-child(5){width:22%}
@media print{main{max-width:none}}
"""


@dataclass(frozen=True)
class Run:
    """started, ended: Unix seconds. command: how it was called."""

    place: str
    started: float
    ended: float
    command: str
    version: str = ""

    def facts(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started))
        took = self.ended - self.started
        return f"{self.place}, {at}, {int(took // 60)} min {took % 60:.0f} s, {self.command}"


def write(folder: Path, run: Run, results: Sequence[Result]) -> None:
    """All three files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "version": 1,
        "place": run.place,
        "started": run.started,
        "ended": run.ended,
        "passed": exit_code(results) == 0,
        "rows": [
            {**r.data(), "expected": _ROWS[r.key].expected, "runbook": _ROWS[r.key].runbook} for r in results
        ],
    }
    for name, text in (
        ("acceptance.json", json.dumps(data, indent=1, default=str)),
        ("acceptance.md", markdown(run, results)),
        ("acceptance.html", page(run, results, folder)),
    ):
        part = folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / name)


def markdown(run: Run, results: Sequence[Result]) -> str:
    """The page as text."""
    lines = [
        f"# Acceptance: {verdict(results)}",
        "",
        run.facts(),
        "",
        "| test | expected | seen | | evidence |",
    ]
    lines.append("|---|---|---|---|---|")
    for r in results:
        seen = [f"{'' if c.held else '**missed** '}{c.expected}: {c.seen}" for c in r.checks] or [r.reason]
        cells = [r.title, _ROWS[r.key].expected, "<br>".join(seen), r.state, "<br>".join(r.evidence)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    lines += [""] + [f"- {r.title}: {note}" for r in results for note in (*r.notes, *_reason(r))]
    return "\n".join([*lines, "", _LEGEND]) + "\n"


def page(run: Run, results: Sequence[Result], folder: Path | None = None) -> str:
    """The page. folder: evidence that lies there is linked."""
    esc = html.escape
    title = f"Acceptance: {verdict(results)}"
    body = "".join(_row(r, folder) for r in results)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{esc(title)}</title><style>{_STYLE}</style></head><body><main><h1>{esc(title)}</h1>"
        f'<p class="muted">{esc(run.facts())}</p>'
        f"<table><colgroup><col><col><col><col><col></colgroup><thead><tr><th>test</th><th>expected</th><th>seen</th><th></th>"
        f"<th>evidence</th></tr></thead><tbody>{body}</tbody></table>"
        f'<p class="muted small">{esc(_LEGEND)}</p></main></body></html>\n'
    )


_LEGEND = (
    "Lost: failed before anything of the answer had come, refusals included. Cut: broke off after it had begun. Seconds "
    "count from the moment of injection. A row that is not built counts neither as passed nor as failed; one that could "
    "not be run counts as failed. Evidence lies beside this page; alerts are those that fired meanwhile, the "
    "heartbeat left out; one whose `for` is longer than the row does not."
)


def _row(r: Result, folder: Path | None) -> str:
    esc = html.escape
    row = _ROWS[r.key]
    checks = "".join(
        f"<li{'' if c.held else ' class=missed'}>{'✓' if c.held else '✗'} {esc(c.expected)}: <b>{esc(c.seen)}</b></li>"
        for c in r.checks
    )
    more = "".join(f'<li class="muted small">{esc(text)}</li>' for text in (*_done(r), *r.notes, *_reason(r)))
    evidence = "".join(f"<li>{_link(text, folder)}</li>" for text in r.evidence)
    took = f'<br><span class="muted small">{r.seconds:.0f} s</span>' if r.seconds else ""
    return (
        f"<tr><th>{esc(r.title)}<br><span class='muted small'><code>exaserve runbook {esc(row.runbook)}</code></span></th>"
        f"<td>{esc(row.expected)}</td><td><ul>{checks}{more}</ul></td>"
        f'<td><span class="state {r.state.split()[-1]}">{esc(r.state)}</span>{took}</td>'
        f'<td class="small"><ul>{evidence}</ul></td></tr>'
    )


def _link(text: str, folder: Path | None) -> str:
    known = folder is not None and (folder / text).is_file()
    return f'<a href="{html.escape(text)}">{html.escape(text)}</a>' if known else html.escape(text)


def _done(r: Result) -> list[str]:
    return [f"done: {r.done}"] if r.done else []


def _reason(r: Result) -> list[Any]:
    return [r.reason] if r.reason else []
