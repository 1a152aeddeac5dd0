"""The simulated engine in virtual time: what each step takes, who is in it, what the prefix cache saves."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from serving.engines.simulation import scheduler, sequence
from serving.engines.simulation.metrics import Metrics
from serving.engines.simulation.profile import Profile, Times
from serving.engines.simulation.scheduler import Engine
from serving.engines.simulation.sequence import Request
from serving.engines.simulation.text import Answer, Prompt


class VirtualClock:
    """Time that moves only when something is due."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []

    def at(self, due: float, callback: Callable[[Any], None], argument: Any = None) -> None:
        heapq.heappush(self._heap, (due, len(self._heap), callback, argument))

    def run(self, until: float = float("inf")) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, callback, argument = heapq.heappop(self._heap)
            callback(argument)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    virtual = VirtualClock()
    for module in (scheduler, sequence):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: virtual.now))
    return virtual


def profile(**more: Any) -> Profile:
    """Steps of 10 ms + 1 ms a decoding request + 0.1 ms a prompt token."""
    given: dict[str, Any] = {
        "max_model_len": 256,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 100,
        "kv_blocks": 65,
        "block_size": 16,
        "base_step_ms": 10,
        "decode_step_ms": {1: 11, 4: 14},
        "prefill_step_ms": {1: 10.1, 100: 20},
    }
    made = Profile(**given | more)
    made.check()
    return made


class Run:
    """An engine, and when each of its requests got its tokens (milliseconds after the start)."""

    def __init__(self, clock: VirtualClock, **more: Any) -> None:
        made = profile(**more)
        self.clock = clock
        self.start = clock.now
        self.metrics = Metrics(made.max_model_len)
        self.engine = Engine(made, Times(made), self.metrics, clock, Random(1))  # type: ignore[arg-type]
        self.times: list[list[float]] = []
        self.ends: list[str] = []

    def ask(self, prompt: Prompt, tokens: int, **more: Any) -> Request:
        mine: list[float] = []
        self.times.append(mine)

        def on_word(request: Request, word: str) -> None:
            mine.append(round((self.clock.now - self.start) * 1e3, 6))

        def on_end(request: Request, word: str, reason: str, stop_reason: str | None) -> None:
            on_word(request, word)
            self.ends.append(reason)

        request = Request(prompt, tokens, Answer(0, prompt), on_word, on_end, True, **more)
        self.engine.add(request)
        return request


def tokens(count: int, first: int = 0) -> Prompt:
    return list(range(first, first + count))


def test_a_step_takes_its_base_and_what_prompts_and_decoding_requests_add(clock: VirtualClock) -> None:
    run = Run(clock)
    run.ask(tokens(50), 3)
    clock.run()
    assert run.times == [[15, 26, 37]]  # 10 + 50 x 0.1, then twice 10 + 1
    assert run.ends == ["length"]


def test_a_request_that_comes_during_a_step_waits_for_its_end(clock: VirtualClock) -> None:
    run = Run(clock)
    run.ask(tokens(50), 4)
    clock.at(clock.now + 0.020, lambda _: run.ask(tokens(30, 100), 2))
    clock.run()
    # 15: first token. 26: a step of 11 in which the other came. 40: 10 + 1 + 30 x 0.1. 52: 10 + 2.
    assert run.times == [[15, 26, 40, 52], [40, 52]]


def test_a_long_prompt_is_computed_in_pieces_beside_the_others(clock: VirtualClock) -> None:
    run = Run(clock)
    run.ask(tokens(10), 5)
    clock.at(clock.now + 0.001, lambda _: run.ask(tokens(150, 100), 1))
    clock.run()
    # 11; then 99 prompt tokens beside one answer: 10 + 1 + 9.9; then the other 51: 10 + 1 + 5.1.
    assert run.times[0] == [11, 31.9, 48, 59, 70]
    assert run.times[1] == [48]


def test_long_contexts_make_steps_longer(clock: VirtualClock) -> None:
    run = Run(clock, decode_context_us=10, prefill_context_us=1000)
    run.ask(tokens(150), 2)
    clock.run()
    # 20 for the first hundred; 10 + 5 + 50 x 100 pairs x 1 us; 11 + 150 x 0.01.
    assert run.times == [[40, 52.5]]


def test_no_more_than_max_num_seqs_run_and_the_others_come_in_order(clock: VirtualClock) -> None:
    run = Run(clock, max_num_seqs=2, decode_step_ms={1: 11, 2: 12})
    for i in range(3):
        run.ask(tokens(10, 100 * i), 2)
    assert (len(run.engine.running), len(run.engine.waiting)) == (1, 2)  # the first started a step at once
    clock.run()
    # Second and third wait for the first step; the third has no place until the first is through.
    assert run.times == [[11, 23], [23, 35], [35, 46]]


