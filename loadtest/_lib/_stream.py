"""Reads one answer as its bytes arrive: which of them are tokens, when each came, how it ended.

Not here: the connection that brings the bytes (``_http``), the requests (``_ask``), what is kept of it (``_record``).

Event streams as the WHATWG describes them, with lines that end in LF or CRLF (a lone CR ends none), comments, data over
several lines, and any split of the bytes over reads. An event counts as a chunk with tokens if any of its choices
brings content, reasoning, a tool call, a refusal or (``/v1/completions``) text; the chunk that only names the role does
not. Its time is when the read that completed it returned, before anything in it was parsed.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

#: A longer line, or an event of several, is no chat chunk, and the buffer must not grow for ever.
MAX_LINE = 4 << 20
#: No answer has more tokens; a server that sends them for ever must not fill the memory with their times.
MAX_CHUNKS = 1_000_000
#: Of a name that the server sends.
MAX_NAME = 200
#: Tokens; a larger count, or a negative one, is a mistake of the server's.
_MAX_TOKENS = 1_000_000_000
#: Of an answer that is no event stream; the embeddings of a batch are long.
MAX_BODY = 64 << 20


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """What is read of a chunk and of a whole answer alike; all else is skipped without being built."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    data: list[msgspec.Raw] | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Reading:
    """How one answer went so far. Times are Unix seconds (``_clock``); None where it did not get that far.

    first, last: arrival of the first and the last chunk with tokens; last is that of the last byte where the answer
    is no stream, which has no first. gaps: seconds between chunks with tokens. failure: (reason of ``_record``, words)
    or None. keep_text: collect the content, which costs time for each chunk.
    """

    __slots__ = (
        "_data",
        "_error_event",
        "_rest",
        "_texts",
        "_waiting",
        "cached_tokens",
        "chunks",
        "done",
        "failure",
        "finish_reason",
        "first",
        "gaps",
        "input_tokens",
        "keep_text",
        "last",
        "output_tokens",
        "size",
    )

    def __init__(self, keep_text: bool = False) -> None:
        self.first: float | None = None
        self.last: float | None = None
        self.gaps: list[float] = []
        self.chunks = 0
        self.size = 0
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.done = False
        self.failure: tuple[str, str] | None = None
        self.keep_text = keep_text
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._texts: list[str] = []
        self._error_event = False
        self._waiting = 0

    @property
    def text(self) -> str:
        """All content, without the reasoning; empty unless ``keep_text``."""
        return "".join(self._texts)

    def feed(self, data: bytes, now: float) -> None:
        """More of an event stream, which arrived at ``now``."""
        self.size += len(data)
        if self.failure is not None:
            return
        lines = data.split(b"\n")
        tail = lines.pop()
        if self._rest and lines:
            self._rest.append(lines[0])
            lines[0] = b"".join(self._rest)
            self._rest.clear()
        if tail:
            self._rest.append(tail)
            if sum(map(len, self._rest)) > MAX_LINE:
                self.failure = ("other", f"a line of over {MAX_LINE >> 20} MiB in the stream")
        for line in lines:
            self._line(line, now)

    def _line(self, line: bytes, now: float) -> None:
        if line.endswith(b"\r"):
            line = line[:-1]
        if not line:
            if self._data:
                payload = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                self._data.clear()
                self._waiting = 0
                self._event(payload, now)
            self._error_event = False
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            self._waiting += len(line)
            if self._waiting > MAX_LINE and self.failure is None:
                self._data.clear()
                self.failure = ("other", f"an event of over {MAX_LINE >> 20} MiB in the stream")
        elif line.startswith(b"event:"):
            self._error_event = line[6:].strip() == b"error"

    def _event(self, payload: bytes, now: float) -> None:
        if self.failure is not None or self.done:
            return
        if payload == b"[DONE]" or payload.strip() == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.failure = ("other", "an event that is no chat chunk in the stream")
            return
        if chunk.error or self._error_event:
            self.failure = ("error", f"error event in the stream: {worded(chunk.error or 'no words')}")
            return
        tokens = False
        for choice in chunk.choices or ():
            tokens = _brings(choice.delta, choice.text) or tokens
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason[:MAX_NAME]
            if self.keep_text:
                self._keep(choice.delta, choice.text)
        if tokens:
            if self.last is None:
                self.first = now
            else:
                self.gaps.append(now - self.last)
            self.last = now
            self.chunks += 1
            if self.chunks > MAX_CHUNKS:
                self.failure = ("other", f"a stream of over {MAX_CHUNKS:,} chunks")
        if chunk.usage is not None:
            self._count(chunk.usage)

    def end(self, now: float) -> None:
        """The stream's body has ended; its last event may lack the empty line."""
        if self._rest:
            self._line(b"".join(self._rest), now)
            self._rest.clear()
        self._line(b"", now)
        if self.failure is None:
            if not self.chunks:
                self.failure = ("empty", "empty stream: no token in it")
            elif not self.done:
                self.failure = ("cut", "cut stream: ended without [DONE]")
            elif not self.finish_reason:
                self.failure = ("cut", "no finish_reason in the stream")

    def whole(self, body: bytes, now: float) -> None:
        """All of an answer that is no event stream, whose last byte arrived at ``now``."""
        self.size += len(body)
        try:
            answer = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.failure = ("other", "an answer that is no JSON object of this API")
            return
        if answer.usage is not None:
            self._count(answer.usage)
        choices = answer.choices or ()
        if answer.error:
            self.failure = ("error", f"error in an answer with status 200: {worded(answer.error)}")
        elif not answer.data and not any(_brings(c.message, c.text) for c in choices):
            self.failure = ("empty", "empty answer: neither a token nor an embedding in it")
        else:
            self.last = now
            for choice in choices:
                self.finish_reason = (choice.finish_reason or "")[:MAX_NAME] or self.finish_reason
                if self.keep_text:
                    self._keep(choice.message, choice.text)

    def _keep(self, message: _Delta | None, text: str | None) -> None:
        content = text or (message.content if message else None)
        if isinstance(content, str):
            self._texts.append(content)

    def _count(self, usage: _Usage) -> None:
        self.input_tokens, self.output_tokens = _tokens(usage.prompt_tokens), _tokens(usage.completion_tokens)
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = _tokens(usage.prompt_tokens_details.cached_tokens)


def _tokens(count: int | None) -> int | None:
    return count if count is not None and 0 <= count <= _MAX_TOKENS else None


def _brings(delta: _Delta | None, text: str | None) -> bool:
    if text:
        return True
    return delta is not None and bool(
        delta.content
        or delta.reasoning_content
        or delta.reasoning
        or delta.tool_calls
        or delta.function_call
        or delta.refusal
    )


def worded(error: Any) -> str:
    """A short reason without the numbers that would make each failure a kind of its own in a table."""
    if not isinstance(error, dict):
        text = str(error)
    else:
        kind = error.get("code") or error.get("type") or "error"
        text = f"{kind}: {error.get('message') or 'no message'}"
    return re.sub(r"\b(?=\w*\d)[\w-]{4,}", "#", " ".join(text.split()))[:160]
