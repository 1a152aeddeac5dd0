"""What a run leaves: ``figures.json``, ``journal.json``, ``report.md`` and ``report.html``, which needs nothing else.

The page draws what the run saw; the numbers in it are those of ``figures.json``.
"""

from __future__ import annotations

import html
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaos.run import plots
from chaos.run.figures import Figures, Seen
from chaos.run.judge import Verdict, show
from chaos.run.plan import ALL, SHARES, Experiment

#: What each figure means, for the page.
WORDS = {
    "detection": "first change of a victim's state in the router, or first alert",
    "reroute": "last request sent to the victim before it came back",
    "slo_recovery": "start of the first of three windows in a row that met the objective again",
    "capacity_recovery": "throughput back at 95 % of before",
    "lost_requests": "failed before anything of their answer had come, refusals included",
    "cut_streams": "answers that broke off after they had begun",
    "failed_requests": "lost and cut together",
    "refused_requests": "answered with 429 or 503",
    "refused_without_retry_after": "of those, without a Retry-After",
    "failed_after_injection": "failed though they were sent after the injection",
    "recomputed_tokens": "prompt tokens of requests that the router sent again",
    "good_admitted": "good ones of the requests due during the fault that were not refused",
    "good_during": "good ones of all requests due during the fault",
}
_STYLE = """
:root{color-scheme:light}body{font:15px/1.5 system-ui,sans-serif;margin:0;color:#1b1f24;background:#fff}
header,main{max-width:1200px;margin:0 auto;padding:1rem 1.5rem}h1{font-size:1.5rem;margin:.4rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
.verdict{display:inline-block;padding:.2rem .8rem;border-radius:4px;color:#fff;font-weight:600}.passed{background:#2a7f3e}
.failed{background:#b3261e}.void{background:#8a6d00}table{border-collapse:collapse;margin:.4rem 0}th,td{text-align:left;padding:.25rem .8rem;
border-bottom:1px solid #ddd;vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}.missed{color:#b3261e;font-weight:600}
.muted{color:#666}pre{white-space:pre-wrap;overflow-wrap:anywhere}
"""


@dataclass
class Outcome:
    """One run. seen, figures: None where no fault was put in. folder: where its files are."""

    experiment: Experiment
    run: str
    folder: Path
    started: float
    ended: float
    journal: dict[str, Any] | None
    verdict: Verdict
    faults: list[dict[str, Any]]
    seen: Seen | None
    figures: Figures | None
    place: str
    rate: float

    def data(self) -> dict[str, Any]:
        """figures.json."""
        figures = self.figures
        return {
            "version": 1,
            "experiment": self.experiment.name,
            "run": self.run,
            "place": self.place,
            "state": self.verdict.state,
            "reasons": self.verdict.reasons,
            "started": self.started,
            "ended": self.ended,
            "rate": self.rate,
            "window": self.experiment.plan.window_at(self.rate),
            "objective": self.experiment.plan.objective.model_dump(),
            "runbook": self.experiment.plan.runbook,
            "faults": self.faults,
            "victims": list(self.seen.victims) if self.seen else [],
            "injected": self.seen.injected if self.seen else None,
            "undone": self.seen.undone if self.seen else None,
            "resolution": figures.resolution if figures else None,
            "figures": figures.values if figures else {},
            "before": figures.before if figures else {},
            "notes": figures.notes if figures else [],
            "goals": [{**asdict(goal), "held": goal.held} for goal in self.verdict.goals],
        }


def write(outcome: Outcome) -> None:
    """All files of a run. Raises OSError."""
    folder = outcome.folder
    folder.mkdir(parents=True, exist_ok=True)
    _put(folder / "figures.json", json.dumps(outcome.data(), indent=1, default=str))
    if outcome.journal is not None:
        _put(folder / "journal.json", json.dumps(outcome.journal, indent=1, default=str))
    _put(folder / "report.md", markdown(outcome))
    _put(folder / "report.html", page(outcome))


def markdown(outcome: Outcome) -> str:
    """The report as text."""
    lines = [f"# {outcome.experiment.title}", "", f"**{outcome.verdict.state}** · {_facts(outcome)}", ""]
    lines += [f"- {reason}" for reason in outcome.verdict.reasons]
    if outcome.faults:
        lines += ["", "| fault | target | engine | proof |", "|---|---|---|---|"]
        lines += [f"| {f['fault']} | {f['target']} | {f['engine']} | {f['proof']} |" for f in outcome.faults]
    if outcome.figures is not None:
        lines += ["", "| figure | seen | goal |", "|---|---|---|"]
        lines += [f"| {name} | {value} | {goal} |" for name, value, goal, _ in _rows(outcome)]
        lines += ["", f"Seconds count from the injection; exact to {outcome.figures.resolution:g} s."]
        lines += [f"- {note}" for note in outcome.figures.notes]
    lines += ["", f"What to do about it: runbooks/{outcome.experiment.plan.runbook}.md"]
    return "\n".join(lines) + "\n"


