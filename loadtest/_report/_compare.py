"""A run beside its baseline: ratios of its numbers, and what else differed between the two.

One run against one: what is due to chance is not told apart here. That is the gate's (``exaserve gate``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtest._report._definitions import LATENCIES, NUMBERS, QUANTILES

#: Ratios at which a row is marked: worse by so much, and better by so much.
WORSE, MUCH_WORSE = 1.05, 1.2
#: What of run.json makes two runs incomparable where it differs, and how people call it.
SETTINGS = {
    "host": "address",
    "model": "model",
    "profile": "profile",
    "arrivals": "arrivals",
    "users": "users",
    "workers": "processes of the client",
    "slo": "objectives",
    "attainment": "attainment asked for",
    "warmup": "warm-up",
    "gpus": "GPUs",
    "versions": "versions",
    "machine": "machine",
}
#: Options of a run that change what is sent, in ``settings`` of run.json.
OPTIONS = ("max_tokens", "context", "shared_prefix", "turns", "think", "chinese", "mix", "request_timeout")


@dataclass(frozen=True, slots=True)
class Row:
    """One number of both. better: "low", "high" or "". ratio: run ÷ baseline, None where that can't be said."""

    group: str
    name: str
    quantile: str
    unit: str
    better: str
    run: float | None
    baseline: float | None

    @property
    def ratio(self) -> float | None:
        return self.run / self.baseline if self.run is not None and self.baseline else None

    @property
    def mark(self) -> str:
        """ "worse", "bad", "better" or "": how a reader's eye is led. Not a verdict."""
        if self.ratio is None or self.ratio <= 0 or not self.better:
            return ""
        worse = self.ratio if self.better == "low" else 1 / self.ratio
        if worse >= MUCH_WORSE:
            return "bad"
        return "worse" if worse >= WORSE else "better" if worse <= 1 / WORSE else ""


def rows(run: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[Row]:
    """Everything of all profiles together, then the latencies of each profile that both have."""
    found = _numbers("all", run["all"], baseline["all"])
    found += _latencies("all", run["all"], baseline["all"])
    there = baseline.get("profiles") or {}
    mine = run.get("profiles") or {}
    if len(mine) > 1 or set(mine) != set(there):
        for name, group in mine.items():
            if name in there:
                found += _latencies(name, group, there[name])
    return found


def _numbers(name: str, run: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[Row]:
    return [
        Row(name, key, "", meaning.unit, meaning.better, _number(run.get(key)), _number(baseline.get(key)))
        for key, meaning in NUMBERS.items()
        if _number(run.get(key)) is not None or _number(baseline.get(key)) is not None
    ]


def _latencies(name: str, run: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[Row]:
    found = []
    for latency, meaning in LATENCIES.items():
        mine, its = ((group.get("latency") or {}).get(latency) or {} for group in (run, baseline))
        if not mine.get("count") and not its.get("count"):
            continue
        for quantile in ("mean", *QUANTILES):
            values = _number(mine.get(quantile)), _number(its.get(quantile))
            found.append(Row(name, latency, quantile, meaning.unit, meaning.better, *values))
    return found


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def differences(run: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what, in the run, in the baseline) of the settings that differ. Of run.json of both."""
    found = []
    for key, title in SETTINGS.items():
        mine, its = run.get(key), baseline.get(key)
        if mine != its:
            found += _apart(title, mine, its)
    mine_set, its_set = run.get("settings") or {}, baseline.get("settings") or {}
    for key in OPTIONS:
        if mine_set.get(key) != its_set.get(key):
            found.append((f"--{key.replace('_', '-')}", told(mine_set.get(key)), told(its_set.get(key))))
    return found


def _apart(title: str, mine: Any, its: Any) -> list[tuple[str, str, str]]:
    """Of two objects only the keys that differ."""
    if isinstance(mine, Mapping) and isinstance(its, Mapping):
        keys = [key for key in (*mine, *(k for k in its if k not in mine)) if mine.get(key) != its.get(key)]
        return [(f"{title}: {key}", told(mine.get(key)), told(its.get(key))) for key in keys]
    return [(title, told(mine), told(its))]


def told(value: Any) -> str:
    """A setting as text."""
    if value is None or value == "":
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={told(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(told(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
