"""Sends requests and keeps what became of each: for closed and open loops alike.

Not here: what to ask (profiles), when (``_user``, ``_dispatch``), where records go (``_load``).
"""

from __future__ import annotations

import email.utils
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import gevent
import msgspec

from loadtest._lib import _clock, _stats
from loadtest._lib._ask import Answer, Ask
from loadtest._lib._http import MAX_IDLE, Address, Broken, Connection, Reply
from loadtest._lib._record import Record
from loadtest._lib._run import Run
from loadtest._lib._stream import MAX_BODY, MAX_NAME, Reading, worded

#: How long the end of an answer may take after its [DONE], for the connection to carry the next request.
_LINGER = 1.0
#: Of a refusal, for its words.
_MAX_REFUSAL = 1 << 16


class RequestFailed(Exception):
    """The reason under which locust counts a failed request."""


@dataclass(slots=True)
class Settings:
    """What a sender needs of the run. limit: seconds one request may take in all."""

    host: str
    model: str
    limit: float = 120.0
    api_key: str | None = None
    worker: int = 0


class Sender:
    """One a process. Any number of greenlets may send at once.

    run: whose warm-up decides the phase of a request; without one everything is measured. environment: locust's, for its
    events and its table. Raises ValueError for an address that is none.
    """

    def __init__(self, settings: Settings, run: Run | None = None, environment: Any = None) -> None:
        self._settings = settings
        self._run = run
        self._environment = environment
        self._address = Address(settings.host)
        self._idle: list[Connection] = []
        self._numbers = count()
        #: Requests that are open now.
        self.in_flight: dict[int, Record] = {}
        #: "profile/phase" → how many so far.
        self.offered: defaultdict[str, int] = defaultdict(int)
        self.started: defaultdict[str, int] = defaultdict(int)
        #: Each is called with every record when it is final, in the order of their ends.
        self.listeners: list[Callable[[Record], None]] = []
        #: The latest a request was sent after it was due since this was last set to 0, seconds.
        self.lag_max = 0.0
        self._headers = {
            "Host": self._address.authority,
            "User-Agent": "exaserve-loadtest",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
        if settings.api_key:
            self._headers["Authorization"] = f"Bearer {settings.api_key}"

    def send(self, ask: Ask, due: float | None = None) -> Answer:
        """Send, and wait for the end of the answer. due: Unix seconds; None in a closed loop.

        Whatever goes wrong is in the answer's record. Raises only what ends the greenlet; the record then says ``open``.
        """
        sent = round(_clock.now(), 6)
        record = self._record(ask, due, sent)
        record.sent = sent
        record.outcome = "open"
        record.detail = "not ended when the run did"
        if due is not None:
            self.lag_max = max(self.lag_max, sent - due)
        key = f"{record.profile}/{record.phase}"
        self.offered[key] += 1
        self.started[key] += 1
        self.in_flight[record.number] = record
        reading = Reading(keep_text=ask.session is not None)
        exchange = _Exchange(ask, reading)
        limit = gevent.Timeout(self._settings.limit)
        try:
            try:
                with limit:
                    self._exchange(ask, exchange)
                failure = exchange.judged()
            except gevent.Timeout as expired:
                if expired is not limit:
                    raise
                words = "no end after" if reading.chunks else "no token for"
                failure = None if reading.done else ("timeout", f"{words} {self._settings.limit:g} s")
            except Broken as error:
                reason = "cut" if reading.chunks else error.reason
                failure = (reason, f"cut stream: {error}" if reading.chunks else str(error))
            record.outcome = "ok" if failure is None else "failed"
            record.reason, record.detail = failure or (None, None)
        finally:
            self._fill(record, exchange)
            del self.in_flight[record.number]
            self._tell(record)
        return Answer(good=record.outcome == "ok", text=reading.text, record=record)

    def unsent(self, ask: Ask, due: float, why: str, reason: str | None = None) -> Record:
        """Keep a request that was due at ``due`` and will never be sent. reason: ``TOO_SLOW`` or None."""
        record = self._record(ask, due, due)
        record.reason, record.detail = reason, why
        self.offered[f"{record.profile}/{record.phase}"] += 1
        for listener in self.listeners:
            listener(record)
        return record

    def profiles_in_flight(self) -> dict[str, int]:
        open_: defaultdict[str, int] = defaultdict(int)
        for record in self.in_flight.values():
            open_[record.profile] += 1
        return dict(open_)

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _record(self, ask: Ask, due: float | None, at: float) -> Record:
        until = 0.0 if self._run is None else self._run.warmup_until
        phase = ask.phase or ("warmup" if (at if due is None else due) < until else "measured")
        record = Record(self._settings.worker, next(self._numbers), ask.profile, phase, "unsent", due=due)
        record.step, record.intent, record.session = ask.step, ask.intent, ask.session
        return record

    def _exchange(self, ask: Ask, exchange: _Exchange) -> None:
        body = ask.body
        if "model" not in body:
            body = {"model": self._settings.model} | body
        if ask.stream:
            body = body | {"stream": True, "stream_options": {"include_usage": True}}
        data = msgspec.json.encode(body)
        headers = self._headers | ask.headers if ask.headers else self._headers
        lines = [f"POST {self._address.path}{ask.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode("latin-1")
        connection = self._connection()
        try:
            connection.ask(head, data, exchange.reply)
        finally:
            if not connection.closed:
                self._idle.append(connection)

    def _connection(self) -> Connection:
        """The idle connection that was used last, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and _clock.now() - connection.idle_since < MAX_IDLE:
                return connection
            connection.close()
        return Connection(self._address)

    def _fill(self, record: Record, exchange: _Exchange) -> None:
        reading, reply = exchange.reading, exchange.reply
        first, last, tokens = reading.first, reading.last, reading.output_tokens
        begun = record.sent if record.due is None else record.due
        assert begun is not None
        record.ended = round(_clock.now(), 6)
        record.first, record.last = _micro(first), _micro(last)
        record.ttft = None if first is None else _micro(first - begun)
        record.e2e = None if last is None else _micro(last - begun)
        record.output_tokens = tokens
        if first is not None and last is not None and tokens is not None and tokens > 1:
            record.tpot = (last - first) / (tokens - 1)
        record.gaps = [round(gap * 1000, 3) for gap in reading.gaps]
        record.chunks, record.bytes = reading.chunks, reading.size
        record.input_tokens, record.cached_tokens = reading.input_tokens, reading.cached_tokens
        record.finish_reason = reading.finish_reason
        if reply.status:
            record.status = reply.status
            record.replica = _name(reply.headers.get("x-exaserve-replica"))
            record.pool = _name(reply.headers.get("x-exaserve-pool"))
            record.request_id = _name(reply.headers.get("x-request-id"))
            record.retry_after = _retry_after(reply.headers.get("retry-after"))

    def _tell(self, record: Record) -> None:
        for listener in self.listeners:
            listener(record)
        if self._environment is None or record.outcome == "open":
            return
        good = record.outcome == "ok"
        self._environment.events.request.fire(
            request_type=record.profile,
            name="e2e",
            response_time=record.e2e * 1000 if good and record.e2e is not None else None,
            response_length=record.bytes,
            exception=None if good else RequestFailed(record.detail),
            context={"record": record},
        )
        if good:
            rows = self._environment.stats
            for name, value in (("TTFT", record.ttft), ("TPOT", record.tpot)):
                if value is not None:
                    rows.get(name, record.profile).log(value * 1000, 0)
            if record.gaps:
                _stats.log_all(rows.get("ITL", record.profile), record.gaps)


class _Exchange:
    """One request's answer, from its headers to what it was worth."""

    def __init__(self, ask: Ask, reading: Reading) -> None:
        self._ask = ask
        self.reading = reading
        self.reply = Reply(self._choose)
        self._body: list[bytes] = []
        self._streamed = False

    def _choose(self, reply: Reply) -> Callable[[bytes, float], bool]:
        """Called once the headers are there: how the body is read."""
        kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._streamed = reply.status == 200 and self._ask.stream and kind == "text/event-stream"
        return self._event_stream if self._streamed else self._collect

    def _event_stream(self, data: bytes, now: float) -> bool:
        """True once nothing more is needed; after [DONE] the end of the body is still waited for, for a moment."""
        reading = self.reading
        reading.feed(data, now)
        if reading.done and self.reply.linger is None:
            self.reply.linger = _LINGER
        return reading.failure is not None

    def _collect(self, data: bytes, _: float) -> bool:
        self._body.append(data)
        self.reading.size += len(data)
        return self.reading.size > (MAX_BODY if self.reply.status == 200 else _MAX_REFUSAL)

    def judged(self) -> tuple[str, str] | None:
        """Why the request is not good, as (reason, words), or None."""
        reply, reading, ask = self.reply, self.reading, self._ask
        packed = reply.headers.get("content-encoding", "identity").strip().lower()
        if reply.status == 200 and packed not in ("identity", ""):
            return "other", f"an answer with content-encoding {packed[:40]}, though identity was asked for"
        if self._streamed and ask.expect == 200:
            reading.end(reply.at)
            return reading.failure
        body = b"".join(self._body)
        if ask.expect != 200:
            return self._expected(body)
        if reply.status != 200:
            to = reply.headers.get("location", "")
            if 300 <= reply.status < 400 and to:
                return (
                    "other",
                    f"HTTP {reply.status} to {to[:100]}; redirects are not followed: give that address",
                )
            return _status_reason(reply.status), _refusal(reply.status, body)
        if ask.stream:
            kind = reply.headers.get("content-type", "").partition(";")[0].strip() or "without a type"
            return "other", f"not an event stream but {kind}"
        if len(body) > MAX_BODY:
            return "other", f"an answer of over {MAX_BODY >> 20} MiB"
        reading.whole(body, reply.at)
        return reading.failure

    def _expected(self, body: bytes) -> tuple[str, str] | None:
        from loadtest._lib import _refusal

        why = _refusal.unclear(self.reply.status, body, self._ask.expect)
        if why is None:
            self.reading.last = self.reply.at
            return None
        return _status_reason(self.reply.status), why


def _name(text: str | None) -> str | None:
    return text[:MAX_NAME] if text else None


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _status_reason(status: int) -> str:
    if status == 429:
        return "status_429"
    if 400 <= status < 600:
        return "status_4xx" if status < 500 else "status_5xx"
    return "other"


def _refusal(status: int, body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError):
        return f"HTTP {status}"
    return f"HTTP {status}: {worded(error)}"


def _retry_after(value: str | None) -> float | None:
    """Seconds, of a number of them or of a date; None if it is neither."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
