"""One short request straight to a replica, for proofs: what it answers, how fast, and how the answer ends.

Past the router and past every proxy, bounded in time and length. Load belongs to ``loadtest/``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field

import httpx

from chaos.fault import Refused


@dataclass
class Answer:
    """status: 0 if none came. arrivals: time.monotonic() of each token's event. done: [DONE] was seen.

    error: why it ended otherwise ("" while it runs, or if it ended well).
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    done: bool = False
    error: str = ""
    over: bool = False

    def seconds_per_token(self, until: float) -> float:
        """Mean gap between tokens so far; where fewer than two came, at least the time waited up to ``until``."""
        if len(self.arrivals) >= 2:
            return (self.arrivals[-1] - self.arrivals[0]) / (len(self.arrivals) - 1)
        return until - (self.arrivals[0] if self.arrivals else self.sent)


def model(url: str) -> str:
    """The model that the replica serves. Raises Refused."""
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=3.0, trust_env=False)
        return str(answer.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
        raise Refused(f"{url}/v1/models can't be read: {error or type(error).__name__}") from None


def status(url: str, timeout: float = 1.0) -> tuple[int, str]:
    """(HTTP status, "") of a GET, or (0, why) where none came within the seconds."""
    try:
        return httpx.get(url, timeout=timeout, trust_env=False).status_code, ""
    except httpx.TimeoutException:
        return 0, f"no answer within {timeout:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return 0, str(error) or type(error).__name__


def stream(url: str, name: str, max_tokens: int, seconds: float, into: Answer | None = None) -> Answer:
    """Stream one completion, for at most ``seconds``; also into ``into``, while it runs. Raises nothing."""
    answer = into if into is not None else Answer()
    answer.sent = time.monotonic()
    end = answer.sent + seconds
    body = {
        "model": name,
        "messages": [{"role": "user", "content": f"{time.time_ns():x}: count as far as you can."}],
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
    }
    try:
        with (
            httpx.Client(timeout=httpx.Timeout(seconds, read=min(seconds, 3.0)), trust_env=False) as client,
            client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply,
        ):
            answer.status, answer.headers = reply.status_code, dict(reply.headers)
            for line in reply.iter_lines():
                if line == "data: [DONE]":
                    answer.done = True
                    break
                if line.startswith("data: "):
                    answer.arrivals.append(time.monotonic())
                if time.monotonic() >= end:
                    answer.error = f"more than {seconds:g} s"
                    break
        if not answer.done and not answer.error and answer.status == 200:
            answer.error = "ended without [DONE]"
    except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
        answer.error = str(error) or type(error).__name__
    answer.over = True
    return answer


def in_background(url: str, name: str, max_tokens: int, seconds: float) -> Answer:
    """Begin a stream and return its answer as it grows. Its thread ends with it, or with the process."""
    answer = Answer()
    threading.Thread(target=stream, args=(url, name, max_tokens, seconds, answer), daemon=True).start()
    return answer


def page(url: str) -> str:
    """A metrics page. Raises Refused."""
    try:
        return httpx.get(url, timeout=5.0, trust_env=False).raise_for_status().text
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Refused(f"{url} can't be read: {error or type(error).__name__}") from None


def series(url: str, name: str, **labels: str) -> float | None:
    """Sum of the metric's series that have these labels; None if there is none. Raises Refused."""
    found: list[float] = []
    for line in page(url).splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " "):
            inside, _, value = line[len(name) :].rpartition(" ")
            if all(f'{key}="{wanted}"' in inside for key, wanted in labels.items()):
                with contextlib.suppress(ValueError):
                    found.append(float(value))
    return sum(found) if found else None
