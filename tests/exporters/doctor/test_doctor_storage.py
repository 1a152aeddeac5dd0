"""Storage: options, space and latency of folders; a mount that hangs is stuck and costs only itself."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_trees import Machine, rows

from exporters.collectors._mountinfo import Mount
from exporters.doctor.apart import ProbeError
from exporters.doctor.checks import storage
from exporters.doctor.probes import storage as probe

FUSE = Path(__file__).parents[1] / "fuse_mount.py"
FINE = {
    "exists": True, "total": 100 << 30, "free": 50 << 30, "inodes": 1000, "inodes_free": 900, "read": 0.0001,
    "read_of": "a new file", "write": 0.001, "errors": [],
}  # fmt: skip
LOCAL = Mount("/", "ext4", "/dev/vda", "rw,relatime", False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def of(machine: Machine, answer: Any, mount: Mount | None = LOCAL) -> dict[str, tuple[str, str]]:
    found = list(storage._of("/data", answer, mount, machine.node(), True))
    return {what: told for (what, _), told in rows(found).items()}


def test_a_folder_in_order(machine: Machine) -> None:
    assert of(machine, FINE) == {
        "mount": ("ok", "ext4, rw, relatime"),
        "space": ("ok", "50 GiB free of 100 GiB"),
        "read": ("ok", "100 µs (a new file)"),
        "write": ("ok", "1 ms with fsync"),
    }


@pytest.mark.parametrize(
    ("change", "what", "verdict", "value"),
    [
        ({"read": 0.0021}, "read", "fail", "2.1 ms (a new file)"),
        ({"read": 0.0019}, "read", "ok", "1.9 ms (a new file)"),
        ({"read": None, "write": None, "errors": ["write: Read-only file system"]}, "read", "unknown",
         "can't be measured: write: Read-only file system"),
        ({"write": 0.021}, "write", "warn", "21 ms with fsync"),
        ({"free": 9 << 30}, "space", "warn", "9 GiB free of 100 GiB"),
        ({"free": 1 << 30}, "space", "fail", "1 GiB free of 100 GiB"),
        ({"inodes_free": 10}, "space", "warn", "10 of 1000 inodes free"),
        ({"total": 0, "free": 0}, "space", "not here", "not told by this file system"),
    ],
)  # fmt: skip
def test_a_folder_out_of_order(
    machine: Machine, change: dict[str, Any], what: str, verdict: str, value: str
) -> None:
    assert of(machine, FINE | change)[what] == (verdict, value)


@pytest.mark.parametrize(
    ("fs_type", "options", "verdict", "value"),
    [
        ("nfs4", "rw,vers=4.2,rsize=1048576,hard,proto=tcp", "ok", "nfs4, rw, vers=4.2, rsize=1048576, hard"),
        ("nfs4", "rw,soft", "warn", "nfs4, rw, soft"),
        ("nfs", "rw,hard,noac", "warn", "nfs, rw, hard, noac"),
        ("ext4", "rw,sync", "warn", "ext4, rw, sync"),
        ("tmpfs", "rw,sync,size=1024k", "ok", "tmpfs, rw, sync, size=1024k"),
    ],
)
def test_mount_options_that_cost(
    machine: Machine, fs_type: str, options: str, verdict: str, value: str
) -> None:
    assert of(machine, FINE, Mount("/data", fs_type, "nfs:/x", options, False))["mount"] == (verdict, value)


def test_a_stuck_folder_says_which_mount_and_what_to_do(machine: Machine) -> None:
    mount = Mount("/data", "nfs4", "filer:/models", "rw,hard", False)
    (found,) = storage._of(
        "/data/x", ProbeError("no answer within 6 s", hung=True), mount, machine.node(), True
    )

    assert (found.what, found.verdict) == ("answers", "fail")
    assert found.value == "stuck: no answer within 6 s (nfs4 of filer:/models at /data)"
    assert found.cure == "is what serves it up? dmesg | tail; umount -f -l /data"


def test_a_folder_that_is_not_there_yet_is_not_here(machine: Machine) -> None:
    answer = probe.main("/nonexistent/folder")

    assert of(machine, answer) == {"answers": ("not here", "/nonexistent/folder: No such file or directory")}


def test_the_probe_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = probe.main(str(tmp_path))

    assert 0 < found["read"] < 60
    assert 0 < found["write"] < 60
    assert (found["read_of"], found["errors"]) == ("a new file", [])
    assert found["total"] >= found["free"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_file_is_read_where_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(probe, "unnamed", refuse)
    assert probe.main(str(tmp_path))["read"] is None

    (tmp_path / "model.safetensors").write_bytes(bytes(10000))
    found = probe.main(str(tmp_path))
    assert found["read"] > 0
    assert (found["read_of"], found["write"]) == ("model.safetensors", None)
    assert found["errors"] == ["write: Read-only file system"]


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A mount that answers nothing, in a process of its own."""
    point = tmp_path / "remote"
    point.mkdir()
    pipe = subprocess.PIPE
    server = subprocess.Popen([sys.executable, str(FUSE), str(point)], stdin=pipe, stdout=pipe, text=True)
    assert server.stdin
    assert server.stdout
    said = server.stdout.readline().strip()
    if said != "mounted":
        server.wait(30)
        pytest.skip(said)
    server.stdin.write("hang lookup\nhang getattr\nhang statfs\n")
    server.stdin.flush()
    yield point
    server.kill()
    server.wait(30)
    server.stdin.close()
    server.stdout.close()
    subprocess.run(["umount", "-l", str(point)], stderr=subprocess.DEVNULL, check=False)


def test_a_mount_that_hangs_is_stuck_and_the_others_are_measured(
    machine: Machine, hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "STUCK", 10.0)  # the other one starts a process and measures for up to 4 s
    machine.config = {"model": {"path": str(hanging / "model")}}
    every = Path("/proc/self/mountinfo").read_text().splitlines()
    machine.proc("self/mountinfo", "\n".join(m for m in every if f" {hanging} " in m or " / / " in m))

    begin = time.monotonic()
    found = list(storage.storage(machine.node(mounts=(str(machine.home),))))

    assert time.monotonic() - begin < 40
    stuck = [f for f in found if f.verdict == "fail" and f.what == "answers"]
    assert [f.item for f in stuck] == [str(hanging / "model")]
    assert stuck[0].value == f"stuck: no answer within 10 s (fuse.exaserve of exaserve-test at {hanging})"
    assert next(f for f in found if f.what == "read").item == str(machine.home)
