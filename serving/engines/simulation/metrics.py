"""What the simulated engine did, counted as vLLM counts it, in vLLM's buckets.

How it is written for Prometheus is in ``page.py``.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

from .scheduler import Observer, Request

# Buckets of vLLM 0.32 (vllm/v1/metrics/buckets.py) and of its HTTP instrumentator.
_TTFT: tuple[float, ...] = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
_TTFT += (80.0, 160.0, 640.0, 2560.0)
_ITL: tuple[float, ...] = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_LATENCY: tuple[float, ...] = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
_LATENCY += (960.0, 1920.0, 7680.0)
_STEP: tuple[float, ...] = (
    1.0,
    8.0,
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    16384.0,
)
_HTTP: tuple[float, ...] = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    3.5,
    4.0,
    4.5,
    5.0,
    7.5,
    10.0,
)
_HTTP += (30.0, 60.0)
_PREEMPTIONS: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_PARAMS_N: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 20.0)


class Histogram:
    """Counts by upper bound, as Prometheus has them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to ``largest``, as vLLM builds its token buckets from max_model_len."""
    bounds = [float(digit * 10**power) for power in range(len(str(largest))) for digit in (1, 2, 5)]
    return tuple(bound for bound in bounds if bound <= largest)


def escape(value: str) -> str:
    """A label value as the text format wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics(Observer):
    """Everything counted. labels, model_label: rendered labels that most families carry."""

    def __init__(self, model: str, max_model_len: int) -> None:
        tokens = _one_two_five(max_model_len)
        self.labels = f'engine="0",model_name="{escape(model)}"'
        self.model_label = f'model_name="{escape(model)}"'
        self.started = time.time()
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.success = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
        #: (handler, method, status class) -> requests
        self.http: dict[tuple[str, str, str], int] = {}
        self.http_seconds = Histogram(_HTTP)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.step_tokens = Histogram(_STEP)
        self.max_generation_tokens = Histogram(tokens)
        self.params_n = Histogram(_PARAMS_N)
        self.params_max_tokens = Histogram(tokens)
        self.ttft = Histogram(_TTFT)
        self.itl = Histogram(_ITL)
        self.time_per_token = Histogram(_ITL)
        self.e2e = Histogram(_LATENCY)
        self.queue = Histogram(_LATENCY)
        self.inference = Histogram(_LATENCY)
        self.prefill = Histogram(_LATENCY)
        self.decode = Histogram(_LATENCY)
        self.request_preemptions = Histogram(_PREEMPTIONS)
        self.prefill_computed = Histogram(tokens)

    def step(self, prompt_tokens: int, tokens: int) -> None:
        self.prompt_tokens += prompt_tokens
        if tokens:
            self.step_tokens.observe(tokens)

    def token(self, request: Request, now: float, previous: float) -> None:
        self.generation_tokens += 1
        if previous:
            self.itl.observe(now - previous)
        else:
            self.ttft.observe(now - request.arrived)

    def preempted(self) -> None:
        self.preemptions += 1

    def finished(self, request: Request, reason: str, now: float) -> None:
        self.success[reason] += 1
        prompt = len(request.prompt)
        decode = request.last_token - request.first_token
        self.request_prompt_tokens.observe(prompt)
        self.request_generation_tokens.observe(request.generated)
        self.max_generation_tokens.observe(request.generated)
        self.params_n.observe(1)
        self.params_max_tokens.observe(request.max_tokens)
        self.e2e.observe(now - request.arrived)
        self.queue.observe(request.scheduled - request.arrived)
        self.inference.observe(request.last_token - request.scheduled)
        self.prefill.observe(request.first_token - request.scheduled)
        self.decode.observe(decode)
        self.time_per_token.observe(decode / (request.generated - 1) if request.generated > 1 else 0.0)
        self.request_preemptions.observe(request.preemptions)
        self.prefill_computed.observe(prompt)

    def answered(self, handler: str, method: str, status: int, seconds: float) -> None:
        """An HTTP request has been answered. handler: the route, or ``none`` for an unknown one."""
        key = (handler, method, f"{status // 100}xx")
        self.http[key] = self.http.get(key, 0) + 1
        self.http_seconds.observe(seconds)
