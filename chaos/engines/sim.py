"""Faults that the simulated engine brings about itself, over ``POST /_sim/fault`` from its own machine.

Only a replica that was started with ``--faults`` takes them (``exaserve lab`` starts them so). The engine ends each by
itself after the duration too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import httpx

from chaos import ask, steps
from chaos.engines import signals
from chaos.fault import Engine, Plan, Proof, Target

_GET = "import sys,urllib.request as u;sys.stdout.write(u.urlopen(sys.argv[1],timeout=3).read().decode())"


def route(target: Target) -> str:
    """Where the replica takes faults, as its own machine calls it."""
    replica = target.replica
    assert replica is not None
    inside = target.node is not None and bool(target.node.prefix)
    return f"http://127.0.0.1:{replica.port}/_sim/fault" if inside else f"{replica.url}/_sim/fault"


def in_force(target: Target) -> dict[str, Any] | None:
    """The fault that the replica has now (``{"kind": "none"}`` without one); None if it takes none."""
    node = target.node
    try:
        if node is not None and node.prefix:
            python = "python3" if node.remote else sys.executable
            text = node.read([python, "-I", "-c", _GET, route(target)], timeout=6.0).stdout
        else:
            text = httpx.get(route(target), timeout=3.0, trust_env=False).text
        fault = json.loads(text)["fault"]
        return fault if isinstance(fault, dict) and "kind" in fault else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


class Simulated(Engine):
    """One kind of fault of the simulated engine. body: its fields, from the parameters."""

    name = "sim"

    def __init__(
        self,
        kind: str | Callable[[Any], str],
        body: Callable[[Any], dict[str, Any]],
        prove: Callable[[Target, Any, Any], Proof],
        before: Callable[[Target, Any], Any] | None = None,
        prove_within: float = 10.0,
    ) -> None:
        self._kind, self._body, self._prove, self._before = kind, body, prove, before
        self.prove_within = prove_within
        self.how = "asks a simulated replica to do it (/_sim/fault)"

    def refusal(self, target: Target, p: Any) -> str | None:
        found = in_force(target)
        if found is None:
            return f"{target.name} is no simulated replica that was started with --faults"
        if found["kind"] != "none":
            return f"{target.name} has the simulated fault {found['kind']} already"
        return None

    def before(self, target: Target, p: Any) -> Any:
        return self._before(target, p) if self._before else None

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        kind = self._kind if isinstance(self._kind, str) else self._kind(p)
        url, node = route(target), target.node
        do = steps.post(url, {"kind": kind, **self._body(p), "seconds": duration}, node)
        undo = steps.post(url, {"kind": "none"}, node)
        return Plan([do], [undo], claims=(f"sim:{target.name}",))

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        return self._prove(target, p, before)


def slow() -> Simulated:
    """Every engine step takes ``factor`` times as long."""
    return Simulated(
        "slow",
        lambda p: {"factor": p.factor},
        lambda target, p, before: signals.slower(target, p.factor, before),
        lambda target, p: signals.pace(target),
        prove_within=15.0,
    )


def answers(target: Target, wanted: int, probability: float) -> Proof:
    """Whether requests for text are answered with the status: 3 at once, 1 is enough where not all are to be."""
    assert target.replica is not None
    url = target.replica.url
    name = ask.model(url)
    got = [ask.stream(url, name, 1, 3.0).status for _ in range(3)]
    hits = got.count(wanted)
    told = f"{hits} of {len(got)} requests were answered with {wanted}"
    return Proof(hits == len(got) if probability >= 1 else hits > 0, told, hits / len(got))
