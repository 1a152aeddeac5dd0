"""What the simulated engine did, counted as vLLM counts it, in vLLM's buckets.

How it is written for Prometheus is in ``page.py``.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from functools import lru_cache

from .sequence import Observer, Request

# Buckets of vLLM 0.32 (vllm/v1/metrics/buckets.py) and of its HTTP instrumentator.
_TTFT: tuple[float, ...] = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
)  # fmt: skip
_TTFT += (80.0, 160.0, 640.0, 2560.0)
_ITL: tuple[float, ...] = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY: tuple[float, ...] = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
)  # fmt: skip
_LATENCY += (960.0, 1920.0, 7680.0)
_STEP: tuple[float, ...] = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip
HTTP: tuple[float, ...] = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0,
)  # fmt: skip
HTTP += (30.0, 60.0)
_PREEMPTIONS: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_PARAMS_N: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 20.0)


class Histogram:
    """Counts by upper bound, as Prometheus has them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_many(self, value: float, count: int) -> None:
        """``count`` times the same value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


@lru_cache(maxsize=64)
def _one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to ``largest``, as vLLM builds its token buckets from max_model_len."""
    bounds = [float(digit * 10**power) for power in range(len(str(largest))) for digit in (1, 2, 5)]
    return tuple(bound for bound in bounds if bound <= largest)


#: Histograms of the engine in the order of its page: attribute -> (vLLM's name, help, bounds; None: tokens).
HISTOGRAMS: dict[str, tuple[str, str, tuple[float, ...] | None]] = {
    "prompt": ("request_prompt_tokens", "Number of prefill tokens processed.", None),
    "generation": ("request_generation_tokens", "Number of generation tokens processed.", None),
    "step_tokens": ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP),
    "max_generation": (
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        None,
    ),
    "params_n": ("request_params_n", "Histogram of the n request parameter.", _PARAMS_N),
    "params_max_tokens": (
        "request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        None,
    ),
    "ttft": ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT),
    "itl": ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _ITL),
    "time_per_token": (
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        _ITL,
    ),
    "e2e": ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _LATENCY),
    "queue": ("request_queue_time_seconds", "Time spent in WAITING phase for request.", _LATENCY),
    "inference": ("request_inference_time_seconds", "Time spent in RUNNING phase for request.", _LATENCY),
    "prefill": ("request_prefill_time_seconds", "Time spent in PREFILL phase for request.", _LATENCY),
    "decode": ("request_decode_time_seconds", "Time spent in DECODE phase for request.", _LATENCY),
    "request_preemptions": (
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        _PREEMPTIONS,
    ),
    "prefill_computed": (
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill.",
        None,
    ),
}


class Metrics(Observer):
    """Everything counted by one replica.

    histograms: by the names of ``HISTOGRAMS``; one that never observed anything is not there (thousands of
    replicas live in one process). http: (handler, method, status class) -> requests.
    """

    def __init__(self, max_model_len: int) -> None:
        self.started = time.time()
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.prompt_computed = 0
        self.prompt_cached = 0
        self.generation_tokens = 0
        #: Requests whose client went away. vLLM counts them nowhere (its finished_reason="abort" stays 0).
        self.aborted = 0
        self.success = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
        self.http: dict[tuple[str, str, str], int] = {}
        self.http_seconds = Histogram(HTTP)
        self.histograms: dict[str, Histogram] = {}
        self._max_model_len = max_model_len

    def observe(self, name: str, value: float) -> None:
        """One value of a histogram of ``HISTOGRAMS``."""
        (self.histograms.get(name) or self._made(name)).observe(value)

    def _made(self, name: str) -> Histogram:
        histogram = self.histograms[name] = Histogram(bounds(name, self._max_model_len))
        return histogram

    def admitted(self, request: Request) -> None:
        self.prefix_queries += len(request.prompt)
        self.prefix_hits += request.cached

    def step(self, prompt_tokens: int, tokens: int) -> None:
        if tokens:
            self.observe("step_tokens", tokens)

    def first_token(self, request: Request, now: float) -> None:
        self.prompt_computed += len(request.prompt) - request.cached
        self.prompt_cached += request.cached
        if request.max_tokens:
            self.generation_tokens += 1
            self.observe("ttft", now - request.arrived)

    def tokens(self, count: int, seconds: float) -> None:
        self.generation_tokens += count
        (self.histograms.get("itl") or self._made("itl")).observe_many(seconds, count)

    def preempted(self) -> None:
        self.preemptions += 1

    def finished(self, request: Request, now: float) -> None:
        self.success[request.reason] += 1
        prompt, observe = len(request.prompt), self.observe
        decode = request.last_token - request.first_token
        observe("prompt", prompt)
        observe("generation", request.generated)
        observe("max_generation", request.generated)
        observe("params_n", 1)
        observe("params_max_tokens", request.max_tokens)
        observe("e2e", now - request.arrived)
        observe("queue", request.scheduled - request.arrived)
        observe("inference", request.last_token - request.scheduled)
        observe("prefill", request.first_token - request.scheduled)
        observe("decode", decode)
        observe("time_per_token", decode / (request.generated - 1) if request.generated > 1 else 0.0)
        observe("request_preemptions", request.preemptions)
        observe("prefill_computed", prompt - request.cached)

    def answered(self, handler: str, method: str, status: int, seconds: float) -> None:
        """An HTTP request has been answered. handler: the route, or ``none`` for an unknown one."""
        key = (handler, method, f"{status // 100}xx")
        self.http[key] = self.http.get(key, 0) + 1
        self.http_seconds.observe(seconds)


def bounds(name: str, max_model_len: int) -> tuple[float, ...]:
    """The bucket bounds of a histogram of ``HISTOGRAMS``."""
    found = HISTOGRAMS[name][2]
    return _one_two_five(max_model_len) if found is None else found
