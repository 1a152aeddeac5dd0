"""The row about a region that is gone: its fleet, with a router that falls back; its router, with clients that do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from chaos import ask, inject
from chaos.acceptance import two_addresses
from chaos.acceptance.bench import BASELINE, Bench
from chaos.acceptance.configuration import changed
from chaos.acceptance.fleet_rows import REROUTED, back, within
from chaos.acceptance.region_fault import FAULT
from chaos.acceptance.result import Result
from chaos.fault import ActivityFailed

HOME, AWAY = "home", "other-region"
#: A header that no client sends: a pool that is only a fallback has to match something, and comes before the last one.
_NOBODY = {"x-exaserve-region": "other"}
_RATE = 10.0
CONFIGURE = (
    "A router falls back to another region if its replicas file names that region's replicas too, and exaserve.yaml "
    f"has two pools, in this order: `{AWAY}` with `match: {{headers: {{x-exaserve-region: other}}}}` and that region's "
    f"replicas, and `{HOME}` with its own replicas and `fallback: {AWAY}`; `router.retry.max_attempts: 3` lets a request "
    "that two dead replicas did not answer go there as well. Against the loss of a router, clients (or what is in front "
    f"of them) need both routers' addresses, a limit of {two_addresses.FIRST:g} s for the first token, and send a request "
    "of which nothing has come yet to the other one."
)


def switch(bench: Bench, result: Result) -> None:
    regions = getattr(bench.lab, "regions", [])
    if len(regions) < 2:
        raise ActivityFailed("it needs a lab of two regions (exaserve lab up --regions 2)")
    result.notes.append(CONFIGURE)
    with _fallback(bench, result, regions):
        _fleet_gone(bench, result, regions[0])
    _router_gone(bench, result, regions)


def _fleet_gone(bench: Bench, result: Result, region: dict[str, Any]) -> None:
    nodes = list(region["nodes"])
    victims = tuple(r.name for r in bench.lab.replicas() if r.node in nodes)
    found = bench.under_load(
        result,
        "node_killed",
        ",".join(nodes),
        10.0,
        place=bench.lab,
        victims=victims,
        max_affected=len(nodes),
        allow_last=True,
        rate=_RATE,
    )
    lost, cut = int(found.number("lost_requests")), int(found.number("cut_streams"))
    result.check(
        "fleet of one region gone: no request is lost that had not begun",
        f"{lost} of {len(found.seen.records)} lost, {cut} streams cut",
        lost == 0,
    )
    within(
        result, found, "slo_recovery", "fleet of one region gone: users are inside the SLO again", REROUTED
    )
    there = [r for r in found.seen.records if r.get("replica") and r["replica"] not in victims]
    result.check("the other region's replicas answer", f"{len(there)} requests", bool(there))
    back(result, found, "the region's replicas are in rotation again")


def _router_gone(bench: Bench, result: Result, regions: list[dict[str, Any]]) -> None:
    bench.say("a client with both addresses; the first region's router goes")
    routers = [r["router"] for r in regions[:2]]
    client = two_addresses.Client(routers, ask.model(routers[0]), _RATE, 2 * BASELINE + 10.0).start()
    time.sleep(BASELINE)
    with inject.held(FAULT, "router", bench.place, 8.0) as injections:
        injections[0].wait()
        proof = injections[0].proof
    asked = client.join()
    bench.keep(result, "two-addresses.json", two_addresses.plain(asked))
    if proof is not None:
        result.done += f"; {FAULT.name}: {proof.measured}"
    injected = injections[0].injected_at
    after = [a for a in asked if a.ended >= injected]
    lost, cut = (sum(a.outcome == word for a in after) for word in ("lost", "cut"))
    other = [a for a in after if a.outcome == "ok" and a.addresses[-1] == routers[1]]
    slowest = max((a.first for a in other if a.first is not None), default=None)
    result.figures |= {
        "two_addresses": {"requests": len(asked), "lost": lost, "cut": cut, "slowest_first": slowest}
    }
    result.check(
        "router of one region gone: a client with both addresses loses nothing that had not begun",
        f"{lost} of {len(after)} lost, {cut} streams cut, {len(other)} answered by the other region",
        lost == 0 and bool(other),
    )
    took = max((a.ended - injected for a in after if a.outcome == "lost"), default=0.0)
    result.check(
        f"its first tokens come within {two_addresses.FIRST + two_addresses.CONNECT:g} s",
        f"slowest {slowest:.2f} s, last lost request {took:.2f} s after"
        if slowest is not None
        else "none came",
        slowest is not None and slowest <= two_addresses.FIRST + two_addresses.CONNECT,
    )


def _fallback(bench: Bench, result: Result, regions: list[dict[str, Any]]) -> Any:
    """The first region's router knows the second one's replicas as a fallback, while the block runs."""
    texts = [(Path(r["run"]) / "replicas.txt").read_text() for r in regions[:2]]
    ours, theirs = ([line.partition("=")[0] for line in text.split()] for text in texts)
    pools = {
        AWAY: {"match": {"headers": _NOBODY}, "replicas": theirs},
        HOME: {"replicas": ours, "fallback": AWAY},
    }
    return changed(bench, result, pools, {"retry": {"max_attempts": 3}}, texts[1])
