"""What happened while an experiment ran, seen from outside: the router's states of replicas, and alerts.

A thread that asks the router ten times a second and Prometheus twice. States have the router's own time (``since``);
an alert's is when it was first seen firing. What requests felt is ``chaos/load.py``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from chaos.fleet import IN_ROTATION

FLEET_EVERY, ALERTS_EVERY = 0.1, 0.5  # seconds


@dataclass(frozen=True, slots=True)
class Change:
    """A replica entered a state at ``at`` (Unix seconds)."""

    at: float
    replica: str
    state: str
    reason: str = ""

    @property
    def in_rotation(self) -> bool:
        return self.state in IN_ROTATION


@dataclass(slots=True)
class Alert:
    """An alert that fired. at: first seen so, Unix seconds; until: first seen gone, None if it was still there."""

    at: float
    name: str
    labels: dict[str, str]
    until: float | None = None


@dataclass
class Timeline:
    """changes: in order of their time, each replica's first one is its state at the beginning.

    silent: seconds-long spans (from, to) in which the router's admin API gave no answer.
    """

    changes: list[Change] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    silent: list[tuple[float, float]] = field(default_factory=list)

    def between(self, start: float, end: float) -> Timeline:
        """What belongs to a run: each replica's state at its beginning, and all that came until its end."""
        before: dict[str, Change] = {}
        for change in self.changes:
            if change.at < start:
                before[change.replica] = change
        inside = [c for c in self.changes if start <= c.at <= end]
        alerts = [a for a in self.alerts if a.at <= end and (a.until is None or a.until >= start)]
        return Timeline(
            [*before.values(), *inside], alerts, [s for s in self.silent if s[1] > start and s[0] < end]
        )


class Watch:
    """Fills a Timeline until it is stopped."""

    def __init__(self, admin: str, prometheus: str) -> None:
        self.seen = Timeline()
        self._admin, self._prometheus = admin.rstrip("/"), prometheus.rstrip("/")
        self._states: dict[str, tuple[str, float]] = {}
        self._firing: dict[tuple[tuple[str, str], ...], Alert] = {}
        self._silent: float | None = None
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=(self._fleet, FLEET_EVERY), daemon=True)]
        if prometheus:
            self._threads.append(
                threading.Thread(target=self._loop, args=(self._alerts, ALERTS_EVERY), daemon=True)
            )

    def start(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(5)

    def states(self) -> dict[str, str]:
        """State by replica, as last seen."""
        return {name: state for name, (state, _) in dict(self._states).items()}

    def _loop(self, look: Any, every: float) -> None:
        with httpx.Client(timeout=2.0, trust_env=False) as client:
            while not self._over.is_set():
                begun = time.monotonic()
                look(client)
                self._over.wait(max(0.01, every - (time.monotonic() - begun)))

    def _fleet(self, client: httpx.Client) -> None:
        now = time.time()
        try:
            replicas = client.get(f"{self._admin}/fleet").raise_for_status().json()["replicas"]
            found = [
                (r["name"], r["state"], float(r.get("since") or now), str(r.get("reason") or ""))
                for r in replicas
            ]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            self._silent = self._silent or now
            return
        if self._silent is not None:
            self.seen.silent.append((self._silent, time.time()))
            self._silent = None
        for name, state, since, reason in found:
            if self._states.get(name) != (state, since):
                self._states[name] = (state, since)
                self.seen.changes.append(Change(since, name, state, reason))
                self.seen.changes.sort(key=lambda change: change.at)

    def _alerts(self, client: httpx.Client) -> None:
        try:
            alerts = (
                client.get(f"{self._prometheus}/api/v1/alerts").raise_for_status().json()["data"]["alerts"]
            )
            firing = [a["labels"] for a in alerts if a["state"] == "firing"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return
        now = time.time()
        keys = {tuple(sorted(labels.items())): labels for labels in firing}
        for key, labels in keys.items():
            if key not in self._firing:
                self._firing[key] = Alert(now, labels.get("alertname", ""), labels)
                self.seen.alerts.append(self._firing[key])
        for key in [k for k in self._firing if k not in keys]:
            self._firing.pop(key).until = now
