"""A stored run as the gate needs it: quantiles, counts and what it was made with, from the run's folder.

Who writes the folder and what its numbers mean: ``_lib/_summary.py``. Where there is no ``summary.json`` the numbers
come from the requests themselves, by the same definitions.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LATENCIES = ("ttft", "tpot", "e2e", "itl")
#: Quantile -> its key in summaries.
QUANTILES = {0.5: "p50", 0.99: "p99", 0.999: "p999"}


class RunError(Exception):
    """A folder that is no run; the message says why."""


@dataclass(frozen=True)
class Group:
    """One profile in one run. times: (latency, quantile) -> seconds; counts: latency -> how many were measured."""

    offered: int
    completed: int
    attainment: float | None
    times: dict[tuple[str, float], float]
    counts: dict[str, int]


@dataclass(frozen=True)
class Run:
    """unusable: why its times are not used, empty if they are. groups: profile -> numbers.

    seconds: measured ones, by its summary; None where it has none.
    """

    folder: Path
    unusable: str
    groups: dict[str, Group]
    settings: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    seconds: float | None = None

    @property
    def name(self) -> str:
        return self.folder.name


def read(folder: Path) -> Run:
    """Raises RunError where it is no run's folder, or one of a later version."""
    settings = _json(folder / "run.json", needed=False)
    try:
        if (folder / "summary.json").is_file():
            return _from_summary(folder, _json(folder / "summary.json"), settings)
        if (folder / "requests.jsonl").is_file():
            return Run(folder, "", _from_records(folder / "requests.jsonl"), settings)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise RunError(
            f"{folder}: its numbers can't be read ({type(error).__name__}: {error}); measure it again"
        ) from None
    raise RunError(f"{folder} has neither summary.json nor requests.jsonl: give a run's folder")


def _json(path: Path, needed: bool = True) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        if needed:
            raise RunError(f"{path} is missing") from None
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} can't be read ({error})") from None
    if not isinstance(found, dict):
        raise RunError(f"{path} is no JSON object")
    return found


def _from_summary(folder: Path, summary: dict[str, Any], settings: dict[str, Any]) -> Run:
    if summary.get("version") != 1:
        raise RunError(f"{folder}/summary.json is of version {summary.get('version')}, this reads 1")
    verdict = summary.get("verdict")
    why = ""
    if summary.get("void"):
        why = "void: " + ("; ".join(map(str, summary.get("void_reasons") or ())) or "the client was too slow")
    elif verdict == "all_failed":
        why = "every request failed"
    elif verdict == "no_requests":
        why = "not one request ended"
    groups = {
        str(name): Group(
            int(group["offered"]),
            int(group["completed"]),
            # Without an objective, good is the same as completed; then only failures are compared.
            _number(group.get("attainment")) if _has_slo(summary) else None,
            {
                (latency, quantile): _time(value)
                for latency, numbers in group["latency"].items()
                if latency in LATENCIES and numbers
                for quantile, key in QUANTILES.items()
                if (value := numbers.get(key)) is not None
            },
            {k: int(v["count"]) for k, v in group["latency"].items() if k in LATENCIES and v},
        )
        for name, group in summary["profiles"].items()
    }
    started, seconds = _number(summary.get("started")), _number(summary.get("measured_seconds"))
    return Run(folder, why, groups, settings, started, seconds)


def _has_slo(summary: dict[str, Any]) -> bool:
    slo = summary.get("slo") or {}
    return any(slo.get(name) is not None for name in LATENCIES)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _time(value: Any) -> float:
    """Seconds. Raises ValueError for what no clock shows, TypeError for what is no number."""
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"a time of {seconds} s")
    return seconds


def _from_records(path: Path) -> dict[str, Group]:
    """The same from ``requests.jsonl``: measured phase, completed requests, nearest rank. A cut last line is left out."""
    offered: dict[str, int] = {}
    values: dict[str, dict[str, list[float]]] = {}
    completed: dict[str, int] = {}
    with path.open() as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if record["phase"] != "measured":
                continue
            profile = record["profile"]
            offered[profile] = offered.get(profile, 0) + 1
            kept = values.setdefault(profile, {name: [] for name in LATENCIES})
            if record["outcome"] != "ok":
                continue
            completed[profile] = completed.get(profile, 0) + 1
            for name in ("ttft", "tpot", "e2e"):
                if record.get(name) is not None:
                    kept[name].append(record[name])
            kept["itl"] += [gap / 1000 for gap in record.get("gaps") or ()]
    groups = {}
    for profile, kept in values.items():
        times = {
            (name, q): nearest_rank(sorted(found), q)
            for name, found in kept.items()
            if found
            for q in QUANTILES
        }
        counts = {name: len(found) for name, found in kept.items()}
        groups[profile] = Group(offered[profile], completed.get(profile, 0), None, times, counts)
    return groups


def nearest_rank(ordered: list[float], quantile: float) -> float:
    """The smallest value that at least this share of all lies at or below."""
    return ordered[max(0, math.ceil(round(quantile * len(ordered), 9)) - 1)]


def unlike(baseline: list[Run], candidate: list[Run]) -> list[str]:
    """Settings that differ among the runs of a workload, as lines; what a run does not say is not compared."""
    found = []
    asked: dict[str, dict[str, dict[str, None]]] = {}
    for run in [*baseline, *candidate]:
        for key, value in _asked(run.settings).items():
            if value not in (None, "", {}):
                workloads = asked.setdefault(key, {})
                workloads.setdefault(", ".join(sorted(run.groups)), {})[json.dumps(value)] = None
    for key, workloads in asked.items():
        for workload, values in workloads.items():
            if len(values) > 1:
                found.append(f"{key} of {workload or 'a run'} is {' and '.join(list(values)[:3])}")
    return found


def _asked(settings: dict[str, Any]) -> dict[str, Any]:
    """What decides how hard a run was, by its run.json."""
    arrivals, options = settings.get("arrivals"), settings.get("settings")
    arrivals, options = (x if isinstance(x, dict) else {} for x in (arrivals, options))
    names = ("max_tokens", "context", "shared_prefix", "trace")
    return {
        "arrivals": arrivals.get("kind"),
        "rate": arrivals.get("rate"),
        "slo": settings.get("slo"),
        **{name: options.get(name) for name in names},
    }


def twice(runs: list[Run]) -> str | None:
    """What is wrong if one of these runs is there twice, itself or as a copy (the same summary to its last digit)."""
    seen: dict[bytes, Path] = {}
    for run in runs:
        file = run.folder / "summary.json"
        key = file.read_bytes() if file.is_file() else str(run.folder).encode()
        other = seen.get(key)
        if other == run.folder:
            return f"{other} is on both sides; --self-check compares a side with itself"
        if other is not None:
            return (
                f"{other} and {run.folder} are one run and its copy, which would count twice: leave one out"
            )
        seen[key] = run.folder
    return None
