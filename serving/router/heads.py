"""Request and response heads: which headers mean something to the router, and heads rewritten by cutting lines.

A head is forwarded as its bytes came, less the lines that concern one hop only, plus the router's own. Headers
are found by the names that the parser saw; the many that mean nothing here cost one set lookup each. What was
worked out for a head is kept: a client sends the same one with each request of a connection but for the number in
Content-Length, and an engine answers with the same ones but for digits.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.router.tenants import Tenant

#: What the router reads or rewrites in a request; all else is forwarded unseen.
SPECIAL_REQUEST = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"proxy-connection", b"te",
     b"trailer", b"upgrade", b"expect", b"authorization", b"proxy-authorization", b"x-api-key", b"x-request-id",
     b"x-request-timeout", b"x-session-id", b"traceparent", b"tracestate")
)  # fmt: skip
#: Of these, what concerns one hop only or is written anew (RFC 9110 7.6.1).
HOP_REQUEST = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"expect",
     b"proxy-authorization", b"transfer-encoding")
)  # fmt: skip
SPECIAL_RESPONSE = frozenset(
    (b"content-length", b"content-type", b"transfer-encoding", b"connection", b"keep-alive", b"proxy-connection",
     b"te", b"trailer", b"upgrade", b"proxy-authenticate", b"proxy-authorization", b"x-request-id",
     b"x-exaserve-replica", b"x-exaserve-pool")
)  # fmt: skip
HOP_RESPONSE = SPECIAL_RESPONSE - {b"content-length", b"content-type", b"transfer-encoding"}
#: Names in any spelling that were found to be nothing special. Clients choose them, so their number is bounded.
MAX_PLAIN = 4096
MAX_NAME = 64  # bytes of such a name; longer ones are looked at each time
#: A request head larger than this is not kept on its connection: 10,000 of them would be gigabytes.
MAX_KEPT_HEAD = 8192
#: ``Connection: keep-alive`` says what HTTP/1.1 means anyway; these values need no care.
PLAIN_CONNECTION = (b"keep-alive", b"Keep-Alive", b"close")


class Names:
    """Finds the special headers of a head among its names."""

    def __init__(self, special: frozenset[bytes]) -> None:
        self.special = set(special)
        self.plain: set[bytes] = set()

    def add(self, names: set[bytes]) -> None:
        """Further names (lower case) that mean something, from configuration."""
        self.special |= names
        self.plain.clear()

    def find(self, headers: dict[bytes, bytes]) -> dict[bytes, bytes] | None:
        """Special name in lower case -> value. None if one was given twice, in two spellings."""
        plain = self.plain
        found: dict[bytes, bytes] = {}
        for name in [n for n in headers if n not in plain]:
            lower = name.lower()
            if lower in self.special:
                if lower in found:
                    return None
                found[lower] = headers[name]
            elif len(plain) < MAX_PLAIN and len(name) <= MAX_NAME:
                plain.add(name)
        return found


REQUEST = Names(SPECIAL_REQUEST)
RESPONSE = Names(SPECIAL_RESPONSE)


def without(head: bytes, name: bytes) -> bytes:
    """``head`` (lines that end with CRLF, the first line included) without the header ``name``, lower case.

    However often it is there: a second Authorization must not reach a replica either.
    """
    lower = head.lower()
    mark = b"\r\n" + name + b":"
    start = lower.find(mark)
    while start >= 0:
        stop = head.find(b"\r\n", start + 2)
        head = head[:start] + head[stop:]
        lower = lower[:start] + lower[stop:]
        start = lower.find(mark, start)
    return head


class RequestHead:
    """A request's head, worked out once for all requests of a connection that have it.

    special: what ``REQUEST.find`` found. before, after: its bytes around the number of Content-Length, for
    comparing; empty where it can't be used again. tenant: whose key it shows. forward: the lines for the replica
    around that number, without those of one hop and without the router's own. epoch: the server's, when tenant
    and forward were worked out.
    """

    __slots__ = ("after", "before", "close", "epoch", "forward", "http10", "lines", "method", "route", "special",
                 "tenant", "url")  # fmt: skip

    def __init__(
        self, method: bytes, url: bytes, route: str, lines: bytes, special: dict[bytes, bytes], *,
        http10: bool = False, close: bool = False,
    ) -> None:  # fmt: skip
        """lines: of the head for the replica, each with its CRLF, the first line included."""
        self.method = method
        self.url = url
        self.route = route
        self.lines = lines
        self.special = special
        self.http10 = http10
        self.close = close
        self.before = self.after = b""
        self.epoch = -1
        self.tenant: Tenant | None = None
        self.forward = (b"", b"")

    def keep(self, head: bytes) -> None:
        """Let it be recognised when it comes again. head: as it came, up to the blank line and with it."""
        if b"content-length" in self.special and not self.special.keys() & _EACH_TIME_NEW:
            start = head.lower().find(b"\r\ncontent-length:") + 17
            stop = head.find(b"\r\n", start)
            digits = head[start:stop].strip()
            start = head.find(digits, start)
            if digits.isdigit():
                self.before, self.after = head[:start], head[start + len(digits) :]

    def prepare(self, drop: tuple[bytes, ...], add: bytes) -> None:
        """Work out ``forward``. drop: headers, lower case; add: whole header lines."""
        lines = self.lines
        for name in drop:
            if name in self.special:
                lines = without(lines, name)
        start = lines.lower().find(b"\r\ncontent-length:")
        if start < 0:
            self.forward = (lines + add, b"")
            return
        stop = lines.find(b"\r\n", start + 2)
        self.forward = (lines[:start] + b"\r\ncontent-length: ", lines[stop:] + add)

    def for_replica(self, length: int, lines: bytes) -> bytes:
        """The whole head. lines: further ones of this request."""
        before, after = self.forward
        if after:
            return b"%s%d%s%s\r\n" % (before, length, after, lines)
        return b"%s%s\r\n" % (before, lines)


#: Headers that belong to one request: a head with them is not kept.
_EACH_TIME_NEW = frozenset((b"x-request-id", b"traceparent", b"tracestate"))


class ResponseHead:
    """What a replica's head says, but for its digits.

    length_start, length_end: where the number of Content-Length stands; 0 and 0 where there is none.
    start: version and status, whose digits do matter: an answer that begins otherwise is another one.
    """

    __slots__ = ("chunked", "drop", "event_stream", "keep_alive", "length_end", "length_start", "start",
                 "until_close")  # fmt: skip

    def __init__(self, head: bytes, special: dict[bytes, bytes], keep_alive: bool) -> None:
        self.start = head[:13]
        self.chunked = b"transfer-encoding" in special
        self.keep_alive = keep_alive
        self.event_stream = special.get(b"content-type", b"").startswith(b"text/event-stream")
        self.drop = tuple(name for name in special if name in HOP_RESPONSE)
        self.until_close = not self.chunked and b"content-length" not in special
        self.length_start = self.length_end = 0
        if not self.chunked and not self.until_close:
            value = special[b"content-length"]
            self.length_start = head.find(value, head.lower().find(b"\r\ncontent-length:") + 17)
            self.length_end = self.length_start + len(value)


#: Heads of answers that were parsed, by their bytes with all digits made 0. Replicas choose them, so bounded.
KNOWN_RESPONSES: dict[bytes, ResponseHead] = {}
MAX_KNOWN = 512
NO_DIGITS = bytes(48 if 48 <= c <= 57 else c for c in range(256))

_PREFIX = os.urandom(8).hex().encode()
_NUMBERS = itertools.count(int.from_bytes(os.urandom(6), "big"))


def new_request_id() -> bytes:
    """32 hex digits: random ones of this process, then a number. Unique, not secret, and a tenth of a UUID's cost.

    The number is decimal: a replica that echoes it then answers with heads that differ in digits only.
    """
    return b"%s%016d" % (_PREFIX, next(_NUMBERS))


def request_id(given: bytes | None) -> bytes:
    """The client's own, if it can stand in a header and a log line; else a new one."""
    if given is not None and 0 < len(given) <= 128 and given.isascii() and given.decode().isprintable():
        return given
    return new_request_id()
