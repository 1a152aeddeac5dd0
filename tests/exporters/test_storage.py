"""Storage: real folders, and a FUSE file system that hangs at each call of a probe."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporters.catalog import metric
from exporters.collectors import _mountinfo, _probe
from exporters.collectors.storage import MAX_MOUNTS, StorageCollector
from exporters.registry import NoData
from exporters.settings import Settings

HERE = Path(__file__).parent
STUCK_AFTER = 0.25
STUCK, MOUNTED = "exaserve_storage_stuck", "exaserve_storage_mounted"
READ, WRITE = "exaserve_storage_read_latency_seconds", "exaserve_storage_write_latency_seconds"
SINCE = "exaserve_storage_stuck_since_timestamp_seconds"
FAILED, ERRORS = "exaserve_storage_probe_failed", "exaserve_storage_probe_errors_total"


def collect(collector: StorageCollector, seconds: float = 4.0) -> dict[tuple[str, ...], float]:
    samples = collector.collect(time.monotonic() + seconds)
    assert all(len(metric(s.name).labels) == len(s.labels) for s in samples)
    found = {(s.name, *s.labels): s.value for s in samples}
    assert len(found) == len(samples)
    return found


def names(samples: dict[tuple[str, ...], float]) -> set[str]:
    return {key[0] for key in samples}


def until(collector: StorageCollector, true: Callable[[dict[tuple[str, ...], float]], bool]) -> dict:
    end = time.monotonic() + 60
    while True:
        found = collect(collector)
        if true(found):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.02)


@pytest.fixture
def watch() -> Iterator[Callable[..., StorageCollector]]:
    """watch(folder, …) -> a collector that probes them every 0.05 s."""
    made: list[StorageCollector] = []

    def start(*folders: Path | str, procfs: Path = Path("/proc"), **more: float) -> StorageCollector:
        settings = Settings(
            mounts=tuple(map(str, folders)),
            procfs=procfs,
            storage_interval=0.05,
            storage_stuck_after=more.get("stuck_after", STUCK_AFTER),
        )
        made.append(StorageCollector(settings, least_interval=0.05))
        return made[-1]

    yield start
    for collector in made:
        collector.close()


class Fuse:
    def __init__(self, point: Path) -> None:
        self.point = point
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "fuse_mount.py"), str(point)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()

    def order(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Unmounts; calls that hang end with an error."""
        self._process.communicate(timeout=60)


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[Fuse]:
    (tmp_path / "mount").mkdir()
    made = Fuse(tmp_path / "mount")
    try:
        if made.said != "mounted":
            pytest.skip(f"no FUSE file system can be mounted here ({made.said})")
        yield made
    finally:
        made.end()


def test_a_folder_has_latencies_space_and_what_it_is_mounted_from(
    tmp_path: Path, watch: Callable[..., StorageCollector]
) -> None:
    at = str(tmp_path)
    found = until(watch(tmp_path), lambda found: (READ, at) in found)
    s = os.statvfs(tmp_path)
    assert found["exaserve_storage_size_bytes", at] == s.f_blocks * s.f_frsize
    assert found["exaserve_storage_inodes", at] == s.f_files
    assert 0 < found["exaserve_storage_available_bytes", at] <= found["exaserve_storage_free_bytes", at]
    assert 0 < found[READ, at] < 60
    assert 0 < found[WRITE, at] < 60
    assert found[MOUNTED, at] == 1
    assert found[STUCK, at] == 0
    assert found["exaserve_storage_read_only", at] == 0
    assert found["exaserve_storage_read_limit_seconds", at] == 0.002
    assert [found[FAILED, at, operation] for operation in ("stat", "read", "write")] == [0, 0, 0]
    assert SINCE not in names(found)
    assert ERRORS not in names(found)


def test_nothing_is_left_in_the_folder(tmp_path: Path, watch: Callable[..., StorageCollector]) -> None:
    collector = watch(tmp_path)
    until(collector, lambda found: found["exaserve_storage_probes_total", str(tmp_path)] >= 3)
    collector.close()
    for thread in threading.enumerate():
        if thread.name == f"storage-{tmp_path}":
            thread.join(60)
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_an_exporter_that_was_killed_is_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    for make in (os.symlink, os.link):
        make(victim, folder / ".exaserve-probe-host")
        assert _probe.probe(str(folder), "host", False).errors == []
        assert list(folder.iterdir()) == []
    assert victim.read_text() == "precious"


def test_without_mounts_there_is_no_data_and_too_many_are_refused() -> None:
    with pytest.raises(NoData):
        StorageCollector(Settings()).collect(time.monotonic() + 1)
    with pytest.raises(ValueError, match=f"at most {MAX_MOUNTS}"):
        StorageCollector(Settings(mounts=tuple(map(str, range(MAX_MOUNTS + 1)))))


