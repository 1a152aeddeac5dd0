"""Streaming chat completions against any OpenAI-compatible address, closed loop.

    locust -f loadtest/ --headless -u 8 -t 60s -H http://127.0.0.1:8000

Each user asks, reads the stream to its end and asks again, with no pause: the users bound the concurrency,
and a slow server gets fewer requests (a closed loop; its percentiles don't show what waiting arrivals would
see). Needs nothing of ExaServe behind the address.

Rows of locust's table (type ``chat``), milliseconds:

====  ==================================================================  ====================================
e2e   send → last token                                                   one value a good request
TTFT  send → first token of any kind, not the role-only chunk             one value a good request
ITL   gaps between chunks with tokens, as they arrived                    chunks − 1 values a good request
TPOT  (last − first token) ÷ (n − 1), n from the server's usage           one value a good request with usage
====  ==================================================================  ====================================

"Aggregated" counts requests alone: the other three rows are derived from the same requests and stay out of
it. A failed request (not 200, error event, no token, no finish_reason, no [DONE], cut, too slow) is counted
in ``e2e`` with its reason and adds no time to any row. Requests still open when the time is up are dropped;
``-s 60`` lets them end. Each request also fires locust's ``request`` event with ``context={"stream":
Stream}``.

A file here is run by locust itself; importing it from another locustfile would add its options twice.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from itertools import count
from pathlib import Path
from typing import Any

import gevent
from locust import User, constant, events, task
from locust.exception import StopUser
from locust.runners import WorkerRunner

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib import _stats  # noqa: E402
from loadtest._lib._prompts import Prompts  # noqa: E402
from loadtest._lib._stream import Client  # noqa: E402

_stats.keep_three_digits()


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if low.isdecimal() and (high or low).isdecimal() and 1 <= int(low) <= int(high or low) <= 1_000_000:
        return int(low), int(high or low)
    raise ValueError(f"{text!r} is neither a number of tokens nor a range like 16-64")


def _tokens(text: str) -> str:
    """Checked, but left as text: locust's web page shows options as text and sends them back so."""
    try:
        _range(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0, at most 86400")
    return value


@events.init_command_line_parser.add_listener
def _options(parser: Any) -> None:
    group = parser.add_argument_group("ExaServe chat load")
    group.add_argument("--model", default="", help="model to ask for (default: the first of /v1/models)")
    group.add_argument(
        "--max-tokens",
        type=_tokens,
        default="16-64",
        metavar="N|LOW-HIGH",
        help="new tokens per answer: a number, or a range from which each is drawn (default: 16-64)",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=None,
        help="of prompts and lengths; the same seed sends the same prompts (default: drawn, and printed)",
    )
    group.add_argument(
        "--request-timeout",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="a request that has not ended by then has failed (default: 120)",
    )
    group.add_argument("--api-key", default="", help="sent as a bearer token", env_var="EXASERVE_API_KEY")


@events.test_start.add_listener
def _start(environment: Any, **_: Any) -> None:
    _Run.model = environment.parsed_options.model
    _Run.numbers = count()
    _Run.over = False
    seed = environment.parsed_options.seed
    _Run.seed = random.SystemRandom().getrandbits(31) if seed is None else seed
    if seed is None and not isinstance(environment.runner, WorkerRunner):
        logging.info("chat: prompts of seed %s (--seed %s sends them again)", _Run.seed, _Run.seed)


@events.quitting.add_listener
def _nothing_sent(environment: Any, **_: Any) -> None:
    """A headless run without one request is no success (locust would say 0)."""
    nothing = environment.stats.total.num_requests == 0 and not isinstance(environment.runner, WorkerRunner)
    if nothing and environment.parsed_options.headless and environment.process_exit_code is None:
        logging.error("chat: not one request ended; nothing was measured")
        environment.process_exit_code = 1


class _Run:
    """What the users of this process share in the current run."""

    model = ""
    seed = 0
    numbers = count()
    over = False


class ChatUser(User):
    """Asks for a streamed chat completion, reads it to its end, asks again."""

    wait_time = constant(0)

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        worker = getattr(environment.runner, "worker_index", 0)
        self._prompts = Prompts(_Run.seed, f"{worker}/{next(_Run.numbers)}")
        self._new_tokens = (0, 0)
        self._client: Client | None = None

    def _connect(self) -> Client:
        """The client, made at the first task: locust prints a traceback for what is raised before that."""
        options = self.environment.parsed_options
        if not self.host:
            raise self._given_up(2, "no address; give one with -H http://127.0.0.1:8000")
        try:
            self._new_tokens = _range(options.max_tokens)
            client = Client(self.host, options.request_timeout, options.api_key or None)
            _Run.model = _Run.model or client.first_model()
        except ValueError as error:
            raise self._given_up(2, str(error)) from None
        except LookupError as error:
            raise self._given_up(1, f"{self.host}: {error}; --model NAME skips this") from None
        return client

    def _given_up(self, code: int, why: str) -> StopUser:
        if not _Run.over:
            _Run.over = True
            logging.error("chat: %s", why)
            self.environment.process_exit_code = code
            runner = self.environment.runner
            gevent.spawn(runner.quit if self.environment.parsed_options.headless else runner.stop)
        return StopUser()

    @task
    def chat(self) -> None:
        if self._client is None:
            self._client = self._connect()
        stream = self._client.chat(
            {
                "model": _Run.model,
                "messages": [{"role": "user", "content": self._prompts.next()}],
                "max_tokens": self._prompts.tokens(*self._new_tokens),
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        good = stream.failure is None
        self.environment.events.request.fire(
            request_type="chat",
            name="e2e",
            response_time=_ms(stream.e2e) if good else None,
            response_length=stream.size,
            exception=None if good else RequestFailed(stream.failure),
            context={"stream": stream},
        )
        if good:
            rows = self.environment.stats
            rows.get("TTFT", "chat").log(_ms(stream.ttft), 0)
            if stream.tpot is not None:
                rows.get("TPOT", "chat").log(_ms(stream.tpot), 0)
            itl = rows.get("ITL", "chat")
            for gap in stream.gaps:
                itl.log(gap * 1000, 0)
        elif not stream.chunks:
            # A server that refuses at once would otherwise be asked thousands of times a second.
            gevent.sleep(0.2)

    def on_stop(self) -> None:
        if self._client is not None:
            self._client.close()


class RequestFailed(Exception):
    """The reason under which locust counts a failed request."""


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
