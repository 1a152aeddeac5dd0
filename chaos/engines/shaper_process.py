"""Passes frames between a network interface and a bridge, each a while later. Run as a file, with the standard library
alone: ``shaper_process.py PORT BRIDGE TAP SECONDS JITTER``.

Frames carry the kernel's virtio header on both sides, so that large segments and unfinished checksums go through as
they are. At most 8 MiB wait in a direction; what comes beyond that is dropped, as a full queue would. Ends on SIGTERM,
and puts the port back into the bridge; a killed one leaves that to the undo.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial

# Of linux/if_tun.h, linux/if_packet.h.
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x400454CA, 0x0002, 0x1000, 0x4000
_TUNSETOFFLOAD, _TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO6 = 0x400454D0, 0x01, 0x02, 0x04
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_OUTGOING, _ETH_P_ALL = 263, 15, 4, 3
_MOST = 8 << 20
_FRAME = (1 << 16) + 64


class Way:
    """Frames in one direction, oldest first. A frame never overtakes another, whatever the jitter."""

    def __init__(self, delay: float, jitter: float) -> None:
        self.delay, self.jitter = delay, jitter
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.bytes = 0

    def take(self, frame: bytes, now: float) -> None:
        if self.bytes + len(frame) > _MOST:
            return
        due = now + self.delay + (random.uniform(-self.jitter, self.jitter) if self.jitter else 0.0)  # noqa: S311
        if self.waiting:
            due = max(due, self.waiting[-1][0])
        self.waiting.append((due, frame))
        self.bytes += len(frame)

    def due(self, now: float) -> bytes | None:
        if self.waiting and self.waiting[0][0] <= now:
            frame = self.waiting.popleft()[1]
            self.bytes -= len(frame)
            return frame
        return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6)
    return fd


def _packets(port: str) -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    raw.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _MOST)
    raw.bind((port, _ETH_P_ALL))
    raw.setblocking(False)
    return raw


def main(port: str, bridge: str, tap: str, seconds: str, jitter: str) -> None:
    device = _tap(tap)
    raw = _packets(port)
    _ip("link", "set", "dev", tap, "up", "master", bridge)
    _ip("link", "set", "dev", port, "nomaster")
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    print("ready", flush=True)
    to_node, from_node = (Way(float(seconds), float(jitter)) for _ in range(2))
    try:
        while not ended:
            _turn(device, raw, to_node, from_node)
    finally:
        os.close(device)
        _ip("link", "set", "dev", port, "master", bridge)


def _turn(device: int, raw: socket.socket, to_node: Way, from_node: Way) -> None:
    now = time.monotonic()
    next_due = min((way.waiting[0][0] for way in (to_node, from_node) if way.waiting), default=now + 0.2)
    try:
        select.select([device, raw.fileno()], [], [], max(0.0, min(next_due - now, 0.2)))
    except InterruptedError:
        return
    now = time.monotonic()
    for _ in range(256):
        try:
            to_node.take(os.read(device, _FRAME), now)
        except BlockingIOError:
            break
    for _ in range(256):
        try:
            frame, where = raw.recvfrom(_FRAME)
        except BlockingIOError:
            break
        if where[2] != _PACKET_OUTGOING:  # not what we sent ourselves
            from_node.take(frame, now)
    while (frame_due := to_node.due(now)) is not None:
        _send(raw.send, frame_due)
    while (frame_due := from_node.due(now)) is not None:
        _send(partial(os.write, device), frame_due)


def _send(put: Callable[[bytes], int], frame: bytes) -> None:
    with contextlib.suppress(OSError):  # the other side is full or gone: lost, as on a wire
        put(frame)


if __name__ == "__main__":
    main(*sys.argv[1:])