def test_probes_are_at_least_15_seconds_apart_whatever_the_settings_say(tmp_path: Path) -> None:
    collector = StorageCollector(Settings(mounts=(str(tmp_path),), storage_interval=0.01))
    probes = ("exaserve_storage_probes_total", str(tmp_path))
    try:
        until(collector, lambda found: found[probes] >= 1)
        time.sleep(0.2)
        assert collect(collector)[probes] == 1
    finally:
        collector.close()


def test_a_folder_that_is_missing_is_not_mounted_and_nothing_else_is_said(
    tmp_path: Path, watch: Callable[..., StorageCollector]
) -> None:
    folder = tmp_path / "later"
    collector = watch(folder, stuck_after=60.0)
    found = until(collector, lambda found: found["exaserve_storage_probes_total", str(folder)] >= 1)
    assert names(found) == {MOUNTED, "exaserve_storage_probes_total"}
    assert found[MOUNTED, str(folder)] == 0
    folder.mkdir()
    until(collector, lambda now: (READ, str(folder)) in now)
    folder.rmdir()
    gone = until(collector, lambda now: (READ, str(folder)) not in now)
    assert gone[MOUNTED, str(folder)] == 0


def test_a_read_only_mount_is_read_from_a_file_that_is_there_and_never_written(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "model").mkdir()
    assert _probe.probe(str(tmp_path), "host", True).read is None
    (tmp_path / "model" / "weights").write_bytes(b"x" * 10_000)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    found = _probe.probe(str(tmp_path), "host", True)
    assert found.read is not None
    assert found.write is None
    assert found.errors == []
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "full"),
        (errno.EROFS, "read_only"),
        (errno.EACCES, "denied"),
        (errno.EIO, "io"),
        (errno.ESTALE, "stale"),
        (errno.ENOTCONN, "unreachable"),
        (errno.ENOENT, "missing"),
        (errno.ELOOP, "other"),
    ],
)
def test_errors_are_told_by_kind(number: int, kind: str) -> None:
    assert _probe.kind_of(OSError(number, "x")) == kind


