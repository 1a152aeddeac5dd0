"""A run over time: what happened in each window of it, for the plots.

A latency lies in the window in which it was known: TTFT at the first token, a gap at its end, TPOT and E2E at the last
token; so the fleet's own signals, which count it then too, lie below it. Quantiles are of all values of the window.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadtest._lib._exact import rank
from loadtest._report._lines import Requests

#: Windows of a run, at most; their lengths in seconds.
WINDOWS = 180
LENGTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
QUANTILES = (0.5, 0.95, 0.99)

Values = list[float | None]


@dataclass(slots=True)
class Times:
    """at: Unix seconds of the windows' middles. lines: values by name, one a window, None where there is none."""

    start: float
    length: float
    at: list[float] = field(default_factory=list)
    lines: dict[str, Values] = field(default_factory=dict)


def length(seconds: float) -> float:
    """Of a window, so that a run of that many seconds has no more than WINDOWS."""
    return float(next((one for one in LENGTHS if seconds <= one * WINDOWS), LENGTHS[-1]))


def windows(requests: Requests, client: Path) -> Times:
    start, long = requests.start, requests.window
    count = max(1, int((requests.end - start) // long) + 1)
    count = min(count, 100 * WINDOWS)  # a clock that jumped by months must not eat the memory
    times = Times(start, long, [start + (i + 0.5) * long for i in range(count)])
    columns, lines = requests.columns, times.lines

    def per_second(moments: np.ndarray) -> Values:
        where = _where(moments[~np.isnan(moments)], start, long, count)
        return [float(n) / long for n in np.bincount(where, minlength=count)]

    came = np.where(np.isnan(columns["due"]), columns["sent"], columns["due"])
    lines["offered"] = per_second(came)
    lines["sent"] = per_second(columns["sent"])
    ok, failed = requests.outcome == 0, requests.outcome == 1
    done = np.where(np.isnan(columns["last"]), columns["ended"], columns["last"])
    lines["completed"] = per_second(done[ok])
    lines["failed"] = per_second(np.where(np.isnan(columns["ended"]), came, columns["ended"])[failed])
    lines["unsent"] = per_second(columns["due"][requests.outcome == 2])
    lines["in_flight"] = _in_flight(columns, start, long, count)
    for span, moment in (("ttft", "first"), ("tpot", "last"), ("e2e", "last")):
        _quantiles(times, span, columns[span][ok], done[ok] if moment == "last" else columns[moment][ok])
    gaps = [requests.gap_windows.get(i) for i in range(count)]
    for i, q in enumerate(QUANTILES):
        of = [exact.quantiles(QUANTILES)[i] if exact else None for exact in gaps]
        lines[f"itl_p{q * 100:g}"] = of
    lag = np.maximum(columns["sent"] - columns["due"], 0)
    _quantiles(times, "lag", lag, columns["sent"])
    lines["lag_max"] = _max(lag, columns["sent"], start, long, count)
    _client(client, times)
    return times


def _where(moments: np.ndarray, start: float, long: float, count: int) -> np.ndarray:
    """Into which window each falls; what lies before or after goes to the first or last."""
    return np.clip((moments - start) // long, 0, count - 1).astype(np.int64)


def _in_flight(columns: dict[str, np.ndarray], start: float, long: float, count: int) -> Values:
    """At the end of each window: sent and not ended. What never ended stays."""
    ends = start + long * np.arange(1, count + 1)
    sent, ended = (np.sort(columns[name][~np.isnan(columns["sent"])]) for name in ("sent", "ended"))
    ended = ended[~np.isnan(ended)]
    flying = np.searchsorted(sent, ends, "right") - np.searchsorted(ended, ends, "right")
    return [float(n) for n in flying]


def _quantiles(times: Times, name: str, values: np.ndarray, moments: np.ndarray) -> None:
    count = len(times.at)
    for q in QUANTILES:
        times.lines[f"{name}_p{q * 100:g}"] = [None] * count
    known = ~np.isnan(values) & ~np.isnan(moments)
    values = values[known]
    where = _where(moments[known], times.start, times.length, count)
    order = np.lexsort((values, where))
    values, where = values[order], where[order]
    firsts = np.searchsorted(where, np.arange(count + 1))
    for i in range(count):
        number = int(firsts[i + 1] - firsts[i])
        for q in QUANTILES if number else ():
            found = values[firsts[i] + rank(q, number) - 1]
            times.lines[f"{name}_p{q * 100:g}"][i] = float(found)


def _max(values: np.ndarray, moments: np.ndarray, start: float, long: float, count: int) -> Values:
    known = ~np.isnan(values) & ~np.isnan(moments)
    most = np.full(count, -1.0)
    np.maximum.at(most, _where(moments[known], start, long, count), values[known])
    return [None if value < 0 else float(value) for value in most]


def _client(file: Path, times: Times) -> None:
    """CPU and timers' delays of the busiest process in each window; absent without the file."""
    count = len(times.at)
    cpu, delay = np.full(count, -1.0), np.full(count, -1.0)
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                try:
                    sample = json.loads(line)
                    at = int(np.clip((float(sample["at"]) - times.start) // times.length, 0, count - 1))
                    cpu[at] = max(cpu[at], float(sample.get("cpu") or 0.0))
                    for milliseconds in sample.get("delays") or ():
                        delay[at] = max(delay[at], float(milliseconds) / 1000)
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
    except OSError:
        return
    times.lines["cpu_max"] = [None if value < 0 else float(value) for value in cpu]
    times.lines["delay_max"] = [None if value < 0 else float(value) for value in delay]
