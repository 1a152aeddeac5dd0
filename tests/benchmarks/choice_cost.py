"""Nanoseconds of one choice of a replica, by policy and number of replicas.

    .venv/bin/python tests/benchmarks/choice_cost.py

All replicas are eligible and carry loads between 2,000 and 4,000 tokens; every request has its own session, of
800 input tokens, where the policy looks at one. Of several rounds the fastest counts: other programs on the machine only add to it.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2]))

from serving.fleet.replica import Replica
from serving.router import policies
from serving.router.policies.eligible import Eligible

SIZES = (2, 12, 128, 3072)
CHOICES = 1000
ROUNDS = 60


def fleet(size: int) -> list[Replica]:
    rng = random.Random(size)
    replicas = []
    for i in range(size):
        r = Replica(f"replica-{i}", f"http://127.0.0.1:{8100 + i}", "127.0.0.1", 8100 + i)
        r.enter("ready", "")
        r.work = float(rng.randrange(1000, 2000))
        r.others_work = float(rng.randrange(1000, 2000))
        r.penalty = 0.0
        r.weight = 1.0
        r.others = rng.randrange(8)
        r.attempts.update(range(rng.randrange(8)))
        replicas.append(r)
    return replicas


def prepared(name: str, size: int) -> Callable[[], float]:
    """A function that makes CHOICES choices and returns the nanoseconds of one."""
    replicas = fleet(size)
    policy = policies.load(name)
    policy.set_replicas(replicas)
    eligible = Eligible()
    for r in replicas:
        eligible.add(r)
    rng = random.Random(7)
    sessions = name in ("hybrid", "consistent_hash")
    exchanges = [
        SimpleNamespace(session=rng.getrandbits(64) if sessions else 0, work=600, output_tokens=200)
        for _ in range(CHOICES)
    ]
    choose = policy.choose

    def once() -> float:
        began = time.perf_counter_ns()
        for exchange in exchanges:
            choose(exchange, eligible, ())
        return (time.perf_counter_ns() - began) / CHOICES

    return once


def main() -> None:
    print(f"{'ns per choice':<18}" + "".join(f"{size:>9,}" for size in SIZES) + "   3,072 : 12")
    for name in policies.NAMES:
        choices = {size: prepared(name, size) for size in SIZES}
        best = dict.fromkeys(SIZES, float("inf"))
        for _ in range(ROUNDS):  # sizes in turn, so that a busy moment of the machine meets all of them
            for size, once in choices.items():
                best[size] = min(best[size], once())
        cells = "".join(f"{best[size]:9.0f}" for size in SIZES)
        print(f"{name:<18}{cells}{best[3072] / best[12]:13.2f}")


if __name__ == "__main__":
    main()
