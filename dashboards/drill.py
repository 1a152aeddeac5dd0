"""An alert's way to on-call, tried out: posted to Alertmanager with its own labels and texts, watched, resolved.

What is tried: routes, grouping, silences, inhibition, receivers. What is not: whether the rule fires (promtool's unit
tests do that) and whether Prometheus reaches Alertmanager (``ExaServeWatchdog`` does, all the time). Alertmanager
doesn't say which notification was about which alert, so ``sent`` is judged by its counters of the integration, from
the end of the group's wait on.
Command line: ``drill_cli.py``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Any

from dashboards.alert_list import Rule
from dashboards.alertmanager_api import Alertmanager, AlertmanagerError, integrations
from dashboards.alertmanager_routes import routes
from dashboards.templates import fill, labels_of

#: Marks the alert for routes and people; Alertmanager can be told to send it elsewhere.
TEST_LABEL = ("test", "true")
#: Seconds between two looks, and those after which the alert ends by itself, should nobody resolve it.
_PAUSE, _GRACE = 0.5, 60.0
#: Seconds to wait beyond the route's own wait: for the receiver, and for a second try.
_MORE = 30.0


#: Seconds before the end of a group's wait from which on a message may be about our alert.
_EARLY = 0.5

#: Integration -> (requests made, of which failed).
Counters = dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Drill:
    """The alert that is posted."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Due:
    """What an integration has to send: count messages, none earlier than ``after`` seconds after the posting."""

    count: int
    after: float


def drill(rule: Rule, given: Mapping[str, str], value: float | None = None) -> Drill:
    """The alert that ``rule`` would send for a made-up series.

    given: labels to set; "" leaves one out. The others are test-<label>. The cluster is made up and another each
    time: so the alert holds back none of a real cluster, and waits in a group of its own. value: what the summary shows; by default one that its unit suits.
    """
    texts = "\n".join(rule.annotations.values())
    made_up = {label: f"test-{label}" for label in labels_of(texts)} | {"cluster": f"test-{token_hex(3)}"}
    labels = made_up | dict(rule.labels) | dict(given) | {"alertname": rule.name, **dict([TEST_LABEL])}
    labels = {label: text for label, text in labels.items() if text}
    shown = value if value is not None else _likely(texts)
    annotations = {key: fill(text, labels, shown) for key, text in rule.annotations.items()}
    annotations["summary"] = f"[TEST] {annotations.get('summary', '')}"
    labels = {label: fill(text, labels, shown) for label, text in labels.items()}
    return Drill(rule.name, labels, annotations)


def _likely(texts: str) -> float:
    """A value that reads well in an alert's texts."""
    if "humanizePercentage" in texts:
        return 0.97
    if re.search(r"\bup is \{\{", texts):
        return 0.0
    return 1.0 if re.search(r"\bis \{\{ \$value", texts) else 93.0


def run(
    alertmanager: Alertmanager, alert: Drill, wait: float | None, tell: Callable[[str, str], None]
) -> bool:
    """Post, watch, resolve. True if every integration of its receivers sent something when this alert was due.

    wait: seconds, at most; None: as long as its routes wait, and a bit. tell: gets (what, text) for each thing
    found, as it is found. Raises AlertmanagerError.
    """
    version, config = alertmanager.status()
    if wait is None:
        wait = max((route.wait for route in routes(config, alert.labels)), default=0.0) + _MORE
    watch = _Watch(alertmanager, alert, config, _counters(alertmanager), tell)
    now = datetime.now(UTC)
    posted = {"labels": dict(alert.labels), "annotations": dict(alert.annotations), "startsAt": _stamp(now)}
    try:
        alertmanager.post(posted | {"endsAt": _stamp(now + timedelta(seconds=wait + _GRACE))})
        tell("posted", f"{alert.name} to {alertmanager.shown} (Alertmanager {version})")
        while watch.seconds() < wait:
            arrived = watch.look()
            if arrived is not None:
                return arrived
            time.sleep(_PAUSE)
        watch.give_up(wait)
        return False
    finally:
        alertmanager.post(posted | {"endsAt": _stamp(datetime.now(UTC))})
        tell("resolved", "receivers with send_resolved are told so at their group's next interval")


