"""What a link does to traffic, measured from this machine: lost echoes, round trips, throughput.

Echoes are ICMP (a raw socket, so root), because they need nobody on the other side who listens; throughput is one TCP
connection of about a second to a sink that is started on the node. Bounded in count, bytes and time.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

from chaos.fault import Refused
from chaos.place import Node

_SECONDS = 1.0  # that a transfer is measured for
# Says its port, then how many bytes came, and ends with the connection.
_SINK = """
import socket, sys
s = socket.create_server((sys.argv[1], 0)); s.settimeout(8)
print(s.getsockname()[1], flush=True)
c, _ = s.accept(); c.settimeout(8); n = 0
while data := c.recv(1 << 16):
    n += len(data)
print(n, flush=True)
"""


@dataclass(frozen=True)
class Echoes:
    """sent, received: numbers. rtt: median round trip in seconds, None if none came back."""

    sent: int
    received: int
    rtt: float | None

    @property
    def loss(self) -> float:
        """Share lost, 0-1."""
        return 1 - self.received / self.sent if self.sent else 1.0


def echoes(address: str, count: int = 200, size: int = 56, gap: float = 0.004, wait: float = 1.0) -> Echoes:
    """Send ``count`` echo requests of ``size`` bytes (don't fragment), ``gap`` seconds apart; wait for the last ones.

    Raises Refused where no raw socket may be opened or there is no route.
    """
    try:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except OSError as error:
        raise Refused(
            f"a raw socket is needed to measure the link ({error.strerror}); run it as root"
        ) from None
    me = os.getpid() & 0xFFFF
    sent: dict[int, float] = {}
    rtts: list[float] = []
    with raw:
        raw.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER = IP_PMTUDISC_DO
        raw.settimeout(0)
        begin, end = time.monotonic(), math.inf
        while len(rtts) < count:
            now = time.monotonic()
            if len(sent) < count and now >= begin + len(sent) * gap:
                number = len(sent)
                sent[number] = now
                with contextlib.suppress(OSError):  # no carrier, or too large here: it won't come back
                    raw.sendto(_request(me, number, size), (address, 0))
                if len(sent) == count:
                    end = now + wait
            # All are sent, and what has come is read before the time counts: while a busy machine does not let this
            # process run, answers wait here, and would be taken for lost.
            over = time.monotonic() >= end
            while _answer(raw, me, sent, rtts):
                pass
            if over:
                break
            next_one = begin + len(sent) * gap if len(sent) < count else end
            select.select([raw], [], [], max(0.0, next_one - time.monotonic()))
    return Echoes(len(sent), len(rtts), statistics.median(rtts) if rtts else None)


def _answer(raw: socket.socket, me: int, sent: dict[int, float], rtts: list[float]) -> bool:
    """Read a packet; False if none is there."""
    try:
        packet = raw.recv(65535)
    except OSError:
        return False
    now = time.monotonic()
    header = (packet[0] & 15) * 4
    if len(packet) >= header + 8:
        kind, _, _, who, number = struct.unpack("!BBHHH", packet[header : header + 8])
        if kind == 0 and who == me and number in sent and sent[number] > 0:
            rtts.append(now - sent[number])
            sent[number] = 0.0  # a duplicate counts once
    return True


def _request(me: int, number: int, size: int) -> bytes:
    body = bytes(size)
    header = struct.pack("!BBHHH", 8, 0, 0, me, number)
    return struct.pack("!BBHHH", 8, 0, _checksum(header + body), me, number) + body


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) & ~1]))
    total += data[-1] << 8 if len(data) & 1 else 0
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def throughput(node: Node) -> float:
    """Bits per second of one TCP connection to the node; 0 where none came about. Raises Refused without Python."""
    python = "python3" if node.remote else sys.executable
    argv = [*node.prefix, python, "-I", "-c", _SINK, node.address]
    sink = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert sink.stdout is not None
        port = sink.stdout.readline().strip()
        if not port.isdigit():
            raise Refused(f"no sink for a transfer could be started on {node.name}")
        sent, seconds = _pour(node.address, int(port))
        if not sent:
            return 0.0
        got = sink.stdout.readline().strip() if select.select([sink.stdout], [], [], 8)[0] else ""
        return int(got) * 8 / seconds if got.isdigit() else 0.0
    finally:
        sink.kill()
        sink.wait()
        if sink.stdout is not None:
            sink.stdout.close()


def _pour(address: str, port: int) -> tuple[int, float]:
    """Bytes sent within a second, and the seconds until all of them had been taken."""
    block, sent = bytes(1 << 16), 0
    begin = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=2) as connection:
            begin = time.monotonic()
            while time.monotonic() < begin + _SECONDS and sent < 1 << 30:
                sent += connection.send(block)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(5)
            connection.recv(1)  # the sink closes once it has read all
    except OSError:
        return 0, 1.0
    return sent, time.monotonic() - begin
