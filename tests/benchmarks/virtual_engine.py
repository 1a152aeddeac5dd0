"""An engine in virtual time, for tests/benchmarks/policies.py: hundreds of them for minutes in seconds.

The rules are those of serving/engines/simulation/scheduler.py: requests run first come, first served, up to
``max_num_seqs`` and while there is KV cache; a step gives every running request a token and spends what is left
of its token budget on prompts, in pieces; when the cache runs out the youngest request is put back and
computed again. Prompts share what is cached of an earlier one (prefix cache, least recently used out first).
Steps in which nothing but decoding happens are taken many at a time.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Profile:
    """An 8B model in bf16 on a GPU of 48 GB and 0.86 TB/s, roughly. Seconds, tokens."""

    prefill_tokens_per_second: float = 6000.0
    step: float = 0.020  # reading the weights
    step_per_request: float = 0.0001
    step_per_kv_token: float = 1.5e-7  # reading the cache: 128 KiB a token
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    kv_tokens: int = 160_000


class Job:
    """A request in an engine. prefixes: (key, tokens that it shares under the key), the longest last."""

    __slots__ = (
        "computed", "ends", "first", "generated", "hit", "last", "output", "owner", "prefixes", "prompt", "since",
    )  # fmt: skip

    def __init__(self, prompt: int, output: int, prefixes: list[tuple[int, int]], owner: Any) -> None:
        self.prompt = prompt
        self.output = output
        self.prefixes = prefixes
        self.owner = owner
        self.computed = 0  # of prompt + generated
        self.generated = 0
        self.hit = 0  # prompt tokens found in the cache
        self.since = 0  # the engine's step at which it began to decode
        self.ends = 0
        self.first = 0.0
        self.last = 0.0


class Engine:
    """``at(time, engine, version)`` is asked to call ``fire(version)`` then; ``first`` and ``done`` are told."""

    def __init__(
        self,
        profile: Profile,
        at: Callable[[float, Engine, int], None],
        first: Callable[[Job, float], None],
        done: Callable[[Job, float], None],
        slowdown: float = 1.0,
    ) -> None:
        self.p = profile
        self.at, self.first, self.done = at, first, done
        self.slowdown = slowdown
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self.decoding: list[tuple[int, int, Job]] = []  # heap by the step at which it ends
        self.order = 0
        self.steps = 0  # steps that decoded
        self.used = 0  # tokens of running requests in the cache
        self.cache: OrderedDict[int, int] = OrderedDict()
        self.cached = 0
        self.version = 0
        self.busy_until = 0.0
        self.jump = 0  # steps under way, all of them only decoding
        self.jump_began = 0.0
        self.step_seconds = 0.0
        self.chunks: list[tuple[Job, int]] = []
        self.busy = self.prefill_busy = 0.0
        self.preemptions = 0
        self.prompt_tokens = self.hit_tokens = 0

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def add(self, job: Job, now: float) -> None:
        self.waiting.append(job)
        if not self.busy_until:
            self._begin(now)
        elif self.jump > 1:
            # The step under way ends, then the newcomer is looked at.
            done = min(self.jump, int((now - self.jump_began) / self.step_seconds) + 1)
            if done < self.jump:
                self.jump = done
                self._schedule(self.jump_began + done * self.step_seconds)

    def _schedule(self, end: float) -> None:
        self.version += 1
        self.busy_until = end
        self.at(end, self, self.version)

    def _begin(self, now: float) -> None:
        p = self.p
        decoding = len(self.decoding)
        # Room for one token of every request that decodes; the youngest are put back until there is.
        while self.used + decoding > p.kv_tokens and decoding > 1:
            self._put_back()
            decoding = len(self.decoding)
        budget = p.max_num_batched_tokens - decoding
        self.chunks = []
        prefill = 0
        for job in self.prefilling:
            if budget <= 0:
                break
            tokens = min(budget, job.prompt + job.generated - job.computed)
            self.chunks.append((job, tokens))
            budget -= tokens
            prefill += tokens
        while budget > 0 and self.waiting and self.running < p.max_num_seqs:
            job = self.waiting[0]
            hit = self._lookup(job)
            tokens = min(budget, job.prompt + job.generated - hit)
            # Room for all of the prompt, not for the first piece as in scheduler.py: no piece has to wait later.
            if self.used + job.prompt + job.generated > p.kv_tokens:
                break
            self.waiting.popleft()
            self.prompt_tokens += job.prompt
            self.hit_tokens += hit
            job.hit = job.computed = hit
            self.used += job.prompt + job.generated
            self.prefilling.append(job)
            self.chunks.append((job, tokens))
            budget -= tokens
            prefill += tokens
        self._evict()
        seconds = 0.0
        if decoding:
            seconds = p.step + p.step_per_request * decoding + p.step_per_kv_token * self.used
        if self.chunks:
            seconds += prefill / p.prefill_tokens_per_second
            self.jump = 1
        elif decoding:
            room = (p.kv_tokens - self.used) // decoding
            self.jump = max(1, min(self.decoding[0][0] - self.steps, room))
        else:
            self.busy_until = 0.0
            return
        self.step_seconds = seconds * self.slowdown
        self.jump_began = now
        self.prefill_busy += prefill / p.prefill_tokens_per_second * self.slowdown
        self._schedule(now + self.jump * self.step_seconds)

    def fire(self, version: int, now: float) -> None:
        if version != self.version:
            return
        self.busy += now - self.jump_began
        if self.decoding:
            self.steps += self.jump
            self.used += self.jump * len(self.decoding)
        ended: list[Job] = []
        while self.decoding and self.decoding[0][0] <= self.steps:
            ended.append(heapq.heappop(self.decoding)[2])
        for job, tokens in self.chunks:
            job.computed += tokens
            if job.computed >= job.prompt + job.generated:
                self.prefilling.remove(job)
                for key, shared in job.prefixes:
                    self._remember(key, shared)
                job.generated += 1
                self.used += 1
                if not job.first:
                    job.first = now
                    self.first(job, now)
                if job.generated >= job.output:
                    ended.append(job)
                    continue
                job.since = self.steps - job.generated
                self.order += 1
                heapq.heappush(self.decoding, (self.steps + job.output - job.generated, self.order, job))
        for job in ended:
            job.generated = job.output
            self.used -= job.prompt + job.output
            if job.prefixes:
                self._remember(job.prefixes[-1][0], job.prompt + job.output)
            job.last = now
        self.busy_until = 0.0
        self._begin(now)
        for job in ended:
            self.done(job, now)

    def _put_back(self) -> None:
        """The youngest that decodes begins again."""
        at = max(range(len(self.decoding)), key=lambda i: self.decoding[i][1])
        job = self.decoding.pop(at)[2]
        heapq.heapify(self.decoding)
        job.generated = self.steps - job.since
        self.used -= job.prompt + job.generated
        job.computed = 0
        self.preemptions += 1
        self.waiting.appendleft(job)

    # --- prefix cache: of each key the longest that was computed ---

    def _lookup(self, job: Job) -> int:
        hit = 0
        for key, shared in job.prefixes:
            tokens = self.cache.get(key)
            if tokens is not None:
                self.cache.move_to_end(key)
                hit = max(hit, min(tokens, shared))
        return min(hit, job.prompt - 1) // 16 * 16

    def _remember(self, key: int, tokens: int) -> None:
        before = self.cache.pop(key, 0)
        self.cache[key] = max(before, tokens)
        self.cached += self.cache[key] - before

    def _evict(self) -> None:
        while self.cache and self.used + self.cached > self.p.kv_tokens:
            self.cached -= self.cache.popitem(last=False)[1]