class _Watch:
    """What has been seen of a posted alert. first: Alertmanager's counters before it; None if it shows none."""

    def __init__(
        self,
        alertmanager: Alertmanager,
        alert: Drill,
        config: Mapping[str, Any],
        first: Counters | None,
        tell: Callable[[str, str], None],
    ) -> None:
        self._alertmanager, self._alert, self._config, self._tell = alertmanager, alert, config, tell
        self._first = first
        self._before: dict[str, tuple[float, float]] = {}
        self._pending: dict[str, Due] | None = None
        self._failing: set[str] = set()
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Since it was posted."""
        return time.monotonic() - self._began

    def look(self) -> bool | None:
        """Whether it arrived; None: not known yet."""
        there = _ours(self._alertmanager, self._alert)
        if there and there["status"]["state"] == "suppressed":
            _tell_held_back(self._alertmanager, there, self._tell)
            return False
        if there and self._pending is None and there["status"]["state"] == "active":
            self._pending = _tell_route(self._alertmanager, there, self._config, self._tell)
            if not self._pending:
                self._tell("not sent", "no receiver on this route sends anything anywhere")
                return False
            if self._first is None:
                self._tell("not known", "this Alertmanager shows no /metrics, so what it sends can't be seen")
                return False
        if self._pending:
            self._count(self._pending)
            if not self._pending:
                return True
        return None

    def _count(self, pending: dict[str, Due]) -> None:
        """Take from ``pending`` what has sent enough since it was due."""
        counters = _settled(self._alertmanager)
        for kind, due in list(pending.items()):
            made, failed = counters.get(kind, (0.0, 0.0))
            if self.seconds() < due.after:
                self._before[kind] = (made, failed)
                continue
            made_before, failed_before = self._before.get(kind) or (self._first or {}).get(kind, (0.0, 0.0))
            if failed > failed_before and kind not in self._failing:
                self._failing.add(kind)
                count = failed - failed_before
                self._tell("failing", f"{kind}: {count:g} requests failed; Alertmanager's log says why")
            if (made - made_before) - (failed - failed_before) >= due.count:
                self._tell("sent", f"{kind}, {self.seconds():.1f} s after it was posted")
                del pending[kind]

    def give_up(self, wait: float) -> None:
        if self._pending is None:
            self._tell("not sent", f"Alertmanager has taken no notice of it for {wait:g} s")
            return
        for kind in self._pending:
            first, before = (self._first or {}).get(kind, (0.0, 0.0)), self._before.get(kind)
            if kind in self._failing:
                why = "it has failed so far"
            elif before and before[0] > first[0]:
                why = (
                    "what it sent before this group's wait was over was another alert's, or the group was still"
                    " open from a test before (then try again in five minutes)"
                )
            else:
                why = "the route waits longer (--wait), or is muted now"
            self._tell("not sent", f"nothing through {kind} within {wait:g} s: {why}")


def _ours(alertmanager: Alertmanager, alert: Drill) -> dict[str, Any] | None:
    found = alertmanager.alerts(f'alertname="{alert.name}"', '{}="{}"'.format(*TEST_LABEL))
    return next((each for each in found if each["labels"] == alert.labels), None)


def _tell_route(
    alertmanager: Alertmanager,
    there: Mapping[str, Any],
    config: Mapping[str, Any],
    tell: Callable[[str, str], None],
) -> dict[str, Due]:
    """Say which receivers take it and with which alerts it is grouped; what each integration has to send."""
    through: dict[str, Due] = {}
    by_receiver = {route.receiver: route for route in routes(config, there["labels"])}
    groups = [
        group
        for group in alertmanager.groups()
        if any(each["fingerprint"] == there["fingerprint"] for each in group["alerts"])
    ]
    for receiver in [each["name"] for each in there["receivers"]]:
        kinds = integrations(config, receiver)
        group = next((each for each in groups if each["receiver"]["name"] == receiver), None)
        shared = len(group["alerts"]) - 1 if group else 0
        route = by_receiver.get(receiver)
        wait = route.wait if route and not shared else 0.0
        for kind, count in kinds.items():
            so_far = through.get(kind, Due(0, wait))
            through[kind] = Due(so_far.count + count, min(so_far.after, wait) - (_EARLY if wait else 0.0))
        grouped = f"; grouped by {_pairs(group['labels'])}" if group and group["labels"] else ""
        after = f"; sends after {route.wait:g} s" if route else ""
        if shared:
            after = f"; {shared} others are in that group: sends at its next interval"
        if route and route.intervals:
            after += f"; muted or active by {', '.join(route.intervals)}"
        tell("route", f"receiver {receiver} ({', '.join(kinds) or 'sends nowhere'}){grouped}{after}")
    return through


def _tell_held_back(
    alertmanager: Alertmanager, there: Mapping[str, Any], tell: Callable[[str, str], None]
) -> None:
    status = there["status"]
    for silence in status.get("silencedBy") or []:
        found = alertmanager.silence(silence)
        by, until = found.get("createdBy", "?"), found.get("endsAt", "?")
        tell("held back", f"silence {silence} of {by} until {until}: {found.get('comment', '')}")
    inhibitors = status.get("inhibitedBy") or []
    if inhibitors:
        by_fingerprint = {each["fingerprint"]: each["labels"] for each in alertmanager.alerts()}
        for fingerprint in inhibitors:
            labels = by_fingerprint.get(fingerprint, {})
            tell("held back", f"inhibited by {_pairs(labels) or fingerprint}")
    for muted in status.get("mutedBy") or []:
        tell("held back", f"the route is muted now by the time interval {muted}")


def _counters(alertmanager: Alertmanager) -> Counters | None:
    try:
        return alertmanager.sent()
    except AlertmanagerError:
        return None


def _settled(alertmanager: Alertmanager) -> Counters:
    """Counters that stand still: a failed request is counted as made first, and as failed a moment later."""
    counters = alertmanager.sent()
    time.sleep(0.05)
    return {kind: (made, alertmanager.sent()[kind][1]) for kind, (made, _) in counters.items()}


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def _stamp(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
