"""One streaming chat completion, timed: the HTTP connection, the event stream, and how it ended.

Not here: what to ask (``_prompts``), what becomes of the times (the locustfile).

Read with ``http.client``'s ``read1``, which returns what has arrived, at most one HTTP chunk. Clients that
fill a block first (locust's ``FastHttpSession.iter_lines`` takes 1,024 bytes) show a 20 ms stream as one
lump.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import ssl
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import gevent

_MAX_LINE = 1 << 20  # bytes; a longer line is no chat chunk, and the buffer must not grow for ever
_TOKEN_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")


@dataclass(slots=True)
class Stream:
    """How one request went. Times are ``perf_counter`` seconds; None where it did not get that far.

    sent: just before the first byte of the request. first, last: arrival of the first and last chunk with a
    token (content, reasoning, tool call; the role-only chunk has none). gaps: seconds between such chunks.
    completion_tokens: from the server's usage; None if it sent none. failure: None, or why it is not good.
    """

    sent: float
    first: float | None = None
    last: float | None = None
    gaps: list[float] = field(default_factory=list)
    chunks: int = 0
    size: int = 0
    completion_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False
    replica: str | None = None
    failure: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds from send to the first token."""
        return None if self.first is None else self.first - self.sent

    @property
    def e2e(self) -> float | None:
        """Seconds from send to the last token."""
        return None if self.last is None else self.last - self.sent

    @property
    def tpot(self) -> float | None:
        """(last − first) ÷ (n − 1) seconds, n from usage; None without usage or with fewer than 2 tokens."""
        if (
            self.first is None
            or self.last is None
            or not self.completion_tokens
            or self.completion_tokens < 2
        ):
            return None
        return (self.last - self.first) / (self.completion_tokens - 1)


class Client:
    """Requests to one server over one kept-alive connection.

    base: ``http://host:port``, with or without a path; a trailing ``/v1`` is the same address. Raises
    ValueError for anything else. limit: seconds that one request may take in all.
    """

    def __init__(self, base: str, limit: float, api_key: str | None = None) -> None:
        url = urlsplit(base)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{base!r} is not an address like http://127.0.0.1:8000")
        self._host, self._port, self._tls = url.hostname, url.port, url.scheme == "https"
        self._path = url.path.rstrip("/").removesuffix("/v1")
        self._limit = limit
        # identity: a compressed stream arrives when the compressor flushes, not when the token was made.
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "exaserve-loadtest"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._connection: http.client.HTTPConnection | None = None

    def first_model(self) -> str:
        """Name of the first model of ``/v1/models``. Raises LookupError that says what is wrong."""
        try:
            with gevent.Timeout(min(self._limit, 10), TimeoutError("no answer for 10 s")):
                response = self._send("GET", "/v1/models", None)
                data = response.read(_MAX_LINE)
            if response.status != 200:
                raise LookupError(f"/v1/models answered {response.status}")
            return str(json.loads(data)["data"][0]["id"])
        except (OSError, http.client.HTTPException) as error:
            raise LookupError(f"/v1/models can't be read: {_told(error)}") from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise LookupError("/v1/models names no model") from None
        finally:
            self.close()

    def chat(self, body: dict[str, Any]) -> Stream:
        """Send a streaming chat completion and read it to its end.

        Returns a Stream in every case: what went wrong is in its ``failure``. Exceptions that end the user
        (its greenlet is killed) pass, with the connection closed, so that the server sees the client go.
        """
        stream = Stream(sent=perf_counter())
        limit = gevent.Timeout(self._limit)
        keep = False
        try:
            with limit:
                response = self._send("POST", "/v1/chat/completions", json.dumps(body).encode())
                stream.replica = response.headers.get("x-exaserve-replica")
                stream.failure = _refused(response) or self._read(response, stream)
                keep = stream.failure is None and self._at_end(response)
        except gevent.Timeout as expired:
            if expired is not limit:
                raise
            stream.failure = (
                f"no end after {self._limit:g} s" if stream.first else f"no token for {self._limit:g} s"
            )
        except (OSError, http.client.HTTPException, ValueError) as error:
            stream.failure = f"cut stream: {_told(error)}" if stream.chunks else _told(error)
        finally:
            if not keep:
                self.close()
        return stream

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        connection = self._connection
        if connection is not None and _went_away(connection.sock):
            self.close()
            connection = None
        if connection is None:
            kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
            connection = self._connection = kind(self._host, self._port, timeout=self._limit)
        headers = self._headers | {"Content-Type": "application/json"} if body else self._headers
        connection.request(method, self._path + path, body, headers)
        return connection.getresponse()

    def _read(self, response: http.client.HTTPResponse, stream: Stream) -> str | None:
        """Read the events until ``[DONE]``; None, or why the stream is not good."""
        buffer = b""
        while not stream.done and (data := response.read1(1 << 16)):
            now = perf_counter()
            stream.size += len(data)
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    failure = _event(line[5:].strip(), now, stream)
                    if failure:
                        return failure
            if len(buffer) > _MAX_LINE:
                return "a line of over 1 MiB in the stream"
        if not stream.chunks:
            return "empty stream: no token in it"
        if not stream.done:
            return "cut stream: ended without [DONE]"
        return None if stream.finish_reason else "no finish_reason in the stream"

    def _at_end(self, response: http.client.HTTPResponse) -> bool:
        """True if the answer ends here, so that the connection can carry the next request."""
        with gevent.Timeout(1, False):
            return not response.read1(1)
        return False


