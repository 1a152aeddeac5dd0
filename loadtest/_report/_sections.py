"""The sections of a report's page that are words and tables; those of plots over time are in ``_plots.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest._report import _compare
from loadtest._report import _words as words
from loadtest._report._definitions import LAG, LATENCIES, NUMBERS, QUANTILE, QUANTILES, REASONS
from loadtest._report._gather import Gathered
from loadtest._report._html import details, esc, section, table, tile

#: Groups of one kind that are shown: the busiest.
MOST = 40
Groups = Mapping[str, Mapping[str, Any]]


def verdict(found: Gathered) -> str:
    key, title, why = words.verdict(found.summary)
    sentences = "".join(f"<p>{esc(one)}</p>" for one in why)
    notes = "".join(f"<li>{esc(one)}</li>" for one in found.notes)
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    return (
        f'<section id="verdict" class="verdict {esc(key)}"><h2>{esc(title)}</h2>{sentences}{listed}</section>'
        f'<div class="tiles">{_tiles(found)}</div>'
    )


def _tiles(found: Gathered) -> str:
    every = found.summary["all"]
    shown = []
    for key in (
        "attainment",
        "goodput",
        "rate",
        "offered",
        "failed",
        "output_tokens_per_second",
        "tokens_per_gpu_hour",
    ):
        value = every.get(key)
        if value is not None:
            meaning = NUMBERS[key]
            shown.append(tile(meaning.title, words.number(value, meaning.unit), meaning.formula))
    limits = words.objectives(found.summary)
    for latency, meaning in LATENCIES.items():
        values = (every.get("latency") or {}).get(latency) or {}
        for q in ("p50", "p99") if values.get("count") else ():
            over = latency in limits and q == "p99" and values[q] > limits[latency]
            shown.append(
                tile(
                    f"{meaning.title} {q}",
                    words.seconds(values[q]),
                    f"{meaning.formula} {QUANTILE}",
                    "over" if over else "",
                )
            )
    return "".join(shown)


def objectives(found: Gathered) -> str:
    """Each objective, and how many requests kept it alone."""
    limits = words.objectives(found.summary)
    if not limits:
        return section(
            "objectives",
            "Objectives",
            "<p>None were given, so a request is good when it completes. "
            "<code>--slo ttft=1s,itl=200ms,tpot=50ms,e2e=30s</code> sets them.</p>",
        )
    rows = []
    latencies = found.summary["all"].get("latency") or {}
    for latency, limit in limits.items():
        values, counts = found.exact[latency].values_and_counts()
        within = int(counts[values <= round(limit * 1e6)].sum())
        number = int(counts.sum())
        told = latencies.get(latency) or {}
        rows.append(
            (
                esc(LATENCIES[latency].title),
                esc(words.seconds(limit)),
                esc(words.ratio(within / number)) if number else "–",
                esc(words.number(told.get("p99"), "s")),
                esc(words.number(told.get("max"), "s")),
            )
        )
    lead = (
        "A request is good when it completed and kept all of them (ITL: its longest gap). Shares here are of the values"
        " that there are: for ITL of gaps."
    )
    return section(
        "objectives",
        "Objectives",
        table(["objective", "limit", "within it", "p99", "greatest"], rows),
        lead,
    )


def comparison(found: Gathered) -> str:
    if found.baseline is None:
        return ""
    base = found.baseline
    said = ""
    if found.differences:
        rows = [(esc(what), esc(mine), esc(its)) for what, mine, its in found.differences]
        said = (
            '<p class="warning">The two runs differ in more than what is compared, so a difference below may come from'
            f" that:</p>{table(['setting', 'this run', 'baseline'], rows)}"
        )
    lead = (
        f"Baseline: <b>{esc(base.name)}</b> ({esc(words.verdict(base.summary)[1].lower())}). × is this run ÷ baseline,"
        f" marked from {_compare.WORSE:g} on in the direction that is worse. One run against one: what is due to chance is"
        " not told apart; <code>exaserve gate</code> compares several."
    )
    by_profile = [row for row in found.rows if row.group != "all"]
    folded = details("By profile", _matrix(by_profile)) if by_profile else ""
    everything = [row for row in found.rows if row.group == "all"]
    return section(
        "baseline",
        "Beside the baseline",
        f'{said}<div class="beside">{_matrix(everything)}{_scalars(everything)}</div>{folded}',
        lead,
    )


def _matrix(rows: list[_compare.Row]) -> str:
    """A row for each latency of each group, a column for each quantile; each cell has run, baseline and ratio."""
    of: dict[tuple[str, str], dict[str, _compare.Row]] = {}
    for row in rows:
        if row.quantile:
            of.setdefault((row.group, row.name), {})[row.quantile] = row
    quantiles = ["mean", *QUANTILES]
    body = []
    for (group, name), cells in of.items():
        meaning = LATENCIES[name]
        where = "" if group == "all" else f" <small>{esc(group)}</small>"
        head = f'<abbr title="{esc(meaning.formula)}">{esc(meaning.title)}</abbr>{where}'
        body.append((head, *(_cell(cells[q]) if q in cells else "–" for q in quantiles)))
    return table(["run, baseline, ×", *quantiles], body, kind="matrix")


def _cell(row: _compare.Row) -> str:
    """Run over baseline, the ratio below."""
    return (
        f"{esc(words.number(row.run, row.unit))}<br><small>{esc(words.number(row.baseline, row.unit))}</small>"
        f"<br>{_ratio(row)}"
    )


def _ratio(row: _compare.Row) -> str:
    return f'<span class="{row.mark}">{"–" if row.ratio is None else f"× {row.ratio:.3f}"}</span>'


def _scalars(rows: list[_compare.Row]) -> str:
    body = []
    for row in rows:
        if not row.quantile:
            meaning = NUMBERS[row.name]
            body.append(
                (
                    f'<abbr title="{esc(meaning.formula)}">{esc(meaning.title)}</abbr>',
                    esc(words.number(row.run, row.unit)),
                    esc(words.number(row.baseline, row.unit)),
                    _ratio(row),
                )
            )
    return table(["", "run", "baseline", "×"], body)


def groups(found: Gathered, key: str, name: str, title: str, what: str, plots: str) -> str:
    """A section of the groups of one kind (``profiles``, ``intents``, ``replicas``), or "" where there are none."""
    there: Groups = found.summary.get(key) or {}
    if not there:
        return ""
    shown = busiest(there)
    return section(name, title, f"{plots}{_group_table(shown)}", what + _left_out(there, shown))


def busiest(there: Groups) -> Groups:
    """At most MOST of them, the busiest, in the order of their names."""
    chosen = sorted(there, key=lambda name: -(there[name].get("offered") or 0))[:MOST]
    return {name: there[name] for name in sorted(chosen, key=_natural)}


def _natural(name: str) -> list[tuple[int, str]]:
    """replica-10 after replica-9."""
    import re

    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _left_out(there: Groups, shown: Groups) -> str:
    left = len(there) - len(shown)
    return f" The {len(shown)} busiest of {len(there)}." if left else ""


def _group_table(there: Groups) -> str:
    heads: list[str | tuple[str, str]] = [""]
    keys = ("offered", "completed", "failed", "attainment", "goodput", "output_tokens", "tokens_per_chunk")
    heads += [(NUMBERS[key].title, NUMBERS[key].formula) for key in keys]
    pairs = [(latency, q) for latency in ("ttft", "itl", "e2e") for q in ("p50", "p99")]
    heads += [(f"{LATENCIES[latency].title} {q}", LATENCIES[latency].formula) for latency, q in pairs]
    rows = []
    for name, group in there.items():
        row = [esc(name)] + [esc(words.number(group.get(key), NUMBERS[key].unit)) for key in keys]
        for latency, q in pairs:
            told = (group.get("latency") or {}).get(latency) or {}
            row.append(esc(words.number(told.get(q), "s")))
        rows.append(row)
    return table(heads, rows)


def failures(found: Gathered) -> str:
    reasons = found.summary["all"].get("reasons") or {}
    reasons = {reason: number for reason, number in reasons.items() if number}
    if not reasons:
        return section("failures", "Failures", "<p>No request of the measured phase failed.</p>")
    rows = []
    for reason, number in sorted(reasons.items(), key=lambda one: -one[1]):
        examples = "".join(f"<li>{_example(one)}</li>" for one in found.requests.examples.get(reason, ()))
        rows.append(
            (
                f'<abbr title="{esc(REASONS.get(reason, ""))}">{esc(reason)}</abbr>',
                f"{int(number):,}",
                f'<ul class="examples">{examples}</ul>',
            )
        )
    return section(
        "failures",
        "Failures",
        table(["reason", "requests", "examples"], rows, kind="left"),
        "Measured phase.",
    )


def _example(one: Mapping[str, Any]) -> str:
    facts = [f"{key} {one[key]}" for key in ("profile", "status", "replica", "request_id") if one.get(key)]
    return f"{esc(one.get('detail') or 'no words')} <small>{esc(', '.join(facts))}</small>"


def everything(found: Gathered) -> str:
    """Every number with its formula, and every quantile."""
    every = found.summary["all"]
    rows = [
        (esc(meaning.title), esc(words.number(every.get(key), meaning.unit)), esc(meaning.formula))
        for key, meaning in NUMBERS.items()
    ]
    quantiles = ["count", "mean", "min", *QUANTILES, "max"]
    spans = [(m, (every.get("latency") or {}).get(name) or {}) for name, m in LATENCIES.items()]
    spans.append((LAG, every.get("lag") or {}))
    latencies = []
    for meaning, told in spans:
        cells = [esc(f"{int(told.get('count') or 0):,}")]
        cells += [esc(words.number(told.get(q), "s")) for q in quantiles[1:]]
        latencies.append((f'<abbr title="{esc(meaning.formula)}">{esc(meaning.title)}</abbr>', *cells))
    meanings = "".join(
        f"<dt>{esc(m.title)}</dt><dd>{esc(m.formula)}</dd>" for m in (*LATENCIES.values(), LAG)
    )
    return section(
        "numbers",
        "Every number",
        table(["", *quantiles], latencies)
        + table(["", "value", "formula"], rows, kind="left")
        + details("Definitions of the latencies", f"<dl>{meanings}</dl><p>{esc(QUANTILE)}</p>", opened=True),
        "All profiles together, measured phase. "
        + esc(
            f"{words.number(found.summary.get('measured_seconds'), 's')} measured; warm-up:"
            f" {_compare.told(found.summary.get('warmup'))}."
        ),
    )


def settings(found: Gathered) -> str:
    """What was run: run.json, its options last and folded."""
    run = found.run.run
    rows = [
        (esc(key), esc(_compare.told(value)))
        for key, value in run.items()
        if key not in ("settings", "version") and value not in (None, "", [], {})
    ]
    options = [(esc(k), esc(_compare.told(v))) for k, v in sorted((run.get("settings") or {}).items())]
    return section(
        "settings",
        "Settings of the run",
        table(["", ""], rows, kind="left")
        + details("All options", table(["option", "value"], options, kind="left")),
    )
