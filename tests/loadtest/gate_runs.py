"""Stored runs with known numbers, for the tests of the gate."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

LATENCY = {"ttft": 0.050, "tpot": 0.010, "e2e": 0.400}
SPREAD = {"p50": 1.0, "p99": 3.0, "p999": 5.0}


def write(
    folder: Path,
    profile: str = "chat",
    noise: float = 0.0,
    factors: dict[str, float] | None = None,
    count: int = 5000,
    failed: int = 0,
    attainment: float = 1.0,
    slo: dict[str, Any] | None = None,
    **summary: Any,
) -> Path:
    """A run's folder. noise: logarithm by which all its times are off. factors: quantile or ``ttft p99`` -> factor."""
    factors = factors or {}
    latency = {
        name: {"count": count}
        | {
            key: value * SPREAD[key] * math.exp(noise)
            * factors.get(key, 1.0) * factors.get(f"{name} {key}", 1.0)
            for key in SPREAD
        }
        for name, value in LATENCY.items()
    }  # fmt: skip
    group = {
        "offered": count + failed, "completed": count, "failed": failed, "unsent": 0, "open": 0,
        "good": int(attainment * (count + failed)), "attainment": attainment, "latency": latency,
    }  # fmt: skip
    told = {
        "version": 1, "run": folder.name, "profile": profile, "void": False, "void_reasons": [],
        "verdict": "passed", "exit_code": 0, "started": 1.0, "measured_seconds": 1250.0, "slo": slo or {}, "all": group,
        "profiles": {profile: group},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(told | summary))
    (folder / "run.json").write_text(json.dumps({"version": 1, "arrivals": {"kind": "poisson", "rate": 4.0}}))
    return folder


def side(
    folder: Path, name: str, runs: int = 5, noise: float = 0.02, seed: int = 0, **run: Any
) -> list[Path]:
    """Runs of one side that differ by ``noise`` (standard deviation), always the same ones for a seed."""
    draw = random.Random(f"{name} {seed}")
    return [write(folder / f"{name}-{i}", noise=draw.gauss(0, noise), **run) for i in range(runs)]
