"""The figures of a run, from what was recorded: pure, so that fabricated records give exact figures.

All seconds count from the moment of injection. Requests are counted from the injection on: those that ended after it,
or never. A request is good if it was answered whole and within the objective. Windows hold the requests that ended in
them, so that a request that hung counts when its user was told. A window with fewer than ``least`` ended requests meets
nothing: silence is no success.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.run.plan import Objective
from chaos.run.timeline import ALERTS_EVERY, FLEET_EVERY, Timeline

#: Windows in a row that must meet the objective for it to be back.
IN_A_ROW = 3
#: Share of the throughput of before at which capacity is back, and the span in which it is measured, in seconds.
CAPACITY, CAPACITY_SPAN = 0.95, 2.0
#: Seconds without a request at the end of a fault from which on a replica counts as left alone.
STILL = 1.0
#: Statuses with which the router says that it takes no more now.
REFUSALS = (429, 503)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Seen:
    """All that is known of a run. Times are Unix seconds.

    begun: from where on records count as before. injected, proven: of the first fault; undone: when the last was taken
    out; ended: when watching ended. victims: replicas that bore it. records: lines of requests.jsonl.
    retries: request id -> how often the router sent it again; None where that is not known.
    """

    begun: float
    injected: float
    proven: float
    undone: float
    ended: float
    victims: tuple[str, ...]
    records: Sequence[Record]
    timeline: Timeline
    objective: Objective
    window: float = 0.5
    least: int = 8
    retries: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Window:
    """Requests that ended in [at, at + length): how many, and how many of them were good."""

    at: float
    ended: int
    good: int
    ok: int

    def meets(self, attainment: float, least: int) -> bool:
        return self.ended >= least and self.good >= attainment * self.ended


@dataclass
class Figures:
    """values: figure -> number, None where it never came or is not known; notes: why, and what else was noticed."""

    values: dict[str, float | None]
    resolution: float
    windows: list[Window] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)


def compute(seen: Seen) -> Figures:
    """Every figure of the run."""
    notes: list[str] = []
    ours = [r for r in seen.records if _end(r, seen.ended) >= seen.injected]
    values: dict[str, float | None] = {
        "detection": _detection(seen),
        "reroute": _reroute(seen, ours, notes),
    }
    windows = _windows(seen)
    values["slo_recovery"], missed = _slo_recovery(seen, windows)
    values["capacity_recovery"], rate = _capacity_recovery(seen)
    values |= _counts(seen, ours)
    if missed:
        notes.append(f"{missed} windows of {seen.window:g} s missed the objective")
    before = [r for r in seen.records if seen.begun <= _end(r, seen.ended) < seen.injected]
    good = sum(is_good(r, seen.objective) for r in before)
    told = {"requests": float(len(before)), "good": good / len(before) if before else math.nan, "rate": rate}
    return Figures(values, max(seen.window, FLEET_EVERY, ALERTS_EVERY), windows, notes, told)


def is_good(record: Record, objective: Objective) -> bool:
    """Answered whole and within the objective; a latency that it has not got is not judged."""
    if record.get("outcome") != "ok":
        return False
    longest = max(record.get("gaps") or [0.0]) / 1000
    pairs = (
        (record.get("ttft"), objective.ttft),
        (longest, objective.itl),
        (record.get("e2e"), objective.e2e),
    )
    return all(had is None or most is None or had <= most for had, most in pairs)


def is_refused(record: Record) -> bool:
    """The router said that it takes no more now."""
    return (
        record.get("outcome") == "failed" and record.get("status") in REFUSALS and record.get("first") is None
    )


def _end(record: Record, otherwise: float) -> float:
    """When its user was told; what never ended counts at the end, what was never sent when it was due."""
    at = record.get("ended")
    if at is None:
        at = record.get("due") if record.get("outcome") == "unsent" else otherwise
    return float(otherwise if at is None else at)


def _detection(seen: Seen) -> float | None:
    """The first change of a victim's state (any replica's, where there is no victim), or the first alert."""
    states = [
        c.at
        for c in seen.timeline.changes
        if c.at >= seen.injected and (not seen.victims or c.replica in seen.victims)
    ]
    alerts = [a.at for a in seen.timeline.alerts if a.at >= seen.injected]
    first = min([*states, *alerts], default=None)
    return None if first is None else round(first - seen.injected, 3)


def _reroute(seen: Seen, ours: Iterable[Record], notes: list[str]) -> float | None:
    """The last request sent to a victim before it came back, or before the fault was out; 0 if none was.

    None if it was never left alone: it stayed in rotation and was sent requests up to the end of the fault.
    """
    if not seen.victims:
        return None
    worst = 0.0
    for victim in seen.victims:
        changes = [c for c in seen.timeline.changes if c.replica == victim and c.at >= seen.injected]
        out = next((c.at for c in changes if not c.in_rotation), None)
        end = seen.undone
        if out is not None:
            end = next((c.at for c in changes if c.in_rotation and c.at > out), seen.ended)
        sent = [
            float(r["sent"])
            for r in ours
            if r.get("sent") is not None
            and seen.injected <= r["sent"] < end
            and _went_to(r, victim, seen.retries if out is None or r["sent"] < out else None)
        ]
        last = max(sent, default=seen.injected)
        if out is None and sent and end - last < STILL:
            notes.append(f"{victim} stayed in rotation and was sent requests until the fault was taken out")
            return None
        worst = max(worst, last - seen.injected)
    return round(worst, 3)


def _went_to(record: Record, victim: str, retries: Mapping[str, int] | None) -> bool:
    """It answered, or the router had to send the request again, which before a victim is out is taken as the victim's."""
    if record.get("replica") == victim:
        return True
    return retries is not None and retries.get(str(record.get("request_id")), 0) > 0


