"""Storage gives back a file wrong: bytes of it read inverted, while the file itself stays whole."""

from __future__ import annotations

import glob
import hashlib
from typing import Any

from pydantic import Field

from chaos import steps
from chaos.engines import fuse, mounts, storage_reader
from chaos.fault import Fault, Parameters, Plan, Proof, Refused, Target

#: Where the wrong copy of the bind engine lies.
COPIES = mounts.HOLD
MAX_COPY = 2**30
# argv: file, copy, start, every. The copy's inverted bytes are written into the holes of a whole copy.
_COPY = """
import os, shutil, sys
source, target, start, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
shutil.copyfile(source, target)
shutil.copystat(source, target)
with open(target, "r+b") as f:
    for at in range(start, os.path.getsize(target), every):
        f.seek(at)
        byte = f.read(1)
        f.seek(at)
        f.write(bytes((byte[0] ^ 255,)))
"""
_REMOVE = 'rm -f "$1" && { rmdir "${1%/*}" 2>/dev/null; true; }'


class Corrupt(Parameters):
    file: str = Field(
        "*.safetensors",
        min_length=1,
        description="shell pattern of the file below the mount; the largest is taken",
    )
    start: int = Field(0, ge=0, le=2**20, description="offset of the first wrong byte (bytes)")
    every: int = Field(4096, ge=1, description="bytes from one wrong byte to the next")


def _file(target: Target, p: Corrupt) -> str | None:
    assert target.node is not None
    return storage_reader.some_file(target.node, target.mount, p.file)


class _Differs:
    """What both engines prove alike: the beginning of the file reads otherwise than before, and is as long."""

    def before(self, target: Target, p: Corrupt) -> Any:
        file = _file(target, p)
        return file, self._read(target, p, file or "", limit=storage_reader.BEFORE)

    def _read(self, target: Target, p: Corrupt, file: str, **limit: float) -> dict[str, Any]:
        assert target.node is not None
        size = p.start + 65536
        found = storage_reader.measure(target.node, target.mount, "read", file=file, size=size, **limit)
        return found.get("read") or {"error": found["errors"] or "it hangs"}

    def prove(self, target: Target, p: Corrupt, before: Any) -> Proof:
        file, was = before
        now = self._read(target, p, file or "")
        if "sha256" not in now or "sha256" not in was:
            return Proof(False, f"{file} can't be read: {now.get('error') or was.get('error')}")
        words = f"sha256 of the first {now['bytes']} bytes of {file}: {now['sha256'][:12]}, before {was['sha256'][:12]}"
        return Proof(now["sha256"] != was["sha256"] and now["bytes"] == was["bytes"], words)

    @staticmethod
    def unprovable(target: Target, p: Corrupt) -> str | None:
        return None if _file(target, p) else f"no file in {target.mount} fits {p.file!r} (file=…)"


class Daemon(_Differs, fuse.FaultFs):
    how = "the lab's own file system (FUSE) inverts bytes as they are read; open and mapped files see it too"

    def refusal(self, target: Target, p: Corrupt) -> str | None:
        return super().refusal(target, p) or self.unprovable(target, p)

    def rules(self, target: Target, p: Corrupt) -> list[dict[str, Any]]:
        file = glob.escape(_file(target, p) or p.file)
        return [{"fault": "corrupt", "path": file, "start": p.start, "every": p.every}]


class Cover(_Differs, mounts.MountEngine):
    name = "bind"
    how = "a wrong copy of the file is bind-mounted over it; only opens from then on see it"

    def refusal(self, target: Target, p: Corrupt) -> str | None:
        assert target.node is not None
        if (why := super().refusal(target, p) or self.unprovable(target, p)) is not None:
            return why
        said = target.node.read(["stat", "-c", "%s", f"{target.mount}/{_file(target, p)}"]).stdout
        if not said.strip().isdigit() or int(said) > MAX_COPY:
            return f"a copy of {_file(target, p)} would need {said.strip()} bytes in {COPIES}, at most {MAX_COPY} may"
        return None

    def plan(self, target: Target, p: Corrupt, duration: float) -> Plan:
        assert target.node is not None
        if (short := _file(target, p)) is None:
            raise Refused(f"{target.name}: the file is not there any more; nothing was done")
        path = f"{target.mount}/{short}"
        copy = f"{COPIES}/corrupt-{hashlib.sha256(f'{target.name}/{short}'.encode()).hexdigest()[:12]}"
        make = [storage_reader.python(target.node), "-I", "-c", _COPY, path, copy, str(p.start), str(p.every)]
        # Not inside a lab's node: its mount ends with it, the copy lies here and does not.
        remove = steps.run(["sh", "-c", _REMOVE, "sh", copy])
        return Plan(
            [
                steps.mkdir(COPIES),
                steps.run(make, node=target.node, timeout=60.0),
                steps.run(["mount", "--bind", copy, path], node=target.node),
            ],
            [steps.unmount(path, copy.rpartition("/")[2], node=target.node), remove],
            (f"file:{path}",),
        )


FAULT = Fault(
    name="storage_corrupt_file",
    kind="storage",
    summary="bytes of a file read wrong; the file itself stays whole",
    engines=(Daemon("storage_corrupt_file"), Cover()),
    parameters=Corrupt,
)
