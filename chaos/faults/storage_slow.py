"""Storage slow: each read and write takes longer, or all together get no more than so many bytes a second."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from chaos.engines import blkio, devicemapper, fuse, storage_reader
from chaos.fault import Fault, Parameters, Proof, Target

#: Seconds a probe waits; what takes longer is proven by not having come back.
_LIMIT = 1.5
#: Seconds' worth of bytes that a rate is measured with.
_WORTH = 0.4


class Slow(Parameters):
    latency: float = Field(
        0.2, ge=0, le=60, description="seconds that each read and write takes longer; 0: none"
    )
    bytes_per_second: float = Field(
        0, ge=0, description="bytes a second of all reads and writes; 0: no limit"
    )
    share: float = Field(
        1.0, gt=0, le=1, description="share of reads and writes that the latency meets (0-1)"
    )
    path: str = Field(
        "*", min_length=1, description="shell pattern of files below the mount; * also matches /"
    )


def _file(target: Target, p: Slow) -> str | None:
    assert target.node is not None
    return storage_reader.some_file(target.node, target.mount, p.path)


def _wants(p: Slow) -> str | None:
    return (
        None if p.latency or p.bytes_per_second else "latency and bytes_per_second are both 0: nothing to do"
    )


def _ask(target: Target, p: Slow, file: str, size: int, count: int) -> dict[str, Any]:
    assert target.node is not None
    return storage_reader.measure(
        target.node, target.mount, "read", file=file, size=size, count=count, limit=_LIMIT
    )


class _Measured:
    """What engines that add latency prove alike: a read past the page cache, before and with the fault."""

    def before(self, target: Target, p: Slow) -> Any:
        file = _file(target, p)
        assert file is not None  # refused otherwise
        return file, _ask(target, p, file, 4096, 5).get("read", {}).get("seconds", 0.0)

    def prove(self, target: Target, p: Slow, before: Any) -> Proof:
        file, was = before
        if p.bytes_per_second:
            now = _ask(target, p, file, max(4096, int(p.bytes_per_second * _WORTH)), 1)
            return rate(now, p.bytes_per_second)
        now = _ask(target, p, file, 4096, 5 if p.share < 1 else 1)
        if now["hung"]:
            return Proof(
                p.latency > 0.5 * _LIMIT, f"a read of 4 KiB did not come back in {_LIMIT:g} s", _LIMIT
            )
        if "read" not in now:
            return Proof(False, f"reading fails: {now['errors']}")
        took = now["read"]["slowest"]
        words = f"a read of 4 KiB takes {took * 1e3:.1f} ms, before {was * 1e3:.1f} ms"
        return Proof(took >= was / 2 + 0.9 * p.latency, words, took)


def rate(now: dict[str, Any], wanted: float) -> Proof:
    """Whether one long read went no faster than wanted, with a quarter to spare for what was already on its way."""
    if now["hung"]:
        return Proof(False, f"a read of {_WORTH:g} s' worth took over {_LIMIT:g} s")
    if "read" not in now:
        return Proof(False, f"reading fails: {now['errors']}")
    got = now["read"]["bytes"] / max(now["read"]["seconds"], 1e-9)
    return Proof(got <= 1.25 * wanted, f"reads {got / 1e6:.2f} MB/s, allowed {wanted / 1e6:.2f} MB/s", got)


class Daemon(_Measured, fuse.FaultFs):
    def refusal(self, target: Target, p: Slow) -> str | None:
        if (why := _wants(p) or super().refusal(target, p)) is not None:
            return why
        return (
            None
            if _file(target, p)
            else f"no file in {target.mount} fits {p.path!r}, so nothing could prove it"
        )

    def rules(self, target: Target, p: Slow) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = []
        if p.latency:
            ops = ["read", "write", "create", "fsync"]
            rules.append(
                {"fault": "latency", "seconds": p.latency, "share": p.share, "path": p.path, "ops": ops}
            )
        if p.bytes_per_second:
            rules.append({"fault": "bandwidth", "bytes_per_second": p.bytes_per_second, "path": p.path})
        return rules


class Throttle(blkio.Throttle):
    def refusal(self, target: Target, p: Slow) -> str | None:
        if not p.bytes_per_second or p.latency or p.path != "*" or p.share < 1:
            return "cgroups limit only bytes per second, of all files (latency=0, bytes_per_second=…)"
        if (why := super().refusal(target, p)) is not None:
            return why
        return None if _file(target, p) else f"no file in {target.mount}, so nothing could prove it"

    def before(self, target: Target, p: Slow) -> Any:
        return _file(target, p)

    def prove(self, target: Target, p: Slow, before: Any) -> Proof:
        size = max(4096, int(p.bytes_per_second * _WORTH))
        return rate(self.read(target, before, size, _LIMIT), p.bytes_per_second)


class Delay(_Measured, devicemapper.DeviceMapper):
    name = "dm-delay"
    how = "device-mapper's delay target in place of the volume's linear one, for each read and write"

    def refusal(self, target: Target, p: Slow) -> str | None:
        if not p.latency or p.bytes_per_second or p.path != "*" or p.share < 1:
            return "dm-delay knows only a latency of all reads and writes"
        if (why := super().refusal(target, p)) is not None:
            return why
        return None if _file(target, p) else f"no file in {target.mount}, so nothing could prove it"

    def table(self, linear: devicemapper.Linear, p: Slow) -> str:
        return f"0 {linear.sectors} delay {linear.device} {linear.offset} {round(p.latency * 1000)}"


FAULT = Fault(
    name="storage_slow",
    kind="storage",
    summary="reads and writes take longer, or get few bytes a second",
    engines=(Daemon("storage_slow"), Throttle(), Delay()),
    parameters=Slow,
)
