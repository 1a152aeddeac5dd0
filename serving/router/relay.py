"""The two connections of a tunnel as protocols: bytes from one go to the other, no faster than it takes them.

What the bytes mean before the tunnel stands, and how it ends, is websocket.py's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.router.websocket import Tunnel


class Side(asyncio.Protocol):
    """One of the two connections; ``peer`` is the other one. Before both are open, the tunnel takes what comes."""

    def __init__(self, tunnel: Tunnel) -> None:
        self.tunnel = tunnel
        self.transport: asyncio.Transport | None = None
        self.peer: Side = self
        self.last = b""  # its newest bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def pause_writing(self) -> None:
        self.peer.read(False)

    def resume_writing(self) -> None:
        self.peer.read(True)

    def eof_received(self) -> bool:
        return self.tunnel.eof(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.tunnel.lost(self, exc)

    def read(self, on: bool) -> None:
        if self.transport is not None and not self.transport.is_closing():
            if on:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """What was written is still sent."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class ClientSide(Side):
    def data_received(self, data: bytes) -> None:
        tunnel = self.tunnel
        if tunnel.relaying:
            tunnel.moved = True
            self.last = data
            self.peer.write(data)
        else:
            tunnel.early_data(data)


class ReplicaSide(Side):
    def data_received(self, data: bytes) -> None:
        tunnel = self.tunnel
        tunnel.replica.heard += 1
        if tunnel.relaying:
            tunnel.moved = True
            self.last = data
            self.peer.write(data)
        else:
            tunnel.answer_data(data)


def ends_with_close_frame(data: bytes) -> bool:
    """Whether bytes end in a close frame (RFC 6455 5.2, 5.5.1): 0x88, a length up to 125, as much payload.

    A client's has a bit set beside the length and four bytes of mask before the payload.
    """
    size = len(data)
    for n in range(126):
        at = size - n - 2
        if at >= 0 and data[at] == 0x88 and data[at + 1] == n:
            return True
        if at >= 4 and data[at - 4] == 0x88 and data[at - 3] == n | 0x80:
            return True
    return False
