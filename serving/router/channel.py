"""Messages between the router's master and its workers: msgpack over a socket pair, each with its length before it.

What the messages mean to a worker is in ``worker.py`` and ``link.py``, to the master in ``master.py``. Replicas
are named by their number (``replica.index``). Both ends are the same version of the same program.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from serving.fleet.replica import Replica
from serving.router.limits import Grant, Report
from serving.router.snapshot import Snapshot

#: A message beyond this is no message: the channel is closed. 8,192 replicas with 10 models each are 10 MB.
MAX_BYTES = 64 * 2**20
_LENGTH = struct.Struct("<I")


class _Message(msgspec.Struct, tag=True, array_like=True):
    pass


# --- to a worker ---


class ReplicaNews(msgspec.Struct, array_like=True):
    """A replica as a worker that does not know it needs it."""

    index: int
    name: str
    url: str
    host: str
    port: int
    scheme: str
    path: str
    weight: float
    model: str
    models: list[dict[str, Any]]
    state: list[Any]
    load: list[Any]

    @classmethod
    def of(cls, r: Replica) -> ReplicaNews:
        return cls(
            r.index, r.name, r.url, r.host, r.port, r.scheme, r.path, r.base_weight, r.model, r.models,
            r.state_news(), r.load_news(),
        )  # fmt: skip

    def replica(self) -> Replica:
        """A new Replica of this process."""
        r = Replica(
            self.name, self.url, self.host, self.port, scheme=self.scheme, path=self.path, weight=self.weight,
            model=self.model,
        )  # fmt: skip
        r.index, r.models = self.index, self.models
        r.take_state(self.state)
        r.take_load(self.load)
        return r


class Start(_Message):
    """The first message. config: the whole configuration as JSON. panicking: pools in panic mode."""

    config: bytes
    replicas: list[ReplicaNews]
    panicking: list[str]


class Members(_Message):
    """The set of replicas changed. removed: finish what is open there, then say Forgotten."""

    added: list[ReplicaNews]
    removed: list[int]


class States(_Message):
    """rows: (replica, Replica.state_news). out: (replica, why its open attempts are lost), after the rows."""

    rows: list[tuple[int, list[Any]]]
    out: list[tuple[int, str]]


class Loads(_Message):
    """rows: (replica, Replica.load_news)."""

    rows: list[tuple[int, list[Any]]]


class Models(_Message):
    replica: int
    model: str
    models: list[dict[str, Any]]
    kv_tokens: int | None


class Panic(_Message):
    pool: str
    on: bool


class Reload(_Message):
    """A configuration that the master has checked, as JSON; None: it is the same. tenants, tls: their files changed."""

    config: bytes | None
    tenants: bool
    tls: bool


class Grants(_Message):
    """The worker's part of the tenants' limits."""

    tenants: dict[str, Grant]


class Ask(_Message):
    """Send your numbers now; ``whole``: also what has not changed."""

    number: int


class Stop(_Message):
    """No new requests; open ones may end within ``seconds``; then say Stopped and exit."""

    seconds: float


ToWorker = Start | Members | States | Loads | Models | Panic | Reload | Grants | Ask | Stop

# --- to the master ---


class Ready(_Message):
    """It listens."""


class Failed(_Message):
    """It can't start, and why."""

    why: str


class Beat(_Message):
    """A sign of life. heard: (replica, pieces of bytes since the last one)."""

    heard: list[tuple[int, int]]
    tenants: dict[str, Report]


class Outcomes(_Message):
    """ended: (replica, attempts by OUTCOMES). passive: rows of LocalOutcomes.take, for Health.observe."""

    ended: list[tuple[int, list[int]]]
    passive: list[tuple[int, int, int, int, float]]


class Refused(_Message):
    """Nobody listens there."""

    replica: int


class Eject(_Message):
    """This worker has ejected it for now."""

    replica: int
    why: str


class Numbers(_Message):
    """Metrics. number: of the Ask that this answers, 0 if nobody asked."""

    number: int
    snapshot: Snapshot


class Forgotten(_Message):
    """Nothing is open there any more."""

    replica: int


class Stopped(_Message):
    """cut: requests that did not end in time. The process exits now."""

    cut: int


ToMaster = Ready | Failed | Beat | Outcomes | Refused | Eject | Numbers | Forgotten | Stopped

Message = TypeVar("Message")
_encoder = msgspec.msgpack.Encoder()


def pack(message: Any) -> bytes:
    """As it goes over the channel; packed once where several workers get it."""
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


class Channel(asyncio.Protocol, Generic[Message]):
    """One end. ``kind`` is what comes in (ToWorker or ToMaster); ``take`` gets each message, ``lost`` the end."""

    def __init__(self, kind: Any, take: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._take = take
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if size > MAX_BYTES:
                self.close()
                return
            end = at + _LENGTH.size + size
            if len(buffer) < end:
                break
            message = self._decoder.decode(memoryview(buffer)[at + _LENGTH.size : end])
            at = end
            self._take(message)
        if at:
            del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def send(self, message: Any) -> None:
        self.send_packed(pack(message))

    def send_packed(self, data: bytes) -> None:
        """Nothing is sent once the other end is gone. An end that doesn't read for long is given up."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > MAX_BYTES:
            self.close()

    @property
    def behind(self) -> bool:
        """Whether the other end has not read what it got: spare it what can wait."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 2**18

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
