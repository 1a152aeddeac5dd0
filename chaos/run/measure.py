"""From what a run left to what the figures need: the requests of its time, its victims, and when the fault was out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaoslib.exceptions import ActivityFailed

from chaos.load import Load
from chaos.place import Place
from chaos.run import audit
from chaos.run.figures import Seen
from chaos.run.plan import Plan
from chaos.run.timeline import Timeline

#: Share of requests that the load may send later than half a window.
_LATE = 0.05


def seen(
    plan: Plan, place: Place, load: Load, timeline: Timeline, faults: list[dict[str, Any]], journal: dict[str, Any] | None,
    started: float, ended: float,
) -> Seen:  # fmt: skip
    """Everything of the run that the figures are made of. faults: what was put in. started, ended: of watching."""
    injected = min(float(f["injected_at"]) for f in faults)
    begun = max(started, injected - plan.baseline)
    whole = [*load.records(), *still_open(load.records(), ended)]
    records = [
        r
        for r in whole
        if (r.get("ended") or ended) >= begun - 1.0 and (r.get("due") or r.get("sent") or 0.0) <= ended
    ]
    return Seen(
        begun=begun,
        injected=injected,
        proven=max(float(f["proven_at"] or f["injected_at"]) for f in faults),
        undone=undone(faults, journal, ended),
        ended=ended,
        victims=tuple(plan.victims) or victims(place, faults),
        records=records,
        timeline=timeline.between(begun, ended),
        objective=plan.objective,
        window=plan.window_at(load.rate),
        least=plan.least,
        retries=audit.retries(_audit(place), {str(r.get("request_id")) for r in records}),
    )


def still_open(records: list[dict[str, Any]], ended: float) -> list[dict[str, Any]]:
    """Requests that were due before the end and of which no record has come yet, as records.

    A process numbers its requests in the order in which they were due, so that one that is missing is still open.
    """
    of: dict[int, dict[int, float]] = {}
    for record in records:
        if record.get("due") is not None:
            of.setdefault(record["worker"], {})[record["number"]] = record["due"]
    found = []
    for dues in of.values():
        last, due = max((number for number, at in dues.items() if at <= ended), default=-1), 0.0
        for number in range(last):
            if number in dues:
                due = dues[number]
            else:
                found.append({"outcome": "open", "due": due, "sent": due, "first": None, "ended": None})
    return found


def victims(place: Place, faults: list[dict[str, Any]]) -> tuple[str, ...]:
    """Replicas that bear the faults: the targets, or those on the targets' nodes; none for traffic, parts, storage.

    A replica has its model in memory, so that storage is no part of what it needs to serve.
    """
    names = {str(f["target"]) for f in faults}
    try:
        on = {node.name: node.replicas for node in place.nodes()}
        replicas = {r.name for r in place.replicas()}
    except ActivityFailed:
        return tuple(sorted(names))
    found = {name for name in names if name in replicas}
    for name in names:
        found |= set(on.get(name, []))
    return tuple(sorted(found))


def _audit(place: Place) -> Path | None:
    regions = getattr(place, "regions", None)
    return audit.folder(regions[0]["run"]) if regions else None


def undone(faults: list[dict[str, Any]], journal: dict[str, Any] | None, ended: float) -> float:
    """When the last fault was out: the end of the first ``undo_fault``, else the fault's own end."""
    ends = []
    for activity in [*((journal or {}).get("run") or []), *((journal or {}).get("rollbacks") or [])]:
        provider = (activity.get("activity") or {}).get("provider") or {}
        if provider.get("func") == "undo_fault" and activity.get("end"):
            at = datetime.fromisoformat(str(activity["end"]))
            ends.append((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    return min([max(float(f["until"]) for f in faults), ended, *ends[:1]])


def load_problems(seen: Seen, window: float, running: Load) -> list[str]:
    """Why the load says nothing: it ended early, sent late, or nothing was asked before the fault."""
    problems = []
    if not running.running:
        problems.append(f"the load ended before the run did: {running.last_words()}")
    timed = [r for r in seen.records if r.get("due") is not None and r.get("sent") is not None]
    late = [r for r in timed if r["sent"] - r["due"] > window / 2]
    if len(late) > _LATE * max(1, len(timed)):
        problems.append(
            f"the load could not keep up: {len(late)} of {len(timed)} requests were sent over {window / 2:g} s late; "
            "give it more CPU, or a lower --rate"
        )
    if not any((r.get("ended") or seen.ended) < seen.injected for r in seen.records):
        problems.append("no request ended before the fault, so there is nothing to compare with")
    return problems
