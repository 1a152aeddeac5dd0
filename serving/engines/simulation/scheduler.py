"""The simulated engine: continuous batching over a KV cache of blocks, in steps that take time.

As vLLM's scheduler does it: requests run first come, first served, up to ``max_num_seqs`` at once and while
there are KV blocks; a step gives every running request a token, and spends what is left of its token budget
on prompts, in pieces; when the blocks run out, the youngest running request is put back and computed again
later. A request that comes while a step runs is looked at when it ends. How long a step takes says
``profile.py``; blocks and prefix cache are in ``blocks.py``. An idle engine costs nothing.
"""

from __future__ import annotations

import time
from collections import deque
from random import Random

from .blocks import Blocks, hashes_of
from .clock import Clock
from .profile import Profile, Times
from .sequence import Observer, Request

# A step that ended later than this (seconds) after it was due is not made up for.
_LATEST = 0.05


class Engine:
    """One engine. Not thread-safe; nothing here blocks."""

    def __init__(
        self, profile: Profile, times: Times, observer: Observer, clock: Clock, random: Random
    ) -> None:
        """profile: checked (``Profile.check``). random: of the jitter; may be shared."""
        self.profile = profile
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.blocks = Blocks(profile.kv_blocks - 1, profile.block_size, profile.prefix_caching)
        #: Steps take this many times longer; set by a fault.
        self.slowdown = 1.0
        #: Does nothing more while True; set by a fault.
        self.stuck = False
        self._times = times
        self._observer = observer
        self._clock = clock
        self._random = random
        self._due = 0.0  # when the step under way ends, or the last one ended
        self._busy = False  # a step is under way or being counted
        self._decoding: list[Request] = []  # of the step under way
        self._prefilling: list[tuple[Request, int]] = []  # and how many tokens of each

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)
        if not self._busy:
            self.wake()

    def abort(self, request: Request) -> None:
        """Forget a request at once and free its blocks; one that has ended already is no error."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._free(request)

    def wake(self) -> None:
        """Go on if there is work and no step under way."""
        if not self._busy and not self.stuck and (self.waiting or self.running):
            self._begin_step()

    def _begin_step(self) -> None:
        budget = self.profile.max_num_batched_tokens
        decoding: list[Request] = []
        prefilling: list[tuple[Request, int]] = []
        context = pairs = prefill = 0
        at_start = self.running.copy()
        for request in at_start:
            if budget == 0:
                break
            computed = request.computed
            if request.known - computed == 1 and request.generated:  # the usual case: it decodes
                if computed >= request.room and not self._grow(request, 1):
                    continue
                decoding.append(request)
                context += computed
                budget -= 1
                continue
            if not request.room:  # put back a moment ago, for an older one
                continue
            tokens = min(budget, request.known - computed)
            if self._grow(request, tokens):
                prefilling.append((request, tokens))
                pairs += tokens * computed
                prefill += tokens
                budget -= tokens
        if len(self.running) < len(at_start):
            # As in vLLM: nobody is let in during a step that put somebody back. One who was put back may have
            # been given work in this step before: that is void.
            decoding = [request for request in decoding if request.room]
            prefilling = [(request, tokens) for request, tokens in prefilling if request.room]
            budget = 0
        while budget and self.waiting and len(self.running) < self.profile.max_num_seqs:
            request = self.waiting[0]
            if not self._enter(request, budget):
                break
            tokens = min(budget, request.known - request.computed)
            prefilling.append((request, tokens))
            pairs += tokens * request.computed
            prefill += tokens
            budget -= tokens
        if not decoding and not prefilling:
            return
        times = self._times
        seconds = times.decode[len(decoding)] + context * times.decode_context
        if prefill:
            seconds += times.prefill[prefill] + pairs * times.prefill_context
        if times.jitter:
            seconds *= max(0.2, 1.0 + self._random.gauss(0.0, times.jitter))
        # From when the last step was due, not from when it was served: the rate stays right though timers
        # come late (uvloop's have whole milliseconds).
        now = time.monotonic()
        start = self._due if 0.0 <= now - self._due < _LATEST else now
        self._due = start + seconds * self.slowdown
        self._decoding, self._prefilling = decoding, prefilling
        self._busy = True
        self._clock.at(self._due, self._end_step)

    def _enter(self, request: Request, budget: int) -> bool:
        """Let the first waiting request run, with what the prefix cache has of it; False if blocks are short."""
        blocks, size = self.blocks, self.blocks.size
        hits = unused = 0
        if blocks.caching:
            if request.hashes is None:
                request.hashes = hashes_of(request.prompt, size)
            # The last token is always computed: the next one comes from it.
            hits, unused = blocks.found(request.hashes, (request.known - 1) // size)
        tokens = min(budget, request.known - hits * size)
        needed = -(-(hits * size + tokens) // size) - hits
        if needed + unused > blocks.free:
            return False
        if hits and request.hashes is not None:
            request.shared = request.hashes[:hits]
            blocks.share(request.shared)
        blocks.take(needed)
        request.computed = hits * size
        request.blocks = hits + needed
        request.room = request.blocks * size
        self.waiting.popleft()
        self.running.append(request)
        if not request.scheduled:
            request.scheduled = time.monotonic()
            request.cached = request.computed
            self._observer.admitted(request)
        return True

    def _end_step(self, _: object) -> None:
        self._busy = False
        if self.stuck:  # the step never ends; its work is done again when the engine comes back
            return
        # Who gets a token may abort or add requests: no new step before this one is counted.
        self._busy = True
        now = time.monotonic()
        observer = self._observer
        previous = 0.0
        prompt_tokens = tokens = same = 0
        for request in self._decoding:
            if not request.room:  # aborted while the step ran
                continue
            tokens += 1
            request.computed += 1
            if request.last_token == previous:
                same += 1
            else:
                if same:
                    observer.tokens(same, now - previous)
                previous, same = request.last_token, 1
            request.last_token = now
            self._emit(request, now)
        if same:
            observer.tokens(same, now - previous)
        for request, count in self._prefilling:
            if not request.room:
                continue
            request.computed += count
            if self.blocks.caching:
                self._publish(request)
            if request.computed < request.known:
                continue
            tokens += request.max_tokens > 0
            before, request.last_token = request.last_token, now
            if before:  # computed again after it was put back
                observer.tokens(1, now - before)
            else:
                request.first_token = now
                prompt_tokens += len(request.prompt) - request.cached
                observer.first_token(request, now)
            self._emit(request, now)
        observer.step(prompt_tokens, prompt_tokens + tokens)
        self._busy = False
        self.wake()
        if not self._busy:
            self._due = 0.0  # idle: the next step starts when somebody comes

    def _emit(self, request: Request, now: float) -> None:
        position = request.generated
        if request.stop and self._stopped(request, now):
            return
        if position + 1 < request.limit:
            request.generated = position + 1
            request.known += 1
            if request.on_word is not None:
                request.on_word(request, request.answer.word(position))
            return
        word = request.answer.word(position) if request.reason == "length" else ""
        self._end(request, word, None, now)

    def _stopped(self, request: Request, now: float) -> bool:
        """Whether the next word completes one of its stop strings; then it has ended before it."""
        word, before = request.answer.word(request.generated), len(request.text)
        request.text += word
        for wanted in request.stop:
            found = request.text.find(wanted, max(0, before - len(wanted)))
            if found >= 0:
                request.reason = "stop"
                self._end(request, request.text[before:found], wanted, now)
                return True
        return False

    def _end(self, request: Request, word: str, stop_reason: str | None, now: float) -> None:
        if request.max_tokens:
            request.generated += 1
        self.running.remove(request)
        self._free(request)
        self._observer.finished(request, now)
        request.on_end(request, word, request.reason, stop_reason)

    def _grow(self, request: Request, tokens: int) -> bool:
        """Get the blocks that ``tokens`` more tokens of ``request`` need, putting back younger requests until
        there are enough; False if ``request`` itself was put back."""
        size = self.blocks.size
        needed = -(-(request.computed + tokens) // size) - request.blocks
        if needed <= 0:
            return True
        if self.blocks.caching:
            self._publish(request)
        while not self.blocks.take(needed):
            youngest = self.running.pop()
            self._free(youngest)
            youngest.preemptions += 1
            self.waiting.appendleft(youngest)
            self._observer.preempted()
            if youngest is request:
                return False
        request.blocks += needed
        request.room = request.blocks * size
        return True

    def _publish(self, request: Request) -> None:
        """Let others share the blocks that ``request`` has filled."""
        size, hashes = self.blocks.size, request.hashes
        if hashes is None:
            return
        full = request.computed // size
        if full > len(hashes):  # blocks of its answer: a later turn of the conversation begins with them
            start = len(hashes) * size
            prompt = request.prompt[start:]
            words = request.answer.words(
                max(0, start - len(request.prompt)), full * size - len(request.prompt)
            )
            previous = hashes[-1:]  # the hash before is all that the next one depends on
            for at in range(0, (full - len(hashes)) * size, size):
                value = hash((previous[0] if previous else 0, *[*prompt, *words][at : at + size]))
                hashes.append(value)
                previous = [value]
        done = len(request.shared)
        for value in hashes[done:full]:
            if not self.blocks.publish(value):
                break  # another request filled the same at the same time; ours stay private from here on
            request.shared.append(value)

    def _free(self, request: Request) -> None:
        self.blocks.give_back(request.shared, request.blocks - len(request.shared))
        request.shared = []
        request.blocks = request.room = request.computed = 0
