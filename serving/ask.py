"""One question through the router, streamed, with what it cost: ``exaserve ask``."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class AskError(Exception):
    """The question got no answer; the message says why."""


@dataclass(frozen=True)
class Timing:
    """ttft: seconds from sending to the first token. tokens: of the answer, None if the server did not say.
    tokens_per_second: after the first token, None for a single one. replica: who answered, if said."""

    ttft: float
    seconds: float
    tokens: int | None
    tokens_per_second: float | None
    replica: str | None

    def __str__(self) -> str:
        said = [f"TTFT {self.ttft * 1000:.0f} ms"]
        if self.tokens is not None:
            said.append(f"{self.tokens} tokens in {self.seconds:.1f} s")
        if self.tokens_per_second is not None:
            said.append(f"{self.tokens_per_second:.0f} tokens/s")
        if self.replica:
            said.append(f"by {self.replica}")
        return ", ".join(said)


def ask(
    url: str, text: str, show: Callable[[str], object], max_tokens: int = 32, timeout: float = 60.0
) -> Timing:
    """Send ``text`` to the OpenAI-compatible server at ``url`` and hand its answer to ``show`` as it comes.

    The model is the first that the server lists. timeout: seconds of silence after which it is given up.
    Raises AskError.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
    except (ValueError, http.client.InvalidURL):
        raise AskError(f"{url} is no http://HOST:PORT address") from None
    try:
        return _ask(connection, text, show, max_tokens)
    except TimeoutError:
        raise AskError(f"{url} was silent for {timeout:g} s") from None
    except (
        OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError, RecursionError,
        OverflowError,
    ) as error:  # fmt: skip
        raise AskError(f"{url} gave no answer: {error or type(error).__name__}") from None
    finally:
        connection.close()


def _ask(
    connection: http.client.HTTPConnection, text: str, show: Callable[[str], object], max_tokens: int
) -> Timing:
    connection.request("GET", "/v1/models")
    models = _read(connection.getresponse())["data"]
    if not models:
        raise AskError("the server lists no model: no replica is in rotation")
    body = {
        "model": models[0]["id"],
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        _read(answer)
    first, tokens = None, None
    for event in _events(answer):
        if "error" in event:
            raise AskError(f"the answer ended early: {event['error'].get('message')}")
        if event.get("usage"):
            tokens = int(event["usage"]["completion_tokens"])
        for choice in event.get("choices") or ():
            content = choice["delta"].get("content")
            if content:
                first = first or time.monotonic()
                show(content)
    end = time.monotonic()
    if first is None:
        raise AskError("the answer was empty")
    rate = (tokens - 1) / (end - first) if tokens and tokens > 1 and end > first else None
    return Timing(first - begin, end - begin, tokens, rate, answer.getheader("x-exaserve-replica"))


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := answer.readline(2**20):
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)
    # Chunks that just end are no error to http.client, but a server that means to end says so.
    raise AskError("the answer was cut: the connection ended before it was complete")


def _read(answer: http.client.HTTPResponse) -> dict[str, Any]:
    """The decoded body of a 200. Raises AskError with the server's own message otherwise."""
    raw = answer.read(2**20)
    try:
        body = json.loads(raw)
    except ValueError:
        body = {}
    if answer.status == 200 and isinstance(body, dict):
        return body
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else raw[:200].decode(errors="replace")
    raise AskError(f"HTTP {answer.status}: {message}")
