"""Everything that a report is made of: the run, its requests, its windows, the fleet's signals, the baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loadtest._lib import _fleet
from loadtest._lib._exact import Exact
from loadtest._report import _compare, _times
from loadtest._report._definitions import LATENCIES
from loadtest._report._folder import CLIENT, REQUESTS, Folder
from loadtest._report._lines import Requests, read


@dataclass(slots=True)
class Gathered:
    """exact, baseline_exact: all values by latency, measured phase. notes: what a reader must know, one sentence each."""

    run: Folder
    requests: Requests
    times: _times.Times
    exact: dict[str, Exact]
    fleet: dict[str, Any] | None
    baseline: Folder | None = None
    baseline_exact: dict[str, Exact] = field(default_factory=dict)
    differences: list[tuple[str, str, str]] = field(default_factory=list)
    rows: list[_compare.Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, Any]:
        return self.run.summary


def gather(
    run: Folder,
    baseline: Folder | None,
    prometheus: str | None,
    said: Callable[[str], None] = lambda line: None,
) -> Gathered:
    """said: gets what is done just now. Raises OSError where a file can't be read."""
    requests = _read(run, said)
    times = _times.windows(requests, run.path / CLIENT)
    found = Gathered(run, requests, times, _exact(requests), run.fleet)
    found.notes += run.notes + _damage(requests, run)
    if prometheus:
        said("asking Prometheus")
        try:
            found.fleet = _fleet.ask(prometheus, requests.start, requests.end, said)
        except _fleet.FleetError as error:
            found.notes.append(f"The fleet's signals are not here: {error}.")
    if baseline is not None:
        of_it = _read(baseline, said)
        found.baseline, found.baseline_exact = baseline, _exact(of_it)
        found.notes += [f"Baseline: {note}" for note in baseline.notes + _damage(of_it, baseline)]
        found.differences = _compare.differences(run.run, baseline.run)
        found.rows = _compare.rows(run.summary, baseline.summary)
        if baseline.summary.get("void"):
            found.notes.append(
                "The baseline is void: its client was the bottleneck, so no ratio means anything."
            )
    return found


def _read(folder: Folder, said: Callable[[str], None]) -> Requests:
    file = folder.path / REQUESTS
    start = float(folder.run.get("started") or 0.0)
    size = file.stat().st_size if file.exists() else 0
    end = _end(folder)
    window = _times.length((end - start) if end and start else 1800.0)
    return read(
        file,
        start,
        window,
        lambda at: said(f"{folder.name}: {at / max(size, 1):.0%} of {size / 2**20:,.0f} MiB"),
    )


def _end(folder: Folder) -> float | None:
    """When it ended; where it was killed, when the last line was written."""
    file = folder.path / REQUESTS
    if folder.run.get("ended"):
        return float(folder.run["ended"])
    return file.stat().st_mtime if file.exists() else None


def _exact(requests: Requests) -> dict[str, Exact]:
    found = {}
    for latency in LATENCIES:
        if latency == "itl":
            found[latency] = requests.gaps
        else:
            found[latency] = Exact()
            found[latency].add_array(requests.ok(latency))
    return found


def _damage(requests: Requests, folder: Folder) -> list[str]:
    notes = []
    if not len(requests):
        notes.append(f"{REQUESTS} has no request.")
    if requests.broken:
        notes.append(
            f"{requests.broken:,} of {len(requests) + requests.broken:,} lines of {REQUESTS} can't be read, the first is"
            f" line {requests.first_broken:,}; they are in no number."
        )
    counted = folder.summary["all"].get("completed")
    there = int(((requests.outcome == 0) & requests.measured).sum())
    if counted is not None and int(counted) != there and len(requests):
        notes.append(
            f"summary.json counts {int(counted):,} completed requests and {REQUESTS} has {there:,}: the folder was changed"
            " after the run, or its summary was made by other rules."
        )
    return notes
