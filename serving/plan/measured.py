"""Replicas for a rate, from what a load test measured: the folder of a run of ``locust -f loadtest/``.

A run says what its replicas did with its requests on its machines; that they would do so n times over is an
assumption and is printed with the answer.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .number import Number, PlanError

#: More than what was measured: bursts, a replica that restarts, requests that differ from the run's.
HEADROOM = 1.25
LATENCIES = ("ttft", "itl", "tpot", "e2e")
_QUANTILES = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99", 0.999: "p999"}


@dataclass(frozen=True)
class Measured:
    """replicas: for the rate, spare ones in it. notes: what the answer rests on, worst first."""

    per_replica: Number
    replicas: Number
    tokens: str
    notes: tuple[str, ...]


def from_run(
    folder: Path,
    rate: float,
    slo: dict[str, float],
    attainment: float,
    replicas: int | None,
    headroom: float,
    spare: int,
) -> Measured:
    """slo: latency -> seconds, empty: the run's own objectives. Raises PlanError where the run can't answer."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
        everything: dict[str, Any] = summary["all"]
        completed, measured_rate = int(everything["completed"]), float(everything["rate"])
        reached = None if everything.get("attainment") is None else float(everything["attainment"])
        latency = {
            name: {key: float(value) for key, value in told.items() if value is not None}
            for name, told in (everything.get("latency") or {}).items()
        }
        offered = int(everything.get("offered") or 0)
        mean = [int(everything.get(k) or 0) / max(1, completed) for k in ("input_tokens", "output_tokens")]
        seen = [r for r in summary.get("replicas") or {} if r not in ("", "unknown", "null", "None")]
        void = "; ".join(map(str, summary.get("void_reasons") or ())) if summary.get("void") else None
    except FileNotFoundError:
        raise PlanError(
            f"--run {folder}: no summary.json in it; give the folder of a load test's run"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PlanError(
            f"--run {folder}/summary.json can't be read ({type(error).__name__}: {error})"
        ) from None
    if void is not None:
        raise PlanError(f"--run {folder}: void, its client was too slow ({void})")
    if completed <= 0 or not 1e-9 < measured_rate < 1e9:
        raise PlanError(f"--run {folder}: not one request completed in it")
    there = replicas or len(seen)
    if not there:
        raise PlanError(f"--run {folder} does not say how many replicas answered: give --run-replicas")
    share = completed / offered if offered else 1.0
    good = _good_rate(folder, share, measured_rate, slo, attainment, reached, latency)
    per_replica = Number("rate of a replica", good.value / there, f"{good.how} ÷ {there} replicas")
    needed = math.ceil(rate * headroom / per_replica.value - 1e-9)
    total = Number(
        "replicas",
        needed + spare,
        f"{rate:g}/s × {headroom:g} headroom ÷ {per_replica.value:.4g}/s, rounded up, + {spare} spare",
    )
    notes = [
        f"assumed: {needed + spare} replicas do {(needed + spare) / there:.3g} times what {there} did, on the same GPUs, "
        "with requests of the same lengths and as many prefix-cache hits",
        f"the run was offered {measured_rate:.4g}/s and held the objective; the limit lies at or above that "
        "(a step search finds it)",
    ]
    arrivals = _settings(folder).get("arrivals")
    if isinstance(arrivals, dict) and arrivals.get("kind") == "closed":
        notes.insert(
            0,
            "the run was a closed loop: users who wait ask less, an open loop shows longer waits at this rate",
        )
    return Measured(per_replica, total, f"{mean[0]:.0f} tokens in, {mean[1]:.0f} out, mean", tuple(notes))


def _good_rate(
    folder: Path,
    share: float,
    rate: float,
    slo: dict[str, float],
    attainment: float,
    reached: float | None,
    latency: dict[str, dict[str, float]],
) -> Number:
    """The run's rate, where enough of it was good. share: completed of the offered requests."""
    if not slo:
        if reached is None:
            raise PlanError(f"--run {folder} has no attainment: give --slo, like ttft=1s")
        if reached < attainment:
            raise PlanError(
                f"--run {folder}: {100 * reached:.2f} % of requests were good, {100 * attainment:g} % are asked for "
                "(--attainment): measure at a lower rate"
            )
        return Number("rate", rate, f"{rate:.4g}/s completed with {100 * reached:.2f} % good")
    if share < attainment:
        raise PlanError(
            f"--run {folder}: {100 * share:.2f} % of requests completed, {100 * attainment:g} % are asked for"
        )
    # Latencies are of completed requests, and each objective may be missed by others: all who miss or fail together
    # must be no more than the attainment allows.
    needed = 1 - (1 - attainment / share) / len(slo)
    quantile = next((q for q in _QUANTILES if q >= needed - 1e-9), None)
    if quantile is None:
        raise PlanError(
            f"--attainment {attainment:g}: with {100 * share:.2f} % completed it takes the quantile {needed:.5f}, and "
            "quantiles of a run end at 0.999"
        )
    key = _QUANTILES[quantile]
    told = []
    for name, limit in slo.items():
        value = (latency.get(name) or {}).get(key)
        if value is None:
            raise PlanError(f"--slo {name}: the run has no {key} of it")
        if value > limit:
            raise PlanError(
                f"--slo {name}={limit:g}s: in the run {key.upper()} was {value:.4g} s: measure at a lower rate"
            )
        told.append(f"{name} {key.upper()} {value:.3g} s <= {limit:g} s")
    return Number("rate", rate, f"{rate:.4g}/s completed with {', '.join(told)}")


def _settings(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def parse_slo(text: str) -> dict[str, float]:
    """``ttft=1s,tpot=50ms`` as seconds. Raises PlanError."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        factor = 0.001 if value.endswith("ms") else 1.0
        try:
            seconds = float(value.removesuffix("ms").removesuffix("s")) * factor
        except ValueError:
            seconds = 0.0
        if name.strip() not in LATENCIES or not 0 < seconds < math.inf:
            raise PlanError(f"--slo {part}: {', '.join(LATENCIES)} with a time, like ttft=1s,tpot=50ms")
        found[name.strip()] = seconds
    return found
