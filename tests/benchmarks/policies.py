"""Routing policies compared on simulated replicas, in virtual time: time to first token, SLO compliance, goodput.

    .venv/bin/python tests/benchmarks/policies.py [--rate 2.2] [--seeds 5] [--replicas 384] [--workers 4]

The policies, their sets of eligible replicas and the estimates of work are the router's own code; engines are
tests/benchmarks/virtual_engine.py. As in the router, several workers choose each for itself: of the others'
requests each knows what was so at the last refresh (20 ms), of the engines what they said up to 1 s ago. All
policies get the same requests. What is printed: mean over seeds and the 95 % confidence interval of it. "short" is all
but documents; "cached" the share of prompt tokens found in prefix caches; "busy" the share of time in which engines
work on anything, "prefill" on prompts; "unserved" requests were refused or had not ended a minute later;
"P99 more" the milliseconds that its P99 is above that of the first policy with the same requests.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from serving.fleet.replica import Replica
from serving.router import policies, work
from serving.router.policies.eligible import Eligible
from serving.router.policies.ring import seed_of
from serving.router.work import Estimator
from tests.benchmarks.policy_load import Load, Talk
from tests.benchmarks.virtual_engine import Engine, Job, Profile

THINK_SECONDS = 4.0
#: Seconds to the first token that are good, by kind, and seconds a token after it.
FIRST_TOKEN_SLO = {"chat": 1.0, "document": 4.0, "session": 1.0, "system": 1.0}
TOKEN_SLO = 0.1
LOAD_INTERVAL = 1.0
REFRESH = 0.02
WATERMARK, MAX_WAITING = 0.85, 32
RETRY, MAX_WAIT = 0.05, 5.0
#: Student's t for 95 %, by number of seeds.
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}


class Exchange:
    """What policies read, and what this benchmark needs to follow it."""

    __slots__ = (
        "arrived", "body", "held", "input_tokens", "kind", "max_tokens", "output", "output_tokens", "prefixes", "prompt",
        "replica", "session", "shadow", "talk", "work", "worker",
    )  # fmt: skip


class Worker:
    """A worker of the router: its own view of all replicas, its policy, its estimates."""

    def __init__(self, policy: str, names: list[str]) -> None:
        self.replicas = [Replica(name, "", "127.0.0.1", 1) for name in names]
        self.policy = policies.load(policy)
        self.policy.set_replicas(self.replicas)
        self.eligible = Eligible()
        for r in self.replicas:
            r.enter("ready", "")
            self.eligible.add(r)
        self.estimator = Estimator()


class Run:
    """One policy under one load."""

    def __init__(self, policy: str, load: Load, args: argparse.Namespace) -> None:
        self.args = args
        self.rng = random.Random(load.seed + 1)
        random.seed(load.seed)
        names = [f"replica-{i}" for i in range(args.replicas)]
        self.workers = [Worker(policy, names) for _ in range(args.workers)]
        for w in self.workers:
            w.estimator = Estimator(prefill_speed=args.prefill_speed)
            w.estimator.set_capacity(None, Profile().kv_tokens)
        slow = set(self.rng.sample(range(args.replicas), int(args.stragglers * args.replicas)))
        self.engines = [
            Engine(Profile(), self._at, self._first, self._done, 1.3 if i in slow else 1.0)
            for i in range(args.replicas)
        ]
        self.events: list[tuple[float, int, Any, Any, Any]] = []
        self.order = 0
        self.now = 0.0
        self.load = load
        self.results: list[tuple[str, float, float]] = []  # kind, first token, seconds per further token
        self.arrived = self.refused = 0
        self.marks: list[tuple[float, float, int, int]] = []
        self.begin, self.end = args.warm, args.warm + args.seconds

    def _push(self, when: float, what: Any, a: Any = None, b: Any = None) -> None:
        self.order += 1
        heapq.heappush(self.events, (when, self.order, what, a, b))

    def _at(self, when: float, engine: Engine, version: int) -> None:
        self._push(when, Engine.fire, engine, version)

    def run(self) -> None:
        for i in range(len(self.engines)):
            self._push(self.rng.random() * LOAD_INTERVAL, self._report, i)
        for w in self.workers:
            self._push(self.rng.random() * REFRESH, self._refresh, w)
        for when, kind, sizes in self.load.arrivals:
            self._push(when, self._arrive, kind, sizes)
        self._push(self.begin, self._mark)
        self._push(self.end, self._mark)
        stop = self.end + 60.0
        events = self.events
        while events:
            self.now, _, what, a, b = heapq.heappop(events)
            if self.now > stop:
                break
            if what is Engine.fire:
                a.fire(b, self.now)
            else:
                what(a, b)

    # --- the router ---

    def _arrive(self, kind: str, sizes: Any) -> None:
        x = Exchange()
        x.kind = kind
        x.arrived = self.now
        x.talk = None
        x.session = 0
        x.held = 0
        if kind == "session":
            talk: Talk = sizes
            x.talk = talk
            user, x.output = talk.turns.pop(0)
            later = talk.context > talk.app_tokens
            shared = talk.context
            talk.context += user
            x.prompt = talk.context
            talk.context += x.output
            x.prefixes = [(talk.app, talk.app_tokens), (talk.key, shared)]
            if later or self.args.turn1 == "hash":
                x.session = talk.key
            elif self.args.turn1 == "system":
                x.session = self._app_key(talk.app)
        else:
            x.prompt, x.output, app, app_tokens = sizes
            x.prefixes = []
            if app_tokens:
                x.prefixes = [(app, app_tokens)]
                x.session = self._app_key(app)
            elif self.args.turn1 == "hash":
                x.session = self.rng.getrandbits(63) | 1
        x.body = int(x.prompt * 4.4 * self.rng.lognormvariate(0, 0.12)) + 120
        x.max_tokens = self.rng.choice((None, None, 1024, 512, max(64, x.output)))
        x.output = min(x.output, x.max_tokens or x.output)
        if self.begin <= self.now < self.end:
            self.arrived += 1
        x.worker = self.rng.choice(self.workers)
        x.input_tokens, x.output_tokens, x.work = x.worker.estimator.estimate(
            None, "", x.body, x.max_tokens, None
        )
        self._dispatch(x)

    def _app_key(self, app: int) -> int:
        return seed_of(f"system prompt {app}")

    def _mark(self, *_: Any) -> None:
        """What the engines have done so far: seconds busy, of these with prompts, prompt tokens, of these cached."""
        engines = self.engines
        self.marks.append(
            (
                sum(e.busy for e in engines),
                sum(e.prefill_busy for e in engines),
                sum(e.prompt_tokens for e in engines),
                sum(e.hit_tokens for e in engines),
            )
        )

    def _dispatch(self, x: Exchange, _: Any = None) -> None:
        w = x.worker
        r = w.policy.choose(x, w.eligible, ())
        if r is None:
            if self.now - x.arrived > MAX_WAIT:
                if self.begin <= x.arrived < self.end:
                    self.refused += 1
                    self.results.append((x.kind, math.inf, math.inf))
            else:
                self._push(self.now + RETRY, self._dispatch, x)
            return
        x.replica = w.replicas.index(r) if r.index < 0 else r.index
        r.index = x.replica
        x.shadow = r
        r.attempts.add(x)
        x.held = x.work
        r.work += x.held
        self.engines[x.replica].add(Job(x.prompt, x.output, x.prefixes, x), self.now)

    def _first(self, job: Job, now: float) -> None:
        x = job.owner
        part = x.worker.estimator.prefill_part(x)
        x.held -= part
        x.shadow.work -= part

    def _done(self, job: Job, now: float) -> None:
        x = job.owner
        r = x.shadow
        r.attempts.discard(x)
        r.work -= x.held
        x.worker.estimator.learn(None, "", x.body, x.prompt, x.output)
        if self.begin <= x.arrived < self.end:
            per_token = (job.last - job.first) / (x.output - 1) if x.output > 1 else 0.0
            self.results.append((x.kind, job.first - x.arrived, per_token))
        if x.talk is not None and x.talk.turns and now < self.end:
            self._push(now + self.rng.expovariate(1 / THINK_SECONDS), self._arrive, "session", x.talk)

    def _report(self, i: int, _: Any) -> None:
        engine = self.engines[i]
        usage = engine.used / engine.p.kv_tokens
        for w in self.workers:
            r = w.replicas[i]
            r.running, r.waiting, r.kv_usage, r.tokens = engine.running, len(engine.waiting), usage, self.now
            if r.waiting > MAX_WAITING or usage > WATERMARK:
                w.eligible.discard(r)
            else:
                w.eligible.add(r)
        if self.now < self.end + 10:
            self._push(self.now + LOAD_INTERVAL, self._report, i)

    def _refresh(self, worker: Worker, _: Any) -> None:
        others = [w.replicas for w in self.workers if w is not worker]
        for i, r in enumerate(worker.replicas):
            count, work = 0, 0.0
            for replicas in others:
                count += len(replicas[i].attempts)
                work += replicas[i].work
            r.others, r.others_work = count, work
        if others and self.now < self.end + 10:
            self._push(self.now + REFRESH, self._refresh, worker)

    # --- what came of it ---

    def summary(self) -> dict[str, float]:
        firsts = sorted(first for _, first, _ in self.results)
        interactive = sorted(first for kind, first, _ in self.results if kind != "document")
        good = sum(
            first <= FIRST_TOKEN_SLO[kind] and token <= TOKEN_SLO for kind, first, token in self.results
        )
        busy, prefill, prompt, hit = (b - a for a, b in zip(*self.marks, strict=True))
        total = (self.end - self.begin) * len(self.engines)
        return {
            "P50 ms": 1e3 * firsts[len(firsts) // 2],
            "P99 ms": 1e3 * firsts[int(len(firsts) * 0.99)],
            "P99 short ms": 1e3 * interactive[int(len(interactive) * 0.99)],
            "SLO %": 100 * good / self.arrived,
            "good/s": good / self.args.seconds,
            "cached %": 100 * hit / prompt,
            "busy %": 100 * busy / total,
            "prefill %": 100 * prefill / total,
            "unserved": self.arrived - len(self.results) + self.refused,
        }


def parsed(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicas", type=int, default=384)
    parser.add_argument("--rate", type=float, default=2.2, help="requests per second and replica")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--first-seed", type=int, default=0, help="fresh ones show what was tuned to the others"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="measured, after --warm")
    parser.add_argument("--warm", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--stragglers", type=float, default=0.03, help="share of replicas that take 1.3 x as long"
    )
    parser.add_argument("--prefill-speed", type=float, default=work.PREFILL_SPEED, help="of the estimates")
    parser.add_argument(
        "--turn1",
        choices=("system", "least", "hash"),
        default="system",
        help="key of a session's first turn: its system prompt (as session.py), none, or its own",
    )
    parser.add_argument("--policies", nargs="*", default=list(policies.NAMES))
    return parser.parse_args(argv)


def interval(values: list[float]) -> str:
    """Mean and half of the 95 % confidence interval."""
    half = 0.0
    if len(values) > 1:
        half = T95.get(len(values), 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):9.1f} ±{half:5.1f}"


def main() -> None:
    args = parsed()
    print(
        f"{args.replicas} replicas, {args.rate:g} requests/s each, {args.workers} workers, "
        f"{args.seconds:g} s measured, {args.seeds} seeds from {args.first_seed}"
    )
    first: list[dict[str, float]] = []
    for name in args.policies:
        rows = []
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            load = Load(seed, args.rate * args.replicas, args.warm + args.seconds)
            run = Run(name, load, args)
            run.run()
            rows.append(run.summary())
        if not first:
            first = rows
            print(f"{'':16}" + "".join(f"{key:>16}" for key in [*rows[0], "P99 more"]))
        cells = [interval([row[key] for row in rows]) for key in rows[0]]
        cells.append(
            interval([row["P99 ms"] - other["P99 ms"] for row, other in zip(rows, first, strict=True)])
        )
        print(f"{name:16}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