def _event(payload: bytes, now: float, stream: Stream) -> str | None:
    if payload == b"[DONE]":
        stream.done = True
        return None
    try:
        event = json.loads(payload)
        if event.get("error"):
            return f"error event in the stream: {_worded(event['error'])}"
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if any(delta.get(key) for key in _TOKEN_KEYS):
                if stream.last is None:
                    stream.first = now
                else:
                    stream.gaps.append(now - stream.last)
                stream.last = now
                stream.chunks += 1
            stream.finish_reason = choice.get("finish_reason") or stream.finish_reason
        usage = event.get("usage")
        if usage:
            stream.completion_tokens = int(usage["completion_tokens"])
    except (ValueError, TypeError, AttributeError, KeyError):
        return "an event that is no chat chunk in the stream"
    return None


def _refused(response: http.client.HTTPResponse) -> str | None:
    if response.status != 200:
        try:
            error = json.loads(response.read(1 << 16))["error"]
        except (ValueError, KeyError, TypeError):
            return f"HTTP {response.status}"
        return f"HTTP {response.status}: {_worded(error)}"
    kind = response.headers.get_content_type()
    return None if kind == "text/event-stream" else f"not an event stream but {kind}"


def _worded(error: Any) -> str:
    """A short reason without the numbers that would make each failure a kind of its own in locust's table."""
    if not isinstance(error, dict):
        text = str(error)
    else:
        kind = error.get("code") or error.get("type") or "error"
        text = f"{kind}: {error.get('message') or 'no message'}"
    return re.sub(r"\b(?=\w*\d)[\w-]{4,}", "#", " ".join(text.split()))[:160]


def _told(error: Exception) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case http.client.RemoteDisconnected():
            return "connection closed without an answer"
        case ConnectionResetError() | BrokenPipeError():
            return "connection reset"
        case http.client.IncompleteRead():
            return "connection closed inside the body"
        case TimeoutError():
            return str(error) or "timed out"
        case socket.gaierror():
            return "unknown host"
        case ssl.SSLError():
            return f"TLS: {error.reason}"
    return f"{type(error).__name__}: {error}"[:160]


def _went_away(sock: socket.socket | None) -> bool:
    """True if the server closed the idle connection (readable while nothing is due means end of file)."""
    return sock is None or bool(select.select([sock], [], [], 0)[0])
