"""Storage I/O errors: reads or writes fail, as with a dying disk or a server that lost the file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from chaos.engines import devicemapper, fuse, storage_reader
from chaos.fault import Fault, Parameters, Proof, Target


class IoError(Parameters):
    error: Literal["EIO", "ESTALE", "ETIMEDOUT", "EREMOTEIO"] = Field(
        "EIO", description="how they fail (a name of errno); dm-flakey knows EIO alone"
    )
    operations: Literal["read", "write", "all"] = Field(
        "read", description="what fails: reads, changes, or both and looking at names"
    )
    share: float = Field(1.0, gt=0, le=1, description="share of operations that fail (0-1)")
    path: str = Field(
        "*", min_length=1, description="shell pattern of files below the mount; * also matches /"
    )


class _Fails:
    """What both engines prove alike: the error is seen by a read past the page cache, or by a write."""

    def before(self, target: Target, p: IoError) -> Any:
        assert target.node is not None
        return storage_reader.some_file(target.node, target.mount, p.path)

    def prove(self, target: Target, p: IoError, before: Any) -> Proof:
        assert target.node is not None
        what = "write" if p.operations == "write" else "read"
        count = 1 if p.share == 1 else 50
        now = storage_reader.measure(target.node, target.mount, what, file=before or "", count=count)
        error = now["errors"].get(what, "works")
        return Proof(error == p.error, f"a {what}: {error}")


def _unprovable(target: Target, p: IoError) -> str | None:
    assert target.node is not None
    if p.operations == "write":
        return (
            None
            if p.path == "*"
            else "path: errors of writes alone can only be proven for all files (path=*)"
        )
    if storage_reader.some_file(target.node, target.mount, p.path):
        return None
    return f"no file in {target.mount} fits {p.path!r}, so nothing could prove it"


class Daemon(_Fails, fuse.FaultFs):
    how = (
        "the lab's own file system (FUSE) answers with the error; a mapped page that is touched gives SIGBUS"
    )

    def refusal(self, target: Target, p: IoError) -> str | None:
        return super().refusal(target, p) or _unprovable(target, p)

    def rules(self, target: Target, p: IoError) -> list[dict[str, Any]]:
        ops = ["*"] if p.operations == "all" else [p.operations]
        return [{"fault": "error", "errno": p.error, "ops": ops, "share": p.share, "path": p.path}]


class Flakey(_Fails, devicemapper.DeviceMapper):
    name = "dm-flakey"
    how = "device-mapper's flakey target in place of the volume's linear one; what is cached is still read"

    def refusal(self, target: Target, p: IoError) -> str | None:
        if p.error != "EIO" or p.share < 1 or p.path != "*":
            return "dm-flakey fails every request with EIO (error=EIO, share=1, path=*)"
        return super().refusal(target, p) or _unprovable(target, p)

    def table(self, linear: devicemapper.Linear, p: IoError) -> str:
        # 0 s up, an hour down: longer than any fault.
        feature = {"read": " 1 error_reads", "write": " 1 error_writes", "all": ""}[p.operations]
        return f"0 {linear.sectors} flakey {linear.device} {linear.offset} 0 3600{feature}"


FAULT = Fault(
    name="storage_io_error",
    kind="storage",
    summary="reads or writes fail with an error",
    engines=(Daemon("storage_io_error"), Flakey()),
    parameters=IoError,
)