def test_a_prompt_seen_before_is_not_computed_again(clock: VirtualClock) -> None:
    run = Run(clock)
    run.ask(tokens(50), 1)
    clock.run()
    run.ask(tokens(50), 1)
    clock.run()
    # Three full blocks of 16 are there; two tokens are left: 10 + 2 x 0.1.
    assert [t[-1] for t in run.times] == [15, 25.2]
    assert (run.metrics.prefix_queries, run.metrics.prefix_hits) == (100, 48)
    assert (run.metrics.prompt_computed, run.metrics.prompt_cached) == (52, 48)
    assert run.engine.blocks.usage == 0


def test_the_last_token_of_a_known_prompt_is_computed(clock: VirtualClock) -> None:
    run = Run(clock)
    for _ in range(2):
        run.ask(tokens(32), 1)
        clock.run()
    assert run.metrics.prefix_hits == 16  # not 32


def test_the_next_turn_of_a_conversation_finds_the_last_answer(clock: VirtualClock) -> None:
    run = Run(clock)
    first = run.ask(tokens(20), 30)
    clock.run()
    turn: Any = [*tokens(20), *first.answer.words(0, 30), "and", "?"]
    run.ask(turn, 1)
    clock.run()
    assert run.metrics.prefix_hits == 48  # 49 tokens were in the cache, the last one never was


def test_without_prefix_caching_nothing_is_found(clock: VirtualClock) -> None:
    run = Run(clock, prefix_caching=False)
    for _ in range(2):
        run.ask(tokens(50), 1)
        clock.run()
    assert run.metrics.prefix_hits == 0


def test_the_least_recently_used_blocks_go_first(clock: VirtualClock) -> None:
    run = Run(clock, kv_blocks=18)  # 17 usable
    for i in range(3):  # 6 + 6 + 6 blocks
        run.ask(tokens(96, 1000 * i), 1)
        clock.run()
    for i in (2, 1):
        run.ask(tokens(96, 1000 * i), 1)
        clock.run()
    assert run.metrics.prefix_hits == 160  # five blocks of each: the sixth ends with the last token
    run.ask(tokens(96), 1)
    clock.run()
    assert run.metrics.prefix_hits < 160 + 80


def test_short_of_blocks_the_youngest_is_put_back_and_all_finish(clock: VirtualClock) -> None:
    run = Run(clock, kv_blocks=18, prefix_caching=False)
    for i in range(3):
        run.ask(tokens(60, 1000 * i), 100)
    clock.run()
    assert [len(t) for t in run.times] == [100, 100, 100]
    assert run.metrics.preemptions >= 2
    assert run.times[0][-1] < run.times[1][-1] < run.times[2][-1]
    assert run.engine.blocks.usage == 0


def test_an_aborted_request_gives_its_blocks_back_at_once(clock: VirtualClock) -> None:
    run = Run(clock)
    request = run.ask(tokens(50), 100)
    clock.run(clock.now + 0.1)
    assert run.engine.blocks.usage > 0
    run.engine.abort(request)
    run.engine.abort(request)
    assert run.engine.blocks.usage == 0
    clock.run()
    assert run.engine.running == []


def test_blocks_are_never_lost_whatever_happens(clock: VirtualClock) -> None:
    """Random prompts with shared beginnings, ends, aborts and preemptions: afterwards every block is free."""
    source = Random(7)
    run = Run(clock, kv_blocks=20)
    asked: list[Request] = []
    for i in range(300):
        shared = source.choice((0, 16, 40))
        asked.append(
            run.ask([*tokens(shared), *tokens(source.randrange(1, 90), 1000 * i)], source.randrange(1, 60))
        )
        if source.random() < 0.3:
            run.engine.abort(source.choice(asked))
            run.engine.wake()
        clock.run(clock.now + source.random() / 20)
        assert 0 <= run.engine.blocks.free <= run.engine.blocks.total
        held = sum(request.blocks for request in run.engine.running)
        used = run.engine.blocks.total - run.engine.blocks.free
        assert used <= held <= used + sum(len(request.shared) for request in run.engine.running)
    clock.run()
    assert run.engine.blocks.free == run.engine.blocks.total
    assert (run.engine.running, len(run.engine.waiting)) == ([], 0)


def test_jitter_is_the_same_for_the_same_seed(clock: VirtualClock) -> None:
    runs = []
    for _ in range(2):
        run = Run(clock, jitter=0.1)
        run.ask(tokens(10), 20)
        clock.run()
        runs.append(run.times[0])
    steps = {round(b - a, 3) for a, b in zip(runs[0], runs[0][1:], strict=False)}
    assert len(steps) > 10
    assert all(5 < step < 17 for step in steps)
    assert [round(t, 3) for t in runs[0]] == [round(t, 3) for t in runs[1]]
