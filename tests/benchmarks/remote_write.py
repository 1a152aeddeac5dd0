"""Series into a running Prometheus by its remote-write receiver, fast enough for a fleet's history.

Only what a benchmark needs: samples that are made, not measured. The protocol is Prometheus' remote write 0.1.0, a
protobuf message in Snappy's block format; that format allows parts which are not compressed, and these are.
"""

from __future__ import annotations

import http.client
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

#: Different courses of one quantity; a series has the course of its ``variant`` modulo this.
VARIANTS = 32
#: Bytes of a message; Prometheus takes 32 MiB.
MESSAGE = 2 * 2**20


@dataclass(frozen=True, slots=True)
class Series:
    """One series and what it says: a counter that rises by ``value`` a second, or a gauge about ``value``.

    labels: encoded by ``labels``. Gauges and counters of different variants differ by up to 20 % either way, where
    ``spread``; those that count states or hold a 0 or 1 don't.
    """

    labels: bytes
    counter: bool
    value: float
    variant: int = 0
    spread: bool = True


def labels(name: str, pairs: Mapping[str, str]) -> bytes:
    """A series' labels as the protocol has them, in their order; empty ones are left out."""
    out = b""
    for key, value in sorted({**pairs, "__name__": name}.items()):
        if value:
            pair = _field(1, key.encode()) + _field(2, value.encode())
            out += _field(1, pair)
    return out


class Writer:
    """Writes to one Prometheus over one connection. ``samples`` counts what it took."""

    def __init__(self, url: str) -> None:
        self._client = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
        self.samples = 0

    def write(self, series: Iterable[Series], times: Sequence[float]) -> None:
        """All of them at all ``times`` (seconds since 1970, rising). Raises RuntimeError if it is refused."""
        courses: dict[tuple[bool, float, int], bytes] = {}
        parts: list[bytes] = []
        size = count = 0
        for s in series:
            key = (s.counter, s.value, s.variant % VARIANTS if s.spread else -1)
            course = courses.get(key)
            if course is None:
                course = courses[key] = _course(*key, times)
            one = _field(1, s.labels + course)
            parts.append(one)
            size += len(one)
            count += len(times)
            if size > MESSAGE:
                self._send(b"".join(parts))
                parts, size = [], 0
        if parts:
            self._send(b"".join(parts))
        self.samples += count

    def _send(self, message: bytes) -> None:
        body = _varint(len(message)) + b"\xfc" + struct.pack("<I", len(message) - 1) + message
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        self._client.request("POST", "/api/v1/write", body, headers)
        answer = self._client.getresponse()
        said = answer.read()
        if answer.status // 100 != 2:
            raise RuntimeError(f"Prometheus refused samples ({answer.status}): {said[:300]!r}")


def _course(counter: bool, value: float, variant: int, times: Sequence[float]) -> bytes:
    factor = 1.0 if variant < 0 else 0.8 + 0.4 * variant / VARIANTS
    out = []
    for t in times:
        # Counters began a while ago, so that every one of them is above 0.
        v = value * factor * (t - 1_700_000_000) if counter else value * factor
        out.append(_field(2, b"\x09" + struct.pack("<d", v) + b"\x10" + _varint(round(t * 1000))))
    return b"".join(out)


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(n: int) -> bytes:
    out = b""
    while n > 0x7F:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])
