"""Storage faults on real mounts: in, proven by what was measured, out, and nothing left, whoever is killed."""

from __future__ import annotations

import errno
import faulthandler
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos import fault, inject, recover
from chaos.engines import devicemapper, fuse, mounts, storage_probe, storage_reader
from chaos.fault import Refused
from tests.chaos import storage_lab
from tests.chaos.framework import eventually

pytestmark = [
    pytest.mark.skipif(storage_lab.lacks() is not None, reason=storage_lab.lacks() or ""),
    # Folders of the machine (what is held, cgroups) are everybody's: no lab of other tests stands beside.
    pytest.mark.xdist_group("two nodes"),
]

#: Longest the faults here may last; each is taken out long before.
LONG = 60.0


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[storage_lab.Storage]:
    place = storage_lab.Storage(tmp_path_factory.mktemp("storage"))
    yield place
    place.end()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[storage_lab.Storage]:
    """Storage of this test alone, whose node may die."""
    place = storage_lab.Storage(tmp_path / "storage")
    yield place
    place.end()


@pytest.fixture
def whole(storage: storage_lab.Storage) -> Iterator[storage_lab.Storage]:
    """The storage; the test fails if anything is not as it was before."""
    before = storage.seen()
    yield storage
    # Not looked at once more where it is: a probe that a busy machine had left behind may just make its file.
    if not eventually(lambda: whole_again(storage, before)):
        assert storage.seen() == before
    assert list(recover.records()) == []


def whole_again(storage: storage_lab.Storage, before: dict[str, Any]) -> bool:
    """A look while a guard puts things back may meet a mount or a file that goes under its eyes."""
    try:
        return storage.seen() == before
    except (OSError, subprocess.CalledProcessError):
        return False


def outcome(action: Callable[[], Any]) -> str:
    """``works``, or the name of the error."""
    try:
        action()
        return "works"
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def on_node(storage: storage_lab.Storage, *argv: str) -> str:
    """What a program on the node says, its errors included."""
    said = storage.node().read(list(argv))
    return (said.stdout + said.stderr).strip()


# --- each fault, with each engine that works here

CASES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("storage_gone", "shared", {}, "umount", "no mount point any more, 0 names"),
    ("storage_gone", "local", {}, "umount", "no mount point any more, 0 names"),
    ("storage_gone", "shared", {"open_files": "fail"}, "faultfs", "listing it: ENOTCONN, statvfs: ENOTCONN"),
    ("storage_slow", "shared", {"latency": 0.3}, "faultfs", "a read of 4 KiB takes"),
    ("storage_slow", "shared", {"latency": 5}, "faultfs", "a read of 4 KiB did not come back in 1.5 s"),
    ("storage_slow", "shared", {"latency": 0, "bytes_per_second": 4e5}, "faultfs", "allowed 0.40 MB/s"),
    ("storage_slow", "disk", {"latency": 0, "bytes_per_second": 4e5}, "blkio", "allowed 0.40 MB/s"),
    ("storage_full", "shared", {}, "faultfs", "ENOSPC, 0 bytes available"),
    ("storage_full", "local", {}, "tmpfs-size", "ENOSPC, 0 bytes available"),
    ("storage_full", "disk", {}, "fill", "ENOSPC, 0 bytes available"),
    ("storage_read_only", "shared", {}, "remount", "writing: EROFS, listing: works"),
    ("storage_read_only", "disk", {}, "remount", "writing: EROFS, listing: works"),
    ("storage_io_error", "shared", {}, "faultfs", "a read: EIO"),
    ("storage_io_error", "shared", {"operations": "write"}, "faultfs", "a write: EIO"),
    ("storage_io_error", "shared", {"operations": "all", "error": "ESTALE"}, "faultfs", "a read: ESTALE"),
    ("storage_io_error", "shared", {"share": 0.5}, "faultfs", "a read: EIO"),
    ("storage_corrupt_file", "shared", {}, "faultfs", "of models/w.safetensors"),
    ("storage_corrupt_file", "local", {}, "bind", "of models/w.safetensors"),
    ("storage_corrupt_file", "disk", {"file": "models/*.json", "every": 1}, "bind", "of models/config.json"),
    ("storage_stuck", "shared", {}, "faultfs", "did not come back in 1.2 s"),
    (
        "storage_stuck",
        "shared",
        {"operations": "read", "path": "models/*"},
        "faultfs",
        "a read did not come back",
    ),
    ("storage_stuck", "disk", {"operations": "write"}, "fsfreeze", "a touch did not come back in 1.2 s"),
    ("storage_cache_empty", "local", {}, "rename", "2 of 2 names"),
]


