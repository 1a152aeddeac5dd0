"""A lab's storage: a folder that stands for the storage server, and on each node a local and a shared mount.

All are mounted on the machine, below the lab's folder, which is a shared mount of itself; a node has a slave of
it. So what is mounted or unmounted here is seen in the nodes, and what a node mounts stays with it. The shared
mount's file system and its faults are ``faultfs.py``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chaos import identity
from chaos.lab import mounts
from chaos.lab.state import MARK, LabError, State

#: Bytes of a node's local disk: room for the model and as much again.
_LOCAL_SIMULATED, _LOCAL_REAL = 64 * 2**20, 640 * 2**20
#: Bytes of the file that a simulated replica's start copies.
_SIMULATED_MODEL = 4 * 2**20


def server(state: State) -> Path:
    """The folder behind every node's shared mount."""
    return Path(state["folder"]) / "shared"


def make(state: State) -> None:
    """The lab's folder as a shared mount, and what lies on the storage server. Raises OSError."""
    place = state["folder"]
    if not mounts.below(place):
        mounts.mount(place, place, flags=mounts.BIND)
    mounts.mount("", place, flags=mounts.SHARED)
    model = server(state) / "models" / "simulated"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": "simulated"}))
    (model / "model.safetensors").write_bytes(random.Random(0).randbytes(_SIMULATED_MODEL))  # noqa: S311


def copy_model(state: State, source: Path) -> Path:
    """Put a real model on the storage server. Raises OSError."""
    target = server(state) / "models" / source.name
    shutil.copytree(source, target, copy_function=shutil.copy2, dirs_exist_ok=True)
    return target


def ensure(state: State, nodes: list[State], say: Callable[[str], None]) -> None:
    """The nodes' mounts as they should be: missing ones are made, dead ones made anew. Raises LabError, OSError."""
    missing, started, plain = fuse_missing(), [], False
    for node in nodes:
        place = Path(state["folder"]) / node["name"]
        place.mkdir(exist_ok=True)
        local, shared = node["mounts"]["local"], node["mounts"]["shared"]
        there = {m.path: m.fstype for m in mounts.below(str(place))}
        if local not in there:
            Path(local).mkdir(exist_ok=True)
            size = _LOCAL_REAL if node["engine"] == "vllm" else _LOCAL_SIMULATED
            name = f"exal-{state['name']}-{node['name']}-local"
            mounts.mount(name, local, "tmpfs", mounts.NOSUID | mounts.NODEV, data=f"size={size},mode=755")
        if shared in there and (not there[shared].startswith("fuse") or daemon(shared) is not None):
            continue
        if shared in there:
            say(f"  {node['name']}: the process of its shared storage was gone; mounting that anew")
        while mounts.detach(shared):
            pass
        Path(shared).mkdir(exist_ok=True)
        if missing:
            mounts.mount(str(server(state)), shared, flags=mounts.BIND)
            plain = True
        else:
            started.append((node, _start_daemon(state, node)))
    if plain:
        say(f"  shared storage is a plain mount, its faults are not possible: {missing}")
    for node, process in started:
        _wait_mounted(state, node, process)


def fuse_missing() -> str | None:
    """Why shared storage can't be a FUSE mount here, with the cure; None if it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse (modprobe fuse, or give the container that device)"
    if shutil.which("fusermount3") is None:
        return "fuse3 is missing (serving/tools.sh lab, or sudo apt-get install fuse3)"
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy is missing (pip install mfusepy)"
    return None


def control_folder(mount: str) -> str:
    """Where the rules of a shared mount's faults lie."""
    return f"{mount}.control"


def daemon(mount: str) -> int | None:
    """The process that serves a shared mount; None if there is none."""
    for pid in identity.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"chaos.lab.faultfs" in words and os.fsencode(mount) in words and identity.of(pid):
            return pid
    return None


def _log(state: State, node: State) -> Path:
    return Path(state["folder"]) / node["name"] / "faultfs.log"


def _start_daemon(state: State, node: State) -> subprocess.Popen[bytes]:
    mount = node["mounts"]["shared"]
    name = f"exal-{state['name']}-{node['name']}-shared"
    argv = [sys.executable, "-m", "chaos.lab.faultfs", str(server(state)), mount]
    argv += ["--control", control_folder(mount), "--name", name]
    with _log(state, node).open("wb") as out:
        return subprocess.Popen(
            argv,
            env={**os.environ, MARK: state["folder"]},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
        )


def _wait_mounted(state: State, node: State, process: subprocess.Popen[bytes]) -> None:
    mount = node["mounts"]["shared"]
    end = time.monotonic() + 30
    while not any(m.path == mount and m.fstype.startswith("fuse") for m in mounts.below(mount)):
        if process.poll() is not None or time.monotonic() > end:
            said = _log(state, node).read_text(errors="replace").strip()
            raise LabError(f"{node['name']}: shared storage could not be mounted: {said or 'no answer'}")
        time.sleep(0.02)
    process.returncode = 0  # it stays; nobody waits for it
