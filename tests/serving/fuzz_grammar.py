"""Requests and answers that are nearly well: grammar-aware mutations, then mutations of bytes. Seeded, no I/O."""

from __future__ import annotations

import random
from collections.abc import Callable

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
LINES = (
    b"content-length: 5", b"Content-Length: 0", b"content-length: +5", b"content-length: 5, 5", b"content-length: 0x5",
    b"content-length: -1", b"content-length: 99999999999999999999", b"content-length:", b"content-length : 5",
    b"content-length: 5 5", b" content-length: 5", b"transfer-encoding: chunked", b"Transfer-Encoding : chunked",
    b"transfer-encoding: xchunked", b"transfer-encoding: chunked, identity", b"transfer-encoding: identity",
    b"transfer-encoding: gzip, chunked", b"transfer-encoding:\x0bchunked", b"transfer-encoding: chunked\r\n ,x",
    b"x: a\r\n b", b"x: a\r\n\tcontent-length: 7", b"x: a\nfoo: b", b"x: a\rfoo: b", b"x: \x00", b"x\x00: a",
    b"x y: a", b": a", b"x", b"x:", b"x: \xff\x80", b"\xff: a", b"connection: close", b"connection: keep-alive",
    b"connection: host", b"connection: content-length", b"connection: transfer-encoding, close", b"connection: upgrade",
    b"connection: x-request-id", b"keep-alive: timeout=5", b"upgrade: websocket", b"upgrade: h2c",
    b"expect: 100-continue", b"expect: x", b"host: a", b"Host: b", b"host:", b"te: trailers", b"trailer: x",
    b"x-request-id: \x01\x7f", b"x-request-id: " + b"a" * 200, b"x-request-id: ok", b"x-request-timeout: 0.01",
    b"x-request-timeout: nan", b"x-request-timeout: 1e999", b"x-session-id: s", b"traceparent: 00-1-2-3",
    b"authorization: Bearer x", b"x-exaserve-replica: evil", b"x: " + b"y" * 9000, b"sec-websocket-key: AA==",
)  # fmt: skip
SIZES = (b"0", b"5", b"005", b"5;a=b", b'5;a="\r\n"', b"5 ", b" 5", b"0x5", b"-5", b"+5", b"fffffffffffffffff", b"g", b"",
         b"5\n", b"7fffffff", b"5;" + b"e" * 5000)  # fmt: skip
FIRSTS = (
    b"GET / HTTP/1.1", b"GET /v1/models HTTP/1.1", b"HEAD /v1/models HTTP/1.1", b"GET /health HTTP/1.0",
    b"POST /v1/completions HTTP/1.1", b"POST http://h/v1/chat/completions HTTP/1.1", b"POST * HTTP/1.1",
    b"OPTIONS * HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"GET /v1/realtime HTTP/1.1", b"PRI * HTTP/2.0",
    b"POST /v1/chat/completions HTTP/1.2", b"POST /v1/chat/completions HTTP/2.0", b"POST /v1/chat/completions",
    b"POST  /v1/chat/completions HTTP/1.1", b"POST /a b HTTP/1.1", b"POST /\xff HTTP/1.1", b"POST /%2e%2e/x?a#b HTTP/1.1",
    b"POST /v1/chat/completions HTTP/1.1 ", b"POST\t/v1/x HTTP/1.1", b"DELETE /x HTTP/1.1", b"QUERY /x HTTP/1.1",
    b"post /v1/x HTTP/1.1", b"POST /v1/embeddings HTTP/1.1", b"GET /metrics HTTP/1.1", b"GET ?x HTTP/1.1",
    b"GET http:// HTTP/1.1", b"GET //metrics HTTP/1.1", b"POST /v1/chat/completions\x00 HTTP/1.1",
)  # fmt: skip
STATUS = (
    b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 X", b"HTTP/1.1 100 Continue",
    b"HTTP/1.1 101 X", b"HTTP/1.1 103 X", b"HTTP/1.1 503 X", b"HTTP/1.1 429 X", b"HTTP/1.1 999 X", b"HTTP/1.1 000 X",
    b"HTTP/1.1 2000 X", b"HTTP/1.1 20 X", b"HTTP/2.0 200 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 200", b"ICY 200 OK",
    b"http/1.1 200 OK", b"HTTP/1.1 200 \xff\x00",
)  # fmt: skip