def test_that_we_may_not_write_is_counted_but_is_no_failure(
    tmp_path: Path, watch: Callable[..., StorageCollector], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(b"x")

    def refuse(*_: object) -> bool:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(_probe, "_write_and_read", refuse)
    at = str(tmp_path)
    found = until(watch(tmp_path), lambda found: (READ, at) in found)
    assert found[ERRORS, at, "write", "denied"] >= 1
    assert (FAILED, at, "write") not in found
    assert found[FAILED, at, "read"] == 0
    assert READ in names(found)
    assert WRITE not in names(found)


# ------------------------------------------------------------------ a file system that hangs


@pytest.mark.parametrize(
    "call", ["lookup", "getattr", "statfs", "create", "write", "fsync", "read", "unlink"]
)
def test_a_mount_that_hangs_is_stuck_while_scrapes_go_on_and_is_well_again_after(
    call: str, fuse: Fuse, tmp_path: Path, watch: Callable[..., StorageCollector]
) -> None:
    well = tmp_path / "well"
    well.mkdir()
    collector = watch(fuse.point, well)
    at = str(fuse.point)
    if call in ("lookup", "create", "unlink", "write", "fsync", "read"):
        assert until(collector, lambda found: (READ, at) in found)[FAILED, at, "write"] == 0
    if call in ("opendir", "readdir"):  # a file is looked for where none may be made
        fuse.order(f"fail create {errno.EACCES}")
    before = time.time()
    fuse.order(f"hang {call}")
    stuck = until(collector, lambda found: found.get((STUCK, at)) == 1)
    assert before - 5 < stuck[SINCE, at] <= time.time() - STUCK_AFTER
    assert stuck[MOUNTED, at] == 1
    gone = {key[0] for key in stuck if key[1] == at}
    assert gone & {READ, WRITE, FAILED, "exaserve_storage_size_bytes"} == set()
    assert "exaserve_storage_mount_info" in gone
    for _ in range(5):
        began = time.monotonic()
        found = collect(collector)
        assert time.monotonic() - began < 10  # it hangs for two minutes
        assert found[STUCK, at] == 1
    # Slow disks make the other folder's probe late now and then, but not for ever.
    until(collector, lambda found: found[STUCK, str(well)] == 0 and (READ, str(well)) in found)
    assert sum(t.name == f"storage-{at}" for t in threading.enumerate()) == 1
    fuse.order("go")
    fine = until(collector, lambda found: found.get((STUCK, at)) == 0 and (WRITE, at) in found)
    assert SINCE not in {key[0] for key in fine if key[1] == at}


def test_a_mount_that_hangs_from_the_start_does_not_keep_the_first_scrape(
    fuse: Fuse, watch: Callable[..., StorageCollector]
) -> None:
    fuse.order("hang getattr")
    fuse.order("hang statfs")
    began = time.monotonic()
    found = collect(watch(fuse.point), seconds=0.5)
    assert time.monotonic() - began < 10  # it hangs for two minutes
    assert found[MOUNTED, str(fuse.point)] == 1
    assert READ not in names(found)


def test_a_file_system_whose_server_died_has_errors_and_one_that_was_unmounted_has_no_series(
    fuse: Fuse, watch: Callable[..., StorageCollector]
) -> None:
    collector, at = watch(fuse.point), str(fuse.point)
    until(collector, lambda found: (READ, at) in found)
    fuse.order(f"fail write {errno.EIO}")
    found = until(collector, lambda found: found.get((FAILED, at, "write")) == 1)
    assert found[ERRORS, at, "write", "io"] >= 1
    assert (WRITE, at) not in found
    fuse.order("go")
    until(collector, lambda found: (WRITE, at) in found)
    fuse.end()
    # A probe that began before may come back late enough to be called stuck until then.
    found = until(collector, lambda found: found[MOUNTED, at] == 0 and STUCK not in names(found))
    assert names(found) <= {MOUNTED, "exaserve_storage_probes_total", ERRORS}
    time.sleep(0.2)
    assert list(fuse.point.iterdir()) == []


# ------------------------------------------------------------------ mountinfo

MOUNTINFO = r"""22 28 0:21 / /proc rw,nosuid shared:5 - proc proc rw
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
60 28 0:50 / /models ro,relatime shared:9 master:3 - nfs4 server:/models rw,vers=4.2,hard
61 28 0:51 /sub /with\040blank rw - cifs //user:geheim@host/share rw,username=bob,password=geheim,seal
62 60 0:52 / /models/cache rw - xfs /dev/sdb ro,noquota
63 62 0:53 / /models/cache rw - tmpfs tmpfs rw,size=1k
junk
64 1 0:1 /
"""


def mounts(tmp_path: Path, text: str = MOUNTINFO) -> list[_mountinfo.Mount]:
    (tmp_path / "self").mkdir(exist_ok=True)
    (tmp_path / "self" / "mountinfo").write_text(text)
    return _mountinfo.read(tmp_path)


@pytest.mark.parametrize(
    ("folder", "point", "fs_type", "read_only"),
    [
        ("/", "/", "ext4", False),
        ("/modelsandmore", "/", "ext4", False),
        ("/models", "/models", "nfs4", True),
        ("/models/llama", "/models", "nfs4", True),
        ("/models/cache/x", "/models/cache", "tmpfs", False),  # the last one on a point hides the others
        ("/with blank/y", "/with blank", "cifs", False),
    ],
)
def test_a_folder_lies_on_the_deepest_and_last_mount_above_it(
    folder: str, point: str, fs_type: str, read_only: bool, tmp_path: Path
) -> None:
    found = _mountinfo.of(folder, mounts(tmp_path))
    assert found is not None
    assert (found.point, found.fs_type, found.read_only) == (point, fs_type, read_only)


def test_passwords_are_left_out_of_source_and_options(tmp_path: Path) -> None:
    found = _mountinfo.of("/with blank", mounts(tmp_path))
    assert found is not None
    assert (found.source, found.options) == ("//host/share", "rw,username=bob,password=…,seal")


def test_a_list_without_a_root_and_an_endless_list_are_no_traceback(tmp_path: Path) -> None:
    assert _mountinfo.of("/x", mounts(tmp_path, "")) is None
    with pytest.raises(ValueError, match="longer than"):
        mounts(tmp_path, "x" * (_mountinfo.MAX_BYTES + 1))


def test_a_folder_that_lost_its_own_mount_is_not_measured_on_the_one_below(
    tmp_path: Path, watch: Callable[..., StorageCollector]
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    root = "28 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    own = f"60 28 0:50 / {folder} rw - nfs4 server:/models rw\n"
    mounts(tmp_path, root)
    collector, at = watch(folder, procfs=tmp_path, stuck_after=60.0), str(folder)
    info = ("exaserve_storage_mount_info", at)
    # Seen before it was mounted: what is mounted later counts.
    assert (*info, "/", "ext4", "/dev/sda1", "rw") in collect(collector)
    mounts(tmp_path, root + own)
    until(
        collector, lambda found: (*info, at, "nfs4", "server:/models", "rw") in found and (READ, at) in found
    )
    seen = collect(collector)["exaserve_storage_probes_total", at]
    until(collector, lambda found: found["exaserve_storage_probes_total", at] > seen + 1)
    mounts(tmp_path, root)
    lost = until(collector, lambda found: found[MOUNTED, at] == 0)
    assert names(lost) == {MOUNTED, "exaserve_storage_probes_total"}
    mounts(tmp_path, root + own)
    until(collector, lambda found: found[MOUNTED, at] == 1 and (READ, at) in found)
