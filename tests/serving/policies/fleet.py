"""Replicas, requests and a small world with failures, for the tests of policies."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from serving.fleet.replica import Replica
from serving.router import policies
from serving.router.policies.eligible import Eligible


@dataclass
class Request:
    """As a policy sees an exchange."""

    session: int = 0
    work: float = 300.0
    output_tokens: int = 200


def fleet(size: int) -> list[Replica]:
    replicas = []
    for i in range(size):
        r = Replica(f"replica-{i}", f"http://127.0.0.1:{8100 + i}", "127.0.0.1", 8100 + i)
        r.enter("ready", "")
        replicas.append(r)
    return replicas


def eligible(replicas: Iterable[Replica]) -> Eligible:
    those = Eligible()
    for r in replicas:
        those.add(r)
    return those


def policy(name: str, replicas: list[Replica]) -> policies.Policy:
    chosen = policies.load(name)
    chosen.set_replicas(replicas)
    return chosen


def busy(replica: Replica, requests: int, work: float = 300.0) -> None:
    """As if ``requests`` more were in flight."""
    first = len(replica.attempts)
    replica.attempts.update(range(first, first + requests))
    replica.work += requests * work


def traffic_with_a_failing_one(
    name: str, size: int, gap: float, seconds: float, requests: int, keys: Iterable[int]
) -> tuple[Counter[str], list[Replica]]:
    """Who got how many: replica-0 fails each request at once, the others answer after ``seconds``; one request
    every ``gap`` seconds. A failure adds the request's work to the penalty, which halves every 2 s."""
    replicas = fleet(size)
    chooser, those = policy(name, replicas), eligible(replicas)
    got: Counter[str] = Counter()
    open_requests: list[tuple[float, int, Replica, Request]] = []
    sessions = iter(keys)
    for i in range(requests):
        now = i * gap
        while open_requests and open_requests[0][0] <= now:
            _, _, r, done = heapq.heappop(open_requests)
            r.attempts.discard(done_id(done))
            r.work -= done.work
        replicas[0].penalty *= 0.5 ** (gap / 2.0)
        request = Request(session=next(sessions))
        r = chooser.choose(request, those, ())
        assert r is not None
        got[r.name] += 1
        if r is replicas[0]:
            r.penalty += max(request.work, 100.0)
        else:
            r.attempts.add(done_id(request))
            r.work += request.work
            heapq.heappush(open_requests, (now + seconds, i, r, request))
    for _, _, r, done in open_requests:
        r.attempts.discard(done_id(done))
        r.work -= done.work
    return got, replicas


def done_id(request: Request) -> int:
    return id(request)
