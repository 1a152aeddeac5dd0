"""The audit log's writing side: no line lost or torn, whatever the disk does; the queue stays bounded."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.audit import writer
from serving.audit.file import AuditFile
from serving.audit.record import FIELDS, Record
from serving.audit.writer import Audit, NoAudit, folder_of, open_audit
from serving.config_router import Audit as Settings


def record(i: int = 0, **changed: object) -> Record:
    values: dict[str, object] = {
        "ts": 1796028696.8867 + i / 1000, "request_id": b"id-%d" % i, "tenant": "alice", "route": "completions",
        "model": "m", "base_revision": None, "adapter": None, "adapter_revision": None, "replica": "replica-0",
        "pool": "default", "intent": "legal", "confidence": 0.91234567, "decision": "admitted", "status": 200,
        "input_tokens": 12, "output_tokens": 3, "tokens_estimated": False, "ttft_s": 0.0123456789,
        "duration_s": 0.2, "queue_s": 0.0, "retries": 0, "outcome": "ok",
    }  # fmt: skip
    assert tuple(values) == FIELDS
    return tuple((values | changed).values())  # type: ignore[return-value]


class Disk:
    """A sink that can be full."""

    path = Path("disk")

    def __init__(self) -> None:
        self.full = False
        self.data = b""
        self.batches: list[int] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += data
        self.batches.append(data.count(b"\n"))

    def close(self) -> None:
        self.closed = True

    @property
    def ids(self) -> list[str]:
        return [json.loads(line).get("request_id") for line in self.data.splitlines()]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def ids(*files: Path) -> list[str]:
    return [json.loads(line)["request_id"] for f in files for line in f.read_bytes().splitlines()]


def test_a_line_has_every_field_and_unknown_is_null() -> None:
    disk = Disk()
    audit = Audit(disk)
    audit.put(record())
    audit.put(
        record(1, tenant="", intent="", replica=None, input_tokens=None, ttft_s=None, outcome="rejected")
    )
    audit.start()
    audit.close()
    first, second = (json.loads(line) for line in disk.data.splitlines())
    assert list(first) == list(FIELDS)
    assert first == {
        "ts": "2026-11-30T08:51:36.886Z", "request_id": "id-0", "tenant": "alice", "route": "completions",
        "model": "m", "base_revision": None, "adapter": None, "adapter_revision": None, "replica": "replica-0",
        "pool": "default", "intent": "legal", "confidence": 0.9123, "decision": "admitted", "status": 200,
        "input_tokens": 12, "output_tokens": 3, "tokens_estimated": False, "ttft_s": 0.012346, "duration_s": 0.2,
        "queue_s": 0.0, "retries": 0, "outcome": "ok",
    }  # fmt: skip
    for name in ("tenant", "intent", "confidence", "replica", "input_tokens", "ttft_s"):
        assert second[name] is None
    assert (audit.written, audit.dropped, len(audit), disk.closed) == (2, 0, 0, True)


def test_times_are_right_over_the_turn_of_a_second_and_when_the_clock_goes_back() -> None:
    disk = Disk()
    audit = Audit(disk)
    for ts in (1.9995, 2.0, 1796028696.0, 1.25):
        audit.put(record(ts=ts))
    audit.start()
    audit.close()
    assert [json.loads(line)["ts"] for line in disk.data.splitlines()] == [
        "1970-01-01T00:00:01.999Z", "1970-01-01T00:00:02.000Z", "2026-11-30T08:51:36.000Z",
        "1970-01-01T00:00:01.250Z",
    ]  # fmt: skip


def test_what_clients_chose_can_neither_break_a_line_nor_fill_the_disk() -> None:
    disk = Disk()
    audit = Audit(disk)
    audit.put(record(request_id=b'a"\n\xff\\', model="x" * 5000))
    audit.put(record(model="half \ud800 pair"))
    audit.start()
    audit.close()
    first, second = (json.loads(line) for line in disk.data.splitlines())
    assert (first["request_id"], len(first["model"])) == ('a"\n\xff\\', 256)
    assert second["model"] == "half ? pair"


def test_what_is_no_record_costs_no_other_and_is_counted() -> None:
    disk = Disk()
    audit = Audit(disk)
    audit.put(record(1))
    audit.put(("wrong",))  # type: ignore[arg-type]
    audit.put(record(2, duration_s=float("nan")))
    audit.put(record(3))
    audit.start()
    audit.close()
    assert (audit.written, audit.dropped) == (2, 2)
    assert [i for i in disk.ids if i] == ["id-1", "id-3"]


def test_while_the_disk_is_full_the_queue_holds_what_it_may_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.01)
    disk, said = Disk(), []
    disk.full = True
    audit = Audit(disk, queue=300, say=said.append)
    audit.start()
    until(lambda: bool(audit.problem))
    for i in range(1000):
        audit.put(record(i))
    waiting = dropped = 0

    def at_rest() -> bool:
        """Not while the thread has a batch in its hands."""
        nonlocal waiting, dropped
        waiting, dropped = len(audit), audit.dropped
        return waiting + dropped == 1000

    until(at_rest)
    assert audit.written == 0
    assert dropped >= 1000 - 300 - writer.BATCH
    assert said == ["audit: disk: No space left on device; up to 300 records wait, further ones are dropped"]
    disk.full = False
    until(lambda: audit.written == waiting)
    audit.put(record(7777))
    audit.close()
    assert (audit.written, audit.dropped, audit.problem) == (waiting + 1, dropped, "")
    found = [json.loads(line) for line in disk.data.splitlines()]
    assert sum(line.get("lost", 0) for line in found) == dropped
    assert len(found) == audit.written + sum("lost" in line for line in found)
    assert said[1] == f"audit: writes again to disk; {dropped} records are missing so far"


def test_lines_are_written_in_order_in_batches() -> None:
    disk = Disk()
    audit = Audit(disk)
    for i in range(1000):
        audit.put(record(i))
    audit.start()
    audit.close()
    assert disk.ids == [f"id-{i}" for i in range(1000)]
    assert [n for n in disk.batches if n] == [256, 256, 256, 232]


def test_a_full_batch_does_not_wait_for_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noted(threading.Event):
        """Counts who has come to wait."""

        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waits += 1
            return super().wait(timeout)

    monkeypatch.setattr(writer, "PAUSE", 3600.0)
    disk = Disk()
    audit = Audit(disk)
    audit._wake = noted = Noted()
    audit.start()
    until(lambda: noted.waits == 2)  # the thread has opened its file and is in its pause
    assert disk.batches
    for i in range(writer.BATCH):
        audit.put(record(i))
    until(lambda: audit.written == writer.BATCH)
    audit.close()


def test_closing_with_a_full_disk_ends_in_time_and_says_what_is_lost() -> None:
    disk, said = Disk(), []
    disk.full = True
    audit = Audit(disk, say=said.append)
    audit.put(record())
    audit.start()
    until(lambda: bool(audit.problem))
    audit.close(0.1)
    assert (audit.written, audit.dropped, len(said)) == (0, 1, 2)
    assert said[-1] == "audit: 1 records could not be written (disk: No space left on device)"
    audit.put(record())
    assert audit.dropped == 2


def test_a_sink_that_hangs_does_not_keep_the_router_from_ending() -> None:
    release = threading.Event()

    class Hanging(Disk):
        def write(self, data: bytes) -> None:
            release.wait(20)

    audit = Audit(Hanging(), say=lambda _: None)
    audit.put(record())
    audit.start()
    began = time.monotonic()
    audit._thread.join(0.05)
    audit.close(0.05)
    assert time.monotonic() - began < 10
    assert audit.dropped == 1
    release.set()


def test_without_an_audit_log_nothing_is_kept(tmp_path: Path) -> None:
    audit = open_audit(Settings(enabled=False, folder=str(tmp_path / "audit")))
    assert type(audit) is NoAudit
    audit.put(record())
    audit.close()
    assert (audit.written, audit.dropped, len(audit)) == (0, 0, 0)
    assert not (tmp_path / "audit").exists()


def test_the_configuration_says_where_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    assert folder_of(Settings()) == tmp_path / "audit"
    audit = open_audit(Settings(enabled=True), worker=3)
    audit.put(record())
    audit.close()
    assert ids(tmp_path / "audit" / "audit-3.jsonl") == ["id-0"]


# --- the file ---


def line(i: int) -> bytes:
    return b'{"request_id":"id-%d"}\n' % i


def test_rotation_keeps_the_newest_files_and_every_line_of_them(tmp_path: Path) -> None:
    f = AuditFile(tmp_path, 0, max_bytes=len(line(10)) * 3, keep=2)
    for i in range(10, 21):
        f.write(line(i))
    f.close()
    files = [tmp_path / f"audit-0.jsonl{end}" for end in (".2", ".1", "")]
    assert sorted(tmp_path.glob("audit*")) == sorted(files)
    assert [ids(f) for f in files] == [
        ["id-13", "id-14", "id-15"], ["id-16", "id-17", "id-18"], ["id-19", "id-20"],
    ]  # fmt: skip


def test_a_batch_larger_than_a_file_is_written_whole(tmp_path: Path) -> None:
    f = AuditFile(tmp_path, 0, max_bytes=10, keep=1)
    for i in range(3):
        f.write(line(i) * 2)
    f.close()
    assert ids(tmp_path / "audit-0.jsonl.1", tmp_path / "audit-0.jsonl") == ["id-1"] * 2 + ["id-2"] * 2


def test_a_gap_that_a_crash_left_closes_and_loses_nothing(tmp_path: Path) -> None:
    for i in (0, 2, 3):
        (tmp_path / ("audit-0.jsonl" + (f".{i}" if i else ""))).write_bytes(line(i))
    f = AuditFile(tmp_path, 0, max_bytes=30, keep=3)
    f.write(line(9))
    f.close()
    names = ["audit-0.jsonl", "audit-0.jsonl.1", "audit-0.jsonl.2", "audit-0.jsonl.3"]
    assert ids(*(tmp_path / n for n in names)) == ["id-9", "id-0", "id-2", "id-3"]


def test_files_beyond_a_smaller_keep_are_removed(tmp_path: Path) -> None:
    for i in range(1, 6):
        (tmp_path / f"audit-0.jsonl.{i}").write_bytes(line(i))
    AuditFile(tmp_path, 0, max_bytes=1000, keep=2).write(line(0))
    assert sorted(p.name for p in tmp_path.glob("audit-0*")) == [
        "audit-0.jsonl", "audit-0.jsonl.1", "audit-0.jsonl.2",
    ]  # fmt: skip


def test_half_a_line_of_a_crash_is_not_joined_with_the_next(tmp_path: Path) -> None:
    (tmp_path / "audit-0.jsonl").write_bytes(line(1) + b'{"request_id":"tor')
    f = AuditFile(tmp_path, 0, max_bytes=1000, keep=1)
    f.write(line(2))
    f.close()
    assert (tmp_path / "audit-0.jsonl").read_bytes() == line(1) + b'{"request_id":"tor\n' + line(2)


def test_two_processes_with_the_same_number_do_not_share_a_file(tmp_path: Path) -> None:
    first, second = (AuditFile(tmp_path, 0, 1000, 1) for _ in range(2))
    first.write(line(1))
    second.write(line(2))
    assert (first.path.name, second.path.name) == ("audit-0.jsonl", "audit-0-2.jsonl")
    first.close()
    third = AuditFile(tmp_path, 0, 1000, 1)
    third.write(line(3))
    assert ids(tmp_path / "audit-0.jsonl", tmp_path / "audit-0-2.jsonl") == ["id-1", "id-3", "id-2"]
    second.close()
    third.close()


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    f = AuditFile(tmp_path, 0, 1000, 1)
    f.write(line(1))
    (tmp_path / "audit-0.jsonl").rename(tmp_path / "elsewhere")
    f.write(line(2))
    (tmp_path / "audit-0.jsonl").unlink()
    f.write(line(3))
    f.close()
    assert ids(tmp_path / "elsewhere", tmp_path / "audit-0.jsonl") == ["id-1", "id-3"]


def test_a_disk_that_takes_half_a_batch_is_left_with_whole_lines(tmp_path: Path) -> None:
    """The kernel's own refusal: a limit on file size in the middle of a line."""
    f = AuditFile(tmp_path, 0, max_bytes=10**6, keep=1)
    f.write(line(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(line(0)) * 2 + 5, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            f.write(line(2) + line(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert (tmp_path / "audit-0.jsonl").read_bytes() == line(1)
    f.write(line(2) + line(3))
    f.close()
    assert ids(tmp_path / "audit-0.jsonl") == ["id-1", "id-2", "id-3"]


def test_a_half_batch_that_cannot_be_taken_back_is_ended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = AuditFile(tmp_path, 0, max_bytes=10**6, keep=1)
    f.write(line(1))
    real, calls = os.write, []

    def write(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return real(fd, bytes(data)[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    def truncate(fd: int, size: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        patched.setattr(os, "ftruncate", truncate)
        with pytest.raises(OSError, match="No space"):
            f.write(line(2))
    f.write(line(2))
    f.close()
    assert (tmp_path / "audit-0.jsonl").read_bytes() == line(1) + line(2)[:5] + b"\n" + line(2)


def test_a_device_that_is_always_full_is_said_and_survived(tmp_path: Path) -> None:
    (tmp_path / "audit-0.jsonl").symlink_to("/dev/full")
    said: list[str] = []
    audit = Audit(AuditFile(tmp_path, 0, 1000, 1), say=said.append)
    audit.put(record())
    audit.start()
    until(lambda: bool(said))
    audit.close(0.1)
    assert audit.dropped == 1
    assert "No space left on device" in said[0]


def test_a_folder_that_cannot_be_made_is_said_before_the_first_record(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    audit = Audit(AuditFile(tmp_path / "file" / "audit", 0, 1000, 1), say=said.append)
    audit.start()
    until(lambda: bool(said))
    assert "Not a directory" in said[0]
    audit.close(0.1)


def test_sigterm_loses_no_line(tmp_path: Path) -> None:
    """A process that closes its audit log on SIGTERM, as the router does, while records come in."""
    program = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        "from serving.audit.file import AuditFile\n"
        "from serving.audit.writer import Audit\n"
        f"from {__name__} import record\n"
        "audit = Audit(AuditFile(Path(sys.argv[1]), 0, 100_000, 100), queue=10**6)\n"
        "audit.start()\n"
        "stop = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
        "sent = 0\n"
        "while not stop:\n"
        "    audit.put(record(sent)); sent += 1\n"
        "    if sent == 5000: print('now', flush=True)\n"
        # Slowly then: what is sent until the signal comes must not be more than the kept files hold.
        "    if sent > 5000 or sent % 100 == 0: time.sleep(0.001)\n"
        "audit.close()\n"
        "print(sent, flush=True)\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    process.terminate()
    sent = int(process.stdout.read())
    assert process.wait(60) == 0
    files = sorted(tmp_path.glob("audit-0.jsonl.*"), key=lambda p: -int(p.suffix[1:]))
    assert len(files) >= 10
    assert ids(*files, tmp_path / "audit-0.jsonl") == [f"id-{i}" for i in range(sent)]