@pytest.mark.parametrize(("name", "mount", "parameters", "engine", "measured"), CASES)
def test_a_fault_is_in_proven_and_out_with_nothing_left(
    whole: storage_lab.Storage, name: str, mount: str, parameters: dict[str, Any], engine: str, measured: str
) -> None:
    with inject.held(name, f"node-1/{mount}", whole, LONG, parameters) as (injection,):
        assert injection.engine.name == engine
        assert injection.proof is not None
        assert measured in injection.proof.measured


def test_every_storage_fault_is_among_the_cases() -> None:
    assert {c[0] for c in CASES} == {n for n in fault.names() if n.startswith("storage_")}


# --- what a fault means for who uses the storage


def test_files_that_are_open_outlive_an_unmount_and_new_opens_fail(whole: storage_lab.Storage) -> None:
    file = str(whole.paths["local"] / "models" / "w.safetensors")
    reader = subprocess.Popen(
        [*whole.node().prefix, sys.executable, "-c",
         f"import sys; f = open({file!r}, 'rb'); print('open', flush=True); sys.stdin.read(); print(len(f.read()))"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reader.stdout is not None
    assert reader.stdout.readline() == "open\n"
    with inject.held("storage_gone", "node-1/local", whole, LONG):
        assert "No such file or directory" in on_node(whole, "cat", file)
        assert reader.communicate("")[0] == f"{storage_lab.SIZE}\n"
    assert on_node(whole, "stat", "-c", "%s", file) == str(storage_lab.SIZE)


def test_the_machine_and_other_nodes_keep_what_one_node_loses(whole: storage_lab.Storage) -> None:
    for name, parameters in (("storage_gone", {}), ("storage_read_only", {})):
        with inject.held(name, "node-1/shared", whole, LONG, parameters):
            file = whole.paths["shared"] / "new"
            file.write_text("from elsewhere")
            file.unlink()


def test_errors_and_wrong_bytes_reach_pages_that_are_cached_and_mapped(whole: storage_lab.Storage) -> None:
    file = whole.paths["shared"] / "models" / "w.safetensors"
    right = (whole.backing / "models" / "w.safetensors").read_bytes()
    with file.open("rb") as f:
        shared = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        private = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        assert shared[:] == private[:] == right
        private[8192] = 1  # this page is the process's own from now on
        private_right = private[:]
        with inject.held("storage_corrupt_file", "node-1/shared", whole, LONG, {"start": 10, "every": 4096}):
            wrong = bytearray(right)
            for at in range(10, len(wrong), 4096):
                wrong[at] ^= 0xFF
            assert eventually(lambda: shared[:] == bytes(wrong))
            assert file.read_bytes() == bytes(wrong)
            assert private[:8192] == wrong[:8192]
            assert private[8192:12288] == private_right[8192:12288], (
                "a page that was written to is out of reach"
            )
            assert (whole.backing / "models" / "w.safetensors").read_bytes() == right
        assert eventually(lambda: shared[:] == right)
        with inject.held("storage_io_error", "node-1/shared", whole, LONG):
            assert eventually(lambda: outcome(lambda: os.pread(f.fileno(), 4096, 0)) == "EIO")
            for mapped, at, signal_of_it in (
                (shared, 0, signal.SIGBUS),
                (private, 0, signal.SIGBUS),
                (private, 8192, 0),
            ):
                assert touch(mapped, at) == signal_of_it
        assert touch(shared, 0) == 0
        shared.close()
        private.close()


def touch(mapped: mmap.mmap, at: int) -> int:
    """The signal that kills a process which reads the mapped byte; 0 if it may."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # it would tell of the signal that is wanted
        try:
            mapped[at]
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def test_latency_meets_cached_files_and_leaves_other_paths_alone(whole: storage_lab.Storage) -> None:
    shared = whole.paths["shared"]
    (shared / "models" / "w.safetensors").read_bytes()
    with inject.held("storage_slow", "node-1/shared", whole, LONG, {"latency": 0.4, "path": "models/w*"}):
        began = time.monotonic()
        with (shared / "models" / "w.safetensors").open("rb", buffering=0) as f:
            f.read(4096)
        assert time.monotonic() - began >= 0.4
        hits = hits_by_now(shared)["storage_slow.json"]
        assert hits >= 1
        (shared / "models" / "config.json").read_text()
        assert hits_by_now(shared)["storage_slow.json"] == hits


def hits_by_now(shared: Path) -> dict[str, int]:
    """How many operations each file of rules has met: as the daemon told after it had seen a file that is new now."""
    mark = Path(f"{shared}.control", "mark.json")
    mark.write_text('{"rules": []}')
    assert eventually(lambda: fuse.state(str(shared))["files"].get(mark.name) == "ok")
    hits: dict[str, int] = fuse.state(str(shared))["hits"]
    mark.unlink()
    assert eventually(lambda: mark.name not in fuse.state(str(shared))["files"])
    return hits


def test_on_full_storage_removing_and_reading_still_work(whole: storage_lab.Storage) -> None:
    shared = whole.paths["shared"]
    (shared / "old").write_text("x")
    with inject.held("storage_full", "node-1/shared", whole, LONG):
        assert outcome(lambda: (shared / "new").write_text("x")) == "ENOSPC"
        assert os.statvfs(shared).f_bavail == 0
        assert (shared / "old").read_text() == "x"
        (shared / "old").unlink()
    assert os.statvfs(shared).f_bavail > 0


def test_a_file_that_is_open_for_writing_leaves_read_only_to_the_second_engine_or_fails(
    whole: storage_lab.Storage,
) -> None:
    writer = subprocess.Popen(
        [*whole.node().prefix, "sh", "-c", f"exec 3>{whole.paths['local']}/open; echo up; exec sleep 60"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert writer.stdout is not None
    assert writer.stdout.readline() == "up\n"
    try:
        with pytest.raises(fault.NotProven, match=r"(?s)busy.*it was undone"):
            inject.start("storage_read_only", "node-1/local", whole, LONG)
    finally:
        writer.kill()
        writer.communicate()
        (whole.paths["local"] / "open").unlink()


def test_a_process_that_is_held_can_be_killed_and_one_that_waits_goes_on(whole: storage_lab.Storage) -> None:
    file = str(whole.paths["shared"] / "models" / "config.json")
    with inject.held("storage_stuck", "node-1/shared", whole, LONG):
        killed, waits = (
            subprocess.Popen([*whole.node().prefix, "cat", file], stdout=subprocess.PIPE) for _ in range(2)
        )
        time.sleep(0.3)
        assert killed.poll() is None
        assert waits.poll() is None
        killed.kill()
        killed.communicate(timeout=60)
    assert waits.communicate(timeout=60)[0] == b"{}"


def test_two_faults_of_one_mount_come_and_go_independently(whole: storage_lab.Storage) -> None:
    file = whole.paths["shared"] / "models" / "config.json"
    with inject.held("storage_slow", "node-1/shared", whole, LONG, {"latency": 0.3}) as (slow,):
        with inject.held("storage_io_error", "node-1/shared", whole, LONG, {"operations": "write"}):
            assert outcome(lambda: (whole.paths["shared"] / "new").write_text("x")) == "EIO"
            before = "models/config.json", 0.0
            assert eventually(lambda: slow.engine.prove(slow.target, slow.parameters, before).proven)
        (whole.paths["shared"] / "new").write_text("x")
        (whole.paths["shared"] / "new").unlink()
        with pytest.raises(Refused, match=r"is in already|has faultfs"):
            inject.start("storage_slow", "node-1/shared", whole, LONG)
    assert file.read_text() == "{}"


def test_a_write_that_is_measured_leaves_no_file_though_it_takes_too_long(whole: storage_lab.Storage) -> None:
    shared, file = str(whole.paths["shared"]), whole.backing / storage_probe.NAME
    rules = Path(f"{shared}.control", "own.json")
    rules.write_text('{"rules": [{"fault": "hang", "ops": ["fsync"]}]}')
    assert eventually(lambda: fuse.state(shared)["files"] == {rules.name: "ok"})
    try:
        found = storage_reader.measure(whole.node(), shared, "write", limit=3.0)
        assert found["hung"] == "write"
        assert eventually(file.exists)
    finally:
        rules.unlink()
    assert eventually(lambda: not file.exists())


def test_what_the_product_filled_into_an_empty_cache_gives_way_to_what_was_there(
    whole: storage_lab.Storage,
) -> None:
    models = whole.paths["local"] / "models"
    with inject.held("storage_cache_empty", "node-1/local", whole, LONG):
        assert not models.exists()
        models.mkdir()
        (models / "w.safetensors").write_text("fetched again, half of it")


# --- what can't be done says so

REFUSED = [
    ("storage_stuck", "local", {}, "fsfreeze holds every change and no read"),
    ("storage_stuck", "local", {"operations": "write"}, "is tmpfs; fsfreeze is for ext3, ext4"),
    ("storage_slow", "local", {"latency": 0, "bytes_per_second": 4e5}, "there is no block device to limit"),
    ("storage_slow", "shared", {"latency": 0}, "both 0: nothing to do"),
    ("storage_slow", "shared", {"path": "nothing*"}, "no file in .* fits 'nothing\\*'"),
    ("storage_io_error", "local", {}, "is tmpfs, not the lab's own file system"),
    ("storage_io_error", "shared", {"error": "EPERM"}, "error: Input should be 'EIO'"),
    ("storage_corrupt_file", "shared", {"file": "none"}, "no file in .* fits 'none'"),
    ("storage_corrupt_file", "shared", {"every": 0}, "every: "),
    ("storage_cache_empty", "local", {"folder": "../x"}, "folder: a folder below the mount is needed"),
    ("storage_cache_empty", "local", {"folder": "nowhere"}, "is no folder on node-1"),
    ("storage_gone", "nothing", {}, "no mount nothing on node-1; there: node-1/disk, node-1/local"),
]


@pytest.mark.parametrize(("name", "mount", "parameters", "why"), REFUSED)
def test_what_can_not_be_done_is_refused_with_a_sentence(
    whole: storage_lab.Storage, name: str, mount: str, parameters: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        inject.start(name, f"node-1/{mount}", whole, LONG, parameters)


def test_without_device_mapper_its_engines_say_so(whole: storage_lab.Storage) -> None:
    if "device-mapper" in Path("/proc/misc").read_text():
        pytest.skip("this kernel has device-mapper")
    with pytest.raises(
        Refused, match=r"dm-flakey: this kernel has no device-mapper \(it is not in /proc/misc\)"
    ):
        inject.start("storage_io_error", "node-1/disk", whole, LONG)


def test_a_disk_that_holds_the_undo_records_is_never_frozen(
    whole: storage_lab.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASERVE_HOME", str(whole.paths["disk"] / "home"))
    with pytest.raises(Refused, match=r"also holds .*/disk/home: with it frozen nothing could undo"):
        inject.start("storage_stuck", "node-1/disk", whole, LONG, {"operations": "write"})
    shutil.rmtree(whole.paths["disk"] / "home")  # the lock of those that plan


def test_the_control_node_is_never_a_target(whole: storage_lab.Storage) -> None:
    with pytest.raises(Refused, match="control is the control node"):
        inject.start("storage_gone", "control/shared", whole, LONG)


def test_a_volume_of_one_linear_piece_is_exchanged_and_any_other_refused() -> None:
    found = devicemapper.parse("vg-lv", "0 2097152 linear 8:3 2048\n")
    assert found == devicemapper.Linear("vg-lv", 2097152, "8:3", 2048)
    assert isinstance(found, devicemapper.Linear)
    assert found.table == "0 2097152 linear 8:3 2048"
    engines = {
        e.name: e for e in (*fault.load("storage_io_error").engines, *fault.load("storage_slow").engines)
    }
    tables = {
        ("dm-flakey", "storage_io_error", "read"): "0 2097152 flakey 8:3 2048 0 3600 1 error_reads",
        ("dm-flakey", "storage_io_error", "all"): "0 2097152 flakey 8:3 2048 0 3600",
    }
    for (engine, name, operations), table in tables.items():
        p = fault.load(name).parse({"operations": operations})
        assert engines[engine].table(found, p) == table  # type: ignore[attr-defined]
    slow = fault.load("storage_slow").parse({"latency": 0.05})
    assert engines["dm-delay"].table(found, slow) == "0 2097152 delay 8:3 2048 50"  # type: ignore[attr-defined]
    assert devicemapper.parse("vg-lv", "0 10 linear 8:3 0\n10 10 striped 2 8 8:3 0 8:4 0\n") == (
        "vg-lv is not one linear piece of a device (2 pieces: linear, striped)"
    )


# --- a node that is reached over ssh (here: its word, a shell that gets the whole command as one text)

REMOTE = [
    ("storage_gone", "disk", {}, "umount"),
    ("storage_full", "disk", {}, "fill"),
    ("storage_read_only", "local", {}, "remount"),
    ("storage_corrupt_file", "disk", {}, "bind"),
    ("storage_stuck", "disk", {"operations": "write"}, "fsfreeze"),
    ("storage_cache_empty", "local", {}, "rename"),
]


@pytest.mark.parametrize(("name", "mount", "parameters", "engine"), REMOTE)
def test_a_fault_of_a_node_over_ssh_is_carried_out_and_undone_there(
    whole: storage_lab.Storage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mount: str,
    parameters: dict[str, Any],
    engine: str,
) -> None:
    # That node is this machine: what tests beside this one recover on it must not be the mount that is held here.
    monkeypatch.setattr(mounts, "HOLD", str(tmp_path / "hold"))
    place = storage_lab.Remote(whole, str(tmp_path / "on-the-node"))
    with inject.held(name, f"node-1/{mount}", place, LONG, parameters) as (injection,):
        assert injection.engine.name == engine
        assert injection.proof is not None
    assert list((tmp_path / "on-the-node").glob("*.json")) == []


def test_what_only_the_lab_can_do_is_refused_for_a_node_over_ssh(
    whole: storage_lab.Storage, tmp_path: Path
) -> None:
    place = storage_lab.Remote(whole, str(tmp_path))
    with pytest.raises(Refused, match="only the lab's storage obeys a control file"):
        inject.start("storage_io_error", "node-1/shared", place, LONG)


# --- whoever dies


CONTROLLER = """
import sys, time, json
from tests.chaos.storage_lab import Attached
from chaos import inject
place = Attached(json.loads(sys.argv[1]))
inject.start(sys.argv[2], sys.argv[3], place, 60.0, json.loads(sys.argv[4]))
print("in", flush=True)
time.sleep(60)
"""

KILLED = [
    ("storage_gone", "shared", {}),
    ("storage_full", "local", {}),
    ("storage_stuck", "shared", {}),
    ("storage_stuck", "disk", {"operations": "write"}),
    ("storage_corrupt_file", "local", {}),
    ("storage_slow", "disk", {"latency": 0, "bytes_per_second": 4e5}),
]


@pytest.mark.parametrize(("name", "mount", "parameters"), KILLED)
def test_a_fault_goes_when_its_controller_is_killed(
    whole: storage_lab.Storage, name: str, mount: str, parameters: dict[str, Any]
) -> None:
    before = whole.seen()
    argv = [sys.executable, "-c", CONTROLLER, json.dumps(whole.attachment()), name, f"node-1/{mount}"]
    controller = subprocess.Popen([*argv, json.dumps(parameters)], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    try:
        assert controller.stdout.readline() == "in\n"
    finally:
        controller.kill()
        controller.communicate()
    # How fast is the dead-man's own matter (test_inject); here: that all of it goes.
    assert eventually(lambda: list(recover.records()) == [] and whole_again(whole, before))


DEAD_NODE = [
    ("storage_full", "local", {}),
    ("storage_full", "disk", {}),
    ("storage_cache_empty", "local", {}),
    ("storage_cache_empty", "shared", {}),
    ("storage_corrupt_file", "local", {}),
    ("storage_stuck", "disk", {"operations": "write"}),
    ("storage_gone", "disk", {}),
    ("storage_read_only", "disk", {}),
    ("storage_slow", "disk", {"latency": 0, "bytes_per_second": 4e5}),
    ("storage_io_error", "shared", {}),
]


@pytest.mark.parametrize(("name", "mount", "parameters"), DEAD_NODE)
def test_a_fault_is_undone_whole_when_its_node_has_died_meanwhile(
    own: storage_lab.Storage, name: str, mount: str, parameters: dict[str, Any]
) -> None:
    before = own.seen()
    with inject.held(name, f"node-1/{mount}", own, LONG, parameters):
        own.kill_node()
    own.start_node()
    for path in map(str, own.paths.values()):
        found = storage_reader.measure(own.node(), path, "write", limit=30.0)
        assert (found["hung"], found["errors"]) == (None, {}), path
    # The probe's child removes its file when all is said.
    if not eventually(lambda: whole_again(own, before)):
        assert own.seen() == before
    assert list(recover.records()) == []


def test_a_volume_is_put_right_on_the_machine_not_in_a_node_that_may_be_gone(
    storage: storage_lab.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devicemapper, "linear", lambda target: devicemapper.Linear("vg-lv", 8, "8:3", 0))
    engine = fault.load("storage_io_error").engines[1]
    target = fault.Target("node-1/disk", storage, storage.node(), mount=str(storage.paths["disk"]))
    plan = engine.plan(target, fault.load("storage_io_error").parse({}), LONG)
    assert plan.do[0]["inside"] == storage.init
    assert "inside" not in plan.undo[0]
    assert plan.undo[0]["argv"][-2:] == ["vg-lv", "0 8 linear 8:3 0"]


def test_what_only_the_node_has_mounted_is_put_right_inside_it(storage: storage_lab.Storage) -> None:
    folder = str(storage.paths["local"] / "own")
    target = fault.Target("node-1/own", storage, storage.node(), mount=folder)
    assert on_node(storage, "mkdir", folder) == ""
    try:
        assert mounts.keeper(target, folder) is None, "the machine's tmpfs"
        assert on_node(storage, "mount", "-t", "tmpfs", "own", folder) == ""
        assert mounts.keeper(target, folder) == storage.node()
    finally:
        on_node(storage, "umount", folder)
        on_node(storage, "rmdir", folder)


def test_a_fault_ends_by_itself_after_its_duration(whole: storage_lab.Storage) -> None:
    (injection,) = inject.start("storage_gone", "node-1/local", whole, 6.0)
    assert injection.wait()
    assert mounts.here(injection.target).fs_type == "tmpfs"


def test_rules_lapse_when_nobody_is_left_to_take_them_away(whole: storage_lab.Storage) -> None:
    shared = whole.paths["shared"]
    file = Path(f"{shared}.control", "own.json")
    file.write_text(json.dumps({"rules": [{"fault": "error", "errno": "EIO"}], "until": time.time() + 8}))
    assert eventually(lambda: outcome(lambda: os.statvfs(shared)) == "EIO")
    assert eventually(lambda: outcome(lambda: os.statvfs(shared)) == "works")
    assert eventually(lambda: fuse.state(str(shared))["files"] == {"own.json": "over"})
    assert fuse.leftovers(whole) == [f"node-1: rules {file}"]
    assert fuse.clear_leftovers(whole) == [f"node-1: removed {file}"]


def test_what_is_held_without_a_record_is_brought_back(whole: storage_lab.Storage) -> None:
    (injection,) = inject.start("storage_gone", "node-1/disk", whole, LONG)
    os.kill(json.loads(injection.path.read_text())["deadman"]["pid"], signal.SIGKILL)
    injection.path.unlink()
    assert mounts.leftovers(whole) == [f"node-1: a mount is held at {mounts.hold_of(injection.target)}"]
    assert mounts.clear_leftovers(whole) == [f"node-1: brought {whole.paths['disk']} back"]
    assert mounts.leftovers(whole) == []


def test_killing_the_file_system_frees_who_is_held_and_leaves_a_mount_that_recover_clears(
    whole: storage_lab.Storage,
) -> None:
    shared = whole.paths["shared"]
    (injection,) = inject.start("storage_stuck", "node-1/shared", whole, LONG)
    held = subprocess.Popen(
        ["cat", str(shared / "models" / "config.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.3)
    assert held.poll() is None
    whole.daemon.kill()
    whole.daemon.communicate()
    held.communicate(timeout=60)
    assert held.returncode == 1
    assert outcome(lambda: os.listdir(shared)) == "ENOTCONN"
    injection.undo()
    with pytest.raises(Refused, match=r"the process behind .* is gone"):
        inject.start("storage_stuck", "node-1/shared", whole, LONG)
    assert fuse.leftovers(whole) == [f"node-1: the mount {shared} is dead, its process is gone"]
    assert recover.recover(whole).leftovers == [f"node-1: unmounted {shared}, whose process is gone"]
    assert recover.recover(whole).leftovers == []
    assert storage_reader.mount_at(whole.node(), str(shared)) is None
    whole.daemon = whole.start_daemon()
    assert (shared / "models" / "config.json").read_text() == "{}"
