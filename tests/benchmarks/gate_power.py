"""How often the upgrade gate says pass, fail, inconclusive, when the truth is known: simulated runs, no server.

    .venv/bin/python tests/benchmarks/gate_power.py [--gates 200] [--noise 0.02] [--sigma 0.5]

A run's quantile is that of ``--requests`` lognormal latencies (its order statistic is drawn exactly, through the beta
distribution), times the run's own noise: ``--noise`` is its standard deviation, one draw a run, shared by all metrics
of the run. Three parts: one metric alone by three rules; the whole gate (27 metrics); intervals by Welch and by
bootstrap, how often the truth is inside.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[2]))

from loadtest._gate._compare import compare
from loadtest._gate._runs import QUANTILES, Group, Run
from loadtest._gate._stats import difference, least_requests

SIZES = ((3, 5_000), (5, 5_000), (5, 20_000), (10, 5_000), (10, 20_000))
LATENCIES = ("ttft", "tpot", "e2e")
WORKLOADS = ("chat", "long_document", "code")


def log_quantile(
    rng: np.random.Generator, quantile: float, requests: int, sigma: float, shape: tuple
) -> np.ndarray:
    """Logarithm of the nearest-rank quantile of ``requests`` lognormal values of median 1."""
    rank = math.ceil(quantile * requests)
    return sigma * stats.norm.ppf(rng.beta(rank, requests + 1 - rank, shape))


def single(rng: np.random.Generator, gates: int, noise: float, sigma: float) -> list[str]:
    lines = [
        "one metric, truly +5 %: caught by rule, % of gates (false alarms of A against A in brackets)",
        "",
    ]
    lines += [
        "| runs × requests | quantile | spread | Welch, 95 % two-sided | ratio > 1.05 and that | gate |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for runs, requests in SIZES:
        for quantile in QUANTILES:
            if requests < least_requests(quantile):
                continue
            told = []
            for change in (math.log(1.05), 0.0):
                logs = log_quantile(rng, quantile, requests, sigma, (gates * 5, 2, runs))
                logs = logs + rng.normal(0, noise, logs.shape)
                logs[:, 1] += change
                margin = math.log(1.05 if quantile < 0.999 else 1.2)
                found = [difference(list(a), list(b)) for a, b in logs]
                welch = [f.value > 0 and f.p < 0.025 for f in found]
                both = [w and f.value > math.log(1.05) for w, f in zip(welch, found, strict=True)]
                gate = [f.p < 0.05 and f.high >= margin for f in found]
                told.append([100 * np.mean(x) for x in (welch, both, gate)])
                spread = logs[:, 0].std(axis=1, ddof=1).mean()
            cells = " | ".join(f"{hit:.0f} ({false:.1f})" for hit, false in zip(*told, strict=True))
            lines.append(f"| {runs} × {requests:,} | {_name(quantile)} | {100 * spread:.1f} % | {cells} |")
    return lines


def whole(rng: np.random.Generator, gates: int, noise: float, sigma: float) -> list[str]:
    lines = [f"whole gate, 27 metrics, {gates} gates each: pass / fail / inconclusive, %", ""]
    lines += ["| runs × requests | A against A | all +5 % | chat +5 % | P99 of all +10 % | all +2 % |"]
    lines += ["|---|---|---|---|---|---|"]
    everything = {(w, m, q): 0.05 for w in WORKLOADS for m in LATENCIES for q in QUANTILES}
    truths = (
        {},
        everything,
        {k: v for k, v in everything.items() if k[0] == "chat"},
        {k: 0.10 for k in everything if k[2] >= 0.99},
        dict.fromkeys(everything, 0.02),
    )
    for runs, requests in SIZES:
        cells = []
        for truth in truths:
            seen = Counter(_gate(rng, runs, requests, noise, sigma, truth) for _ in range(gates))
            cells.append(" / ".join(f"{100 * seen[v] / gates:.0f}" for v in ("pass", "fail", "inconclusive")))
        lines.append(f"| {runs} × {requests:,} | " + " | ".join(cells) + " |")
    return lines


def _gate(
    rng: np.random.Generator,
    runs: int,
    requests: int,
    noise: float,
    sigma: float,
    truth: dict[tuple[str, str, float], float],
) -> str:
    sides = []
    for side in range(2):
        made = []
        for workload in WORKLOADS:
            for i in range(runs):
                shared = rng.normal(0, noise)
                times = {
                    (m, q): math.exp(
                        float(log_quantile(rng, q, requests, sigma, ())) + shared
                        + side * math.log1p(truth.get((workload, m, q), 0.0))
                    )
                    for m in LATENCIES
                    for q in QUANTILES
                }  # fmt: skip
                group = Group(requests, requests, None, times, dict.fromkeys(LATENCIES, requests))
                made.append(Run(Path(f"{workload}-{side}-{i}"), "", {workload: group}))
        sides.append(made)
    return compare(*sides).verdict


def coverage(rng: np.random.Generator, gates: int, noise: float, sigma: float) -> list[str]:
    """Two-sided 95 % intervals of the ratio at P99 of 5,000 requests: hierarchical bootstrap and Welch."""
    lines = ["two-sided 95 % intervals that hold the truth, P99 of 5,000 requests, %", ""]
    lines += ["| runs a side | Welch | hierarchical bootstrap |", "|---|---|---|"]
    requests, resamples, count = 5_000, 300, max(60, gates)
    rank = math.ceil(0.99 * requests) - 1
    for runs in (3, 5, 10):
        inside = [0, 0]
        for _ in range(count):
            values = np.sort(rng.normal(0, sigma, (2, runs, requests)), axis=2)
            values += rng.normal(0, noise, (2, runs, 1))
            logs = values[:, :, rank]
            found = difference(list(logs[0]), list(logs[1]))
            t = _half(found, runs)
            inside[0] += abs(found.value) <= t
            # Requests drawn again within a run: of sorted values, only the rank's place matters (beta again).
            picked = rng.integers(0, runs, (2, resamples, runs))
            places = rng.beta(rank + 1, requests - rank, picked.shape)
            index = np.minimum((places * requests).astype(int), requests - 1)
            again = np.stack([values[s][picked[s], index[s]] for s in range(2)]).mean(axis=2)
            low, high = np.quantile(again[1] - again[0], (0.025, 0.975))
            inside[1] += low <= 0 <= high
        lines.append(f"| {runs} | {100 * inside[0] / count:.0f} | {100 * inside[1] / count:.0f} |")
    return lines


def _half(found: object, runs: int) -> float:
    a, b = (s**2 / runs for s in found.spread)  # type: ignore[attr-defined]
    freedom = (a + b) ** 2 / (a**2 / (runs - 1) + b**2 / (runs - 1))
    return float(stats.t.ppf(0.975, freedom)) * math.sqrt(a + b)


def _name(quantile: float) -> str:
    return {0.5: "P50", 0.99: "P99", 0.999: "P999"}[quantile]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gates", type=int, default=200)
    parser.add_argument(
        "--noise", type=float, default=0.02, help="of a run, standard deviation of logarithms"
    )
    parser.add_argument(
        "--sigma", type=float, default=0.5, help="of latencies inside of a run, of logarithms"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    for part in (single, whole, coverage):
        print("\n".join(part(rng, options.gates, options.noise, options.sigma)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