def page(outcome: Outcome) -> str:
    """The report as one HTML page."""
    esc = html.escape
    verdict = outcome.verdict
    title = f"{outcome.experiment.title}: {verdict.state}"
    parts = [
        f'<p><span class="verdict {verdict.state}">{verdict.state}</span> <span class="muted">{esc(_facts(outcome))}</span></p>'
    ]
    if verdict.reasons:
        parts.append("<ul>" + "".join(f"<li>{esc(reason)}</li>" for reason in verdict.reasons) + "</ul>")
    description = str(outcome.experiment.content.get("description") or "")
    parts.append(f"<p>{esc(description)}</p>")
    parts.append(
        f"<p>What to do about it: <code>exaserve runbook {esc(outcome.experiment.plan.runbook)}</code></p>"
    )
    if outcome.faults:
        cells = [[f["fault"], f["target"], f["engine"], f["proof"]] for f in outcome.faults]
        parts.append(
            "<h2>What was put in</h2>" + _table(("fault", "target", "by", "proof, as measured"), cells)
        )
    if outcome.seen is not None and outcome.figures is not None:
        parts.append("<h2>Figures</h2>" + _figures(outcome))
        parts += [f"<p class=muted>{esc(note)}</p>" for note in outcome.figures.notes]
        parts.append("<h2>Timeline</h2>" + plots.html(plots.figure(outcome.seen, outcome.figures)))
    parts.append("<h2>Activities</h2>" + _activities(outcome.journal or {}))
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{esc(title)}</title>'
        f"<style>{_STYLE}</style></head><body><header><h1>{esc(outcome.experiment.title)}</h1></header>"
        f"<main>{''.join(parts)}</main></body></html>\n"
    )


def _facts(outcome: Outcome) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(outcome.started))
    return f"run {outcome.run} at {outcome.place}, {at}, {outcome.rate:g} requests/s, {outcome.ended - outcome.started:.0f} s"


def _rows(outcome: Outcome) -> list[tuple[str, str, str, bool]]:
    """Figure, what was seen, its goal, whether that was missed."""
    assert outcome.figures is not None
    goals = {goal.figure: goal for goal in outcome.verdict.goals}
    rows = []
    for name in ALL:
        goal = goals.get(name)
        value = outcome.figures.values.get(name)
        word = "≥" if name in SHARES else "≤"
        allowed = f"{word} {show(name, goal.allowed)}" if goal else ""
        rows.append((name, show(name, value), allowed, bool(goal and not goal.held)))
    return rows


def _figures(outcome: Outcome) -> str:
    assert outcome.figures is not None
    body = "".join(
        f"<tr><th>{name}</th><td class='n{' missed' if missed else ''}'>{value}</td><td>{allowed}</td>"
        f"<td class=muted>{html.escape(WORDS[name])}</td></tr>"
        for name, value, allowed, missed in _rows(outcome)
    )
    before = outcome.figures.before
    told = f"Before: {before.get('rate', 0.0):.1f} answers/s, {before.get('good', 0.0) * 100:.2f} % of them good. "
    told += f"Seconds count from the injection; exact to {outcome.figures.resolution:g} s."
    return f"<table><tr><th>figure</th><th>seen</th><th>goal</th><th></th></tr>{body}</table><p class=muted>{told}</p>"


def _activities(journal: dict[str, Any]) -> str:
    states = journal.get("steady_states") or {}
    parts = [
        ("before", (states.get("before") or {}).get("probes") or []),
        ("method", journal.get("run") or []),
    ]
    parts += [
        ("after", (states.get("after") or {}).get("probes") or []),
        ("rollback", journal.get("rollbacks") or []),
    ]
    cells = []
    for part, activities in parts:
        for one in activities:
            said = (
                one.get("output")
                if one.get("status") == "succeeded"
                else (one.get("exception") or ["failed"])[-1]
            )
            name = (one.get("activity") or {}).get("name", "")
            cells.append(
                [part, name, f"{one.get('status')}", f"{one.get('duration') or 0:.2f} s", _short(said)]
            )
    return _table(("when", "what", "how it ended", "took", "said"), cells)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.strip()[:400]


def _table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = "".join(f"<th>{html.escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def summary(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Median and worst of every figure over the runs; unknown ones are left out and counted."""
    rows = []
    for name in ALL:
        known = [v for o in outcomes if o.figures and (v := o.figures.values.get(name)) is not None]
        unknown = sum(1 for o in outcomes if not o.figures or o.figures.values.get(name) is None)
        if not known:
            continue
        goal = next((g.allowed for o in outcomes for g in o.verdict.goals if g.figure == name), None)
        rows.append(
            {
                "figure": name,
                "median": statistics.median(known),
                "worst": min(known) if name in SHARES else max(known),
                "goal": goal,
                "runs": len(known),
                "unknown": unknown,
            }
        )
    return rows


def write_summary(folder: Path, outcomes: list[Outcome]) -> None:
    """Of a repeated experiment: summary.json and summary.md beside the runs. Raises OSError."""
    rows = summary(outcomes)
    runs = [{"run": o.run, "state": o.verdict.state, "reasons": o.verdict.reasons} for o in outcomes]
    folder.mkdir(parents=True, exist_ok=True)
    _put(folder / "summary.json", json.dumps({"version": 1, "runs": runs, "figures": rows}, indent=1))
    lines = ["| figure | median | worst | goal | runs |", "|---|---|---|---|---|"]
    for row in rows:
        shown = [show(row["figure"], row[k]) for k in ("median", "worst")]
        goal = "" if row["goal"] is None else show(row["figure"], row["goal"])
        lines.append(f"| {row['figure']} | {shown[0]} | {shown[1]} | {goal} | {row['runs']} |")
    lines += ["", *(f"- {r['run']}: {r['state']}" + "".join(f"; {x}" for x in r["reasons"]) for r in runs)]
    _put(folder / "summary.md", "\n".join(lines) + "\n")


def _put(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
