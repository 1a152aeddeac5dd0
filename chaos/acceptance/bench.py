"""A fault watched under load: open-loop requests before, during and after it, and the figures of all of it.

One ``Bench`` serves all rows of a run: the place, where evidence goes, and who is told how far it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaos import inject
from chaos.acceptance.result import Result
from chaos.fault import ActivityFailed, Fault
from chaos.load import Load
from chaos.place import Place
from chaos.run import audit, figures
from chaos.run.plan import Objective
from chaos.run.timeline import Watch

#: Seconds of load before a fault, and after it.
BASELINE, SETTLE = 4.0, 4.0
#: Seconds for every replica to be in rotation again. An ejection lasts 10 s, and ends by traffic.
BACK = 60.0
#: Fires always, to prove that alerts arrive.
_HEARTBEAT = "ExaServeWatchdog"
#: The README's objective of the default service level.
OBJECTIVE = Objective(ttft=2.5, attainment=0.99)


@dataclass
class Watched:
    """What was seen of one fault. proofs: its own; alerts: names, first first.

    back: seconds after it was out until every replica was in rotation; None if that took longer than ``BACK``.
    """

    seen: figures.Seen
    figures: figures.Figures
    proofs: list[str]
    alerts: list[str]
    back: float | None

    @property
    def values(self) -> dict[str, float | None]:
        return self.figures.values

    def number(self, name: str) -> float:
        """A figure that is always known."""
        value = self.values[name]
        assert value is not None
        return value


@dataclass
class Bench:
    """place: a lab's region or any place with a router; lab: the whole lab. folder: the report's.

    say: progress of the row that runs. own: the lab is ours, so its configuration may be changed.
    """

    place: Place
    lab: Place
    folder: Path
    say: Callable[[str], None]
    own: bool = False
    rate: float = 20.0
    max_tokens: int = 16

    @property
    def router(self) -> str:
        return self.place.addresses["router"]

    @property
    def admin(self) -> str:
        return self.place.addresses["admin"]

    def replica(self) -> str:
        """One that serves. Raises ActivityFailed."""
        serving = sorted(r.name for r in self.place.replicas() if r.in_rotation)
        if not serving:
            raise ActivityFailed("no replica is in rotation")
        return serving[0]

    def wait_ready(self, seconds: float = 90.0) -> float | None:
        """Until every replica of the place is in rotation; how long it took, None if it did not come so far."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            replicas = self.place.replicas()
            if replicas and all(r.in_rotation for r in replicas):
                return time.monotonic() - began
            time.sleep(0.2)
        return None

    @contextmanager
    def load(self, key: str, seconds: float = 120.0, **options: Any) -> Any:
        """Open-loop chat requests while the block runs; their records stay as evidence."""
        one = Load(
            options.pop("router", self.router),
            options.pop("rate", self.rate),
            seconds,
            options.pop("max_tokens", self.max_tokens),
            folder=self.folder / key,
            **options,
        )
        try:
            one.wait_for_first()
            yield one
        finally:
            one.stop()

    def under_load(
        self,
        result: Result,
        fault: str | Fault,
        target: str,
        duration: float,
        parameters: dict[str, Any] | None = None,
        *,
        place: Place | None = None,
        victims: tuple[str, ...] = (),
        meanwhile: Callable[[], None] | None = None,
        settle: float = SETTLE,
        max_affected: int = 1,
        allow_last: bool = False,
        rate: float = 0.0,
    ) -> Watched:
        """Put the fault in while requests come, hold it, take it out, watch on; all evidence into ``result``.

        meanwhile: called while it is in. Raises ActivityFailed: it could not be put in, proven or taken out.
        """
        name = fault if isinstance(fault, str) else fault.name
        watch = Watch(self.admin, self.place.addresses.get("prometheus", "")).start()
        try:
            with self.load(f"{result.key}/load", rate=rate or self.rate) as load:
                begun = time.time()
                time.sleep(BASELINE)
                self.say(f"{name} into {target}")
                with inject.held(
                    fault, target, place or self.place, duration, parameters or {}, max_affected, allow_last
                ) as injections:
                    if meanwhile is not None:
                        meanwhile()
                    for injection in injections:
                        injection.wait()
                undone = time.time()
                self.say(f"{name} is out; watching on")
                back = self.wait_ready(BACK)
                time.sleep(max(0.0, undone + settle - time.time()))
                ended = time.time()
                load.stop()
                # What was due while the load was being stopped, or just before and not sent any more, says nothing.
                records = [
                    r for r in load.records()
                    if (r.get("due") or 0.0) < ended - 1.0 * (r["outcome"] == "unsent")
                ]  # fmt: skip
        finally:
            watch.stop()
        first = min(i.injected_at for i in injections)
        proven = max(i.proven_at or i.injected_at for i in injections)
        hit = tuple(i.target.replica.name for i in injections if i.target.replica is not None)
        nodes = [i.target.node.name for i in injections if i.target.node is not None]
        hit = victims or hit or tuple(r.name for r in self.place.replicas() if r.node in nodes)
        seen = figures.Seen(
            begun=begun,
            injected=first,
            proven=proven,
            undone=undone,
            ended=ended,
            victims=hit,
            records=records,
            timeline=watch.seen,
            objective=OBJECTIVE,
            retries=self._retries(records),
            least=4,
        )
        proofs = [f"{name} on {i.target.name}: {i.proof.measured}" for i in injections if i.proof is not None]
        fired = (a.name for a in watch.seen.alerts if a.at >= first and a.name != _HEARTBEAT)
        found = Watched(seen, figures.compute(seen), proofs, list(dict.fromkeys(fired)), back)
        self._keep(result, name, found)
        return found

    def keep(self, result: Result, name: str, data: Any) -> None:
        """One file of evidence: text as it is, anything else as JSON."""
        path = self.folder / result.key / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data if isinstance(data, str) else json.dumps(data, indent=1, default=str))
        result.evidence.append(f"{result.key}/{name}")

    def _retries(self, records: list[dict[str, Any]]) -> dict[str, int] | None:
        regions = getattr(self.place, "regions", None)
        if not regions:
            return None
        wanted = {str(r["request_id"]) for r in records if r.get("request_id")}
        return audit.retries(audit.folder(regions[0]["run"]), wanted)

    def _keep(self, result: Result, name: str, found: Watched) -> None:
        seen = found.seen
        result.done = "; ".join(filter(None, [result.done, *found.proofs]))
        result.figures |= {
            "values": found.values,
            "before": found.figures.before,
            "requests": len(seen.records),
        }
        result.notes += found.figures.notes
        result.evidence.append(f"{result.key}/load/requests.jsonl")
        told = {
            "fault": name,
            "proofs": found.proofs,
            "victims": seen.victims,
            "times": {k: getattr(seen, k) for k in ("begun", "injected", "proven", "undone", "ended")},
            "figures": found.values,
            "notes": found.figures.notes,
            "changes": [asdict(c) for c in seen.timeline.changes],
            "alerts": [asdict(a) for a in seen.timeline.alerts],
        }
        self.keep(result, f"{name}.json", told)
        result.evidence += [f"alert {alert}" for alert in found.alerts]