def _windows(seen: Seen) -> list[Window]:
    """Side by side, aligned to the injection, from the beginning of the run on; only whole ones."""
    first = -math.floor((seen.injected - seen.begun) / seen.window)
    last = math.floor((seen.ended - seen.injected) / seen.window)
    cells: dict[int, list[int]] = {}
    for record in seen.records:
        index = math.floor((_end(record, seen.ended) - seen.injected) / seen.window)
        cell = cells.setdefault(index, [0, 0, 0])
        cell[0] += 1
        cell[1] += is_good(record, seen.objective)
        cell[2] += record.get("outcome") == "ok"
    return [Window(seen.injected + i * seen.window, *cells.get(i, [0, 0, 0])) for i in range(first, last)]


def _slo_recovery(seen: Seen, windows: list[Window]) -> tuple[float | None, int]:
    """Start of the first of three windows in a row that meet the objective, after the first that missed; and how many
    missed. 0 if none did, None if it was not back before the end."""
    after = [w for w in windows if w.at >= seen.injected - 1e-9]
    met = [w.meets(seen.objective.attainment, seen.least) for w in after]
    if not after:
        return None, 0
    if all(met):
        return 0.0, 0
    first = met.index(False)
    for i in range(first, len(met) - IN_A_ROW + 1):
        if all(met[i : i + IN_A_ROW]):
            return round(after[i].at - seen.injected, 3), met.count(False)
    return None, met.count(False)


def _capacity_recovery(seen: Seen) -> tuple[float | None, float]:
    """Since when answers a second are at 95 % of before again, after they were not; and how many those were.

    Measured in spans of 2 s that move on by a window; a span's time is its end, when it is known.
    """
    ends = sorted(
        float(r["ended"]) for r in seen.records if r.get("outcome") == "ok" and r.get("ended") is not None
    )
    length = seen.injected - seen.begun
    before = sum(seen.begun <= at < seen.injected for at in ends) / length if length > 0 else math.nan
    if not before > 0:
        return None, math.nan
    steps = math.floor((seen.ended - seen.injected - CAPACITY_SPAN) / seen.window + 1e-9)
    if steps < 0:
        return None, before
    low = False
    for i in range(steps + 1):
        start = seen.injected + i * seen.window
        rate = sum(start <= at < start + CAPACITY_SPAN for at in ends) / CAPACITY_SPAN
        if rate < CAPACITY * before:
            low = True
        elif low:
            return round(start + CAPACITY_SPAN - seen.injected, 3), before
    return (None if low else 0.0), before


def _counts(seen: Seen, ours: list[Record]) -> dict[str, float | None]:
    bad = [r for r in ours if r.get("outcome") != "ok"]
    lost = [r for r in bad if r.get("first") is None]
    refused = [r for r in bad if is_refused(r)]
    during = [r for r in ours if seen.proven <= (r.get("due") or r.get("sent") or 0.0) < seen.undone]
    admitted = [r for r in during if not is_refused(r)]
    recomputed = None
    if seen.retries is not None:
        known = [(r.get("input_tokens") or 0) * seen.retries.get(str(r.get("request_id")), 0) for r in ours]
        recomputed = float(sum(known))
    return {
        "lost_requests": float(len(lost)),
        "cut_streams": float(len(bad) - len(lost)),
        "failed_requests": float(len(bad)),
        "refused_requests": float(len(refused)),
        "refused_without_retry_after": float(sum(r.get("retry_after") is None for r in refused)),
        "failed_after_injection": float(sum((r.get("sent") or 0.0) >= seen.injected for r in bad)),
        "recomputed_tokens": recomputed,
        "good_admitted": _share(admitted, seen.objective),
        "good_during": _share(during, seen.objective),
    }


def _share(records: list[Record], objective: Objective) -> float | None:
    return sum(is_good(r, objective) for r in records) / len(records) if records else None