def chunked(rng: random.Random, body: bytes, wild: bool) -> bytes:
    out = b""
    while body:
        n = rng.randint(1, max(1, len(body)))
        size = b"%x" % n if not (wild and rng.random() < 0.3) else rng.choice(SIZES)
        out += (
            size
            + (b"\r\n" if not (wild and rng.random() < 0.1) else rng.choice((b"\n", b"", b"\r")))
            + body[:n]
        )
        out += b"\r\n" if not (wild and rng.random() < 0.1) else rng.choice((b"\n", b"", b"XX"))
        body = body[n:]
    ends = (b"0\r\n\r\n",) * 5 + (b"0\r\nx: y\r\n\r\n", b"0\r\n", b"00\r\n\r\n", b"", b"0\r\n" + SMUGGLED)
    return out + (rng.choice(ends) if wild else ends[0])


def request(rng: random.Random, token: bytes) -> bytes:
    """One request, well or nearly so; ``token`` is in its headers."""
    wild = rng.random() < 0.6
    first, body = b"POST /v1/chat/completions HTTP/1.1", rng.choice((CHAT, CHAT[:-1] + b',"stream":true}'))
    if rng.random() < 0.5:  # a path where a body may be anything
        first, body = (
            b"POST /v1/score HTTP/1.1",
            rng.choice((b"", b"5\r\nabcde\r\n0\r\n\r\n", b"x" * rng.randint(0, 3000))),
        )
        if rng.random() < 0.5:
            body += SMUGGLED
    if wild and rng.random() < 0.4:
        first = rng.choice(FIRSTS)
    lines = [b"host: x", b"x-token: " + token]
    if rng.random() < 0.3:
        lines.append(b"transfer-encoding: chunked")
        rest = chunked(rng, body, wild)
    else:
        lines.append(b"content-length: %d" % len(body))
        rest = body
    return _message(rng, first, lines, rest, wild)


def answer(rng: random.Random, token: bytes) -> tuple[bytes, bool]:
    """One answer to a POST, and whether it is well."""
    wild = rng.random() < 0.6
    body = b'{"choices":[],"token":"%s"}' % token
    lines = [b"content-type: application/json", b"x-token: " + token]
    kind = rng.random()
    if kind < 0.3:
        lines[0] = b"content-type: text/event-stream"
        body = b"".join(b"data: %s-%d\n\n" % (token, i) for i in range(rng.randint(1, 5)))
    first = rng.choice(STATUS) if wild and rng.random() < 0.5 else STATUS[0]
    if kind < 0.5:
        lines.append(b"transfer-encoding: chunked")
        rest = chunked(rng, body, wild) if wild else b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        lines.append(b"content-length: %d" % len(body))
        rest = body
    if wild and rng.random() < 0.2:
        rest += rng.choice((b"x", b"\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"))
    return _message(rng, first, lines, rest, wild), not wild


def _message(rng: random.Random, first: bytes, lines: list[bytes], rest: bytes, wild: bool) -> bytes:
    if wild:
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            at = rng.randint(0, len(lines))
            act = rng.random()
            if act < 0.7:
                lines.insert(at, rng.choice(LINES))
            elif lines and act < 0.85:
                lines.pop(at % len(lines))
            elif lines:
                lines.insert(at, lines[at % len(lines)].swapcase())
    end = b"\r\n" if not wild or rng.random() < 0.9 else rng.choice((b"\n", b"\r", b"\n\r", b"\r\r\n"))
    data = first + end + b"".join(line + end for line in lines) + end + rest
    if wild:
        while rng.random() < 0.3:
            data = rng.choice(BYTES)(rng, data)
    return data


def _flip(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice((b"\r\n", b"\n", b"\x00", b" ", b"\r\n\r\n", rng.randbytes(3))) + data[at:]


def _cut(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randint(1, 8) :]


def _end(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _twice(rng: random.Random, data: bytes) -> bytes:
    at, to = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:to] + data[at:to] + data[to:]


BYTES: tuple[Callable[[random.Random, bytes], bytes], ...] = (_flip, _flip, _insert, _cut, _end, _twice)


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """``data`` as it may come out of the network."""
    if rng.random() < 0.4 or not data:
        return [data]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((1, 1, 2, 5, 20))))
    out = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [p for p in out if p]
