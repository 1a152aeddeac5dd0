"""Rows about replicas and nodes that end, start empty, or refuse."""

from __future__ import annotations

import time

from chaos import inject
from chaos.acceptance.bench import BACK, Bench, Watched
from chaos.acceptance.result import Result
from chaos.fault import ActivityFailed
from chaos.run.judge import show

#: Goals of the README's table, in seconds; the reroute's with the tuned profile.
SLO_BACK, REROUTED = 1.0, 3.0


def terminated(bench: Bench, result: Result) -> None:
    found = bench.under_load(result, "replica_crash", bench.replica(), 30.0, settle=6.0)
    _lost(result, found)
    within(result, found, "slo_recovery", "users are inside the SLO again", SLO_BACK)
    back(result, found)


def node_lost(bench: Bench, result: Result) -> None:
    node = _node(bench)
    found = bench.under_load(result, "node_killed", node, 8.0)
    _lost(result, found)
    within(result, found, "reroute", "nothing more is sent there", REROUTED)
    back(result, found)


def cache_empty(bench: Bench, result: Result) -> None:
    node = _node(bench)
    victim = next(r.name for r in bench.place.replicas() if r.node == node and r.in_rotation)
    told: list[str] = []

    def restart() -> None:
        bench.say(f"{victim} is killed, to start without its cache")
        with inject.held("replica_crash", victim, bench.place, 30.0) as injections:
            killed = injections[0].injected_at
            _wait_for(bench, victim, False, 10.0)
            _wait_for(bench, victim, True, 60.0)
            told.append(f"{time.time() - killed:.1f} s after it was killed")

    found = bench.under_load(
        result, "storage_cache_empty", f"{node}/local", 25.0, victims=(victim,), meanwhile=restart
    )
    result.check("the replica serves again", told[0] if told else "it does not", bool(told))
    _lost(result, found)


def upstream_429(bench: Bench, result: Result) -> None:
    victim = bench.replica()
    found = bench.under_load(result, "replica_error", victim, 8.0, {"status": 429, "retry_after": 2})
    bad = int(found.number("failed_requests"))
    told = [r for r in found.seen.records if r.get("status") == 429]
    result.check("no request fails", f"{bad} of {_during(found)} failed", bad == 0)
    result.check("no client sees the replica's 429", f"{len(told)} did", not told)
    within(result, found, "slo_recovery", "users are inside the SLO again", SLO_BACK)
    back(result, found)


def within(result: Result, found: Watched, figure: str, words: str, most: float) -> None:
    """A check of a figure in seconds."""
    value = found.values[figure]
    seen = f"{show(figure, value)} (exact to {found.figures.resolution:g} s)"
    result.check(f"{words} within {most:g} s", seen, value is not None and value <= most)


def _lost(result: Result, found: Watched) -> None:
    lost, cut = int(found.number("lost_requests")), int(found.number("cut_streams"))
    result.check(
        "no request is lost that had not begun",
        f"{lost} of {_during(found)} lost, {cut} streams cut",
        lost == 0,
    )


def _during(found: Watched) -> int:
    return sum((r.get("ended") or found.seen.ended) >= found.seen.injected for r in found.seen.records)


def back(result: Result, found: Watched, words: str = "every replica is in rotation again") -> None:
    """A check that all came back."""
    seen = f"{found.back:.1f} s after it was out" if found.back is not None else f"not within {BACK:g} s"
    result.check(f"{words} within {BACK:g} s", seen, found.back is not None)


def _node(bench: Bench) -> str:
    """One whose replicas serve, while others do too. Raises ActivityFailed."""
    serving = {r.node for r in bench.place.replicas() if r.in_rotation}
    nodes = [n.name for n in bench.place.nodes() if not n.control and n.name in serving]
    if len(nodes) < 2:
        raise ActivityFailed("it needs two nodes that serve")
    return nodes[0]


def _wait_for(bench: Bench, replica: str, serving: bool, seconds: float) -> None:
    """Raises ActivityFailed if it does not come so far."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if any(r.name == replica and bool(r.in_rotation) is serving for r in bench.place.replicas()):
            return
        time.sleep(0.1)
    raise ActivityFailed(f"{replica} was not {'back' if serving else 'out'} within {seconds:g} s")
