"""The node's local cache of weights is empty: what starts then has to fetch or convert them again.

The folder is renamed, so it comes back as it was. What has been filled into its place meanwhile gives way.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from chaos import steps
from chaos.engines import mounts, storage_reader
from chaos.fault import Engine, Fault, Parameters, Plan, Proof, Target

# $1: the folder, $2: where it waits, $3: where what took its place is put, to be removed. From any state.
_BACK = (
    'if [ -d "$2" ]; then if [ -e "$1" ]; then rm -rf "$3"; mv "$1" "$3" || exit 1; fi; mv "$2" "$1" || exit 1; fi;'
    ' rm -rf "$3"'
)


class CacheEmpty(Parameters):
    folder: str = Field("models", description="the cache's folder below the mount")

    @field_validator("folder")
    @classmethod
    def _inside(cls, value: str) -> str:
        parts = value.strip("/").split("/")
        if not all(parts) or {".", ".."} & set(parts):
            raise ValueError("a folder below the mount is needed, such as models")
        return "/".join(parts)


class Rename(Engine):
    name = "rename"
    how = "the folder is renamed, and named back by the undo; files that are open stay open"

    def refusal(self, target: Target, p: CacheEmpty) -> str | None:
        assert target.node is not None
        path = _path(target, p)
        if target.node.read(["test", "-d", path]).returncode:
            return f"{path} is no folder on {target.node.name} (folder=…)"
        if storage_reader.mount_at(target.node, path) is not None:
            return f"{path} is a mount point and can't be renamed (storage_gone takes it away)"
        if not storage_reader.some_file(target.node, path):
            return f"{path} is empty already"
        if target.node.read(["test", "-w", path.rpartition("/")[0]]).returncode:
            return f"{path.rpartition('/')[0]} may not be written to"
        return None

    def before(self, target: Target, p: CacheEmpty) -> Any:
        assert target.node is not None
        found = storage_reader.measure(target.node, _path(target, p), "names", limit=storage_reader.BEFORE)
        return found.get("names", [])

    def plan(self, target: Target, p: CacheEmpty, duration: float) -> Plan:
        path = _path(target, p)
        away, new = f"{path}.chaos-away", f"{path}.chaos-new"
        move = steps.run(["mv", "-n", "-T", path, away], node=target.node)
        where = mounts.keeper(target, path)
        back = steps.run(["sh", "-c", _BACK, "sh", path, away, new], node=where, timeout=60.0)
        return Plan([move], [back], (f"folder:{target.node.name if target.node else ''}:{path}",))

    def prove(self, target: Target, p: CacheEmpty, before: Any) -> Proof:
        assert target.node is not None
        path = _path(target, p)
        away = storage_reader.measure(target.node, f"{path}.chaos-away", "names").get("names")
        if away is None:
            return Proof(False, f"{path} is still there")
        now = storage_reader.measure(target.node, path, "names").get("names", [])
        words = f"{len(away)} of {len(before)} names of {path} are away, {len(now)} new ones are there"
        return Proof(away == before, words, float(len(away)))


def _path(target: Target, p: CacheEmpty) -> str:
    return f"{target.mount}/{p.folder}"


FAULT = Fault(
    name="storage_cache_empty",
    kind="storage",
    summary="the node's local cache of weights is empty",
    engines=(Rename(),),
    parameters=CacheEmpty,
)
