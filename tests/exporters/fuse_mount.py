"""A FUSE file system of one folder that hangs on demand, for tests. Run as a program: ``fuse_mount.py
MOUNTPOINT``.

It speaks the kernel's protocol (Linux ``include/uapi/linux/fuse.h``, version 7.31) over /dev/fuse and needs
no library. It is a process of its own, so that a test which wrongly holds the interpreter's lock in a system
call hangs for two minutes and not for ever: when this process ends, so does every call that waits for it.

It prints ``mounted`` or ``can't: <why>``; then each line on its standard input is an order: ``hang NAME``
(requests of that name are kept unanswered; NAMES below), ``go`` (they are answered, and the next ones too),
``fail NAME ERRNO``."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import struct
import sys
from contextlib import suppress

NAMES = {
    1: "lookup", 2: "forget", 3: "getattr", 4: "setattr", 10: "unlink", 14: "open", 15: "read", 16: "write",
    17: "statfs", 18: "release", 20: "fsync", 25: "flush", 26: "init", 27: "opendir", 28: "readdir",
    29: "releasedir", 34: "access", 35: "create", 36: "interrupt", 42: "batch_forget", 44: "readdirplus",
}  # fmt: skip
ROOT, FILE = 1, 2
MNT_DETACH = 2
MOST_SECONDS = 120
_SILENT = {"forget", "interrupt", "batch_forget"}  # requests without an answer


class Folder:
    """The folder and at most one file in it."""

    def __init__(self) -> None:
        self.name: bytes | None = None
        self.data = b""

    def attributes(self, node: int) -> bytes:
        mode, size = (0o40777, 0) if node == ROOT else (0o100600, len(self.data))
        return struct.pack(
            "=6Q10I", node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, os.getuid(), os.getgid(), 0, 4096, 0
        )

    def entry(self) -> bytes:
        """fuse_entry_out: nothing may be cached, so that every test's call comes here."""
        return struct.pack("=QQQQII", FILE, 0, 0, 0, 0, 0) + self.attributes(FILE)

    def answer(self, name: str, node: int, body: bytes) -> bytes | int:
        """The body of the answer, or an errno."""
        if name == "init":
            major, minor = struct.unpack_from("=II", body)
            head = struct.pack("=IIIIHHIIHHI", major, min(minor, 31), 0, 0, 12, 9, 1 << 16, 1, 16, 0, 0)
            return head + bytes(28)
        if name == "lookup":
            return self.entry() if body.rstrip(b"\0") == self.name else errno.ENOENT
        if name in ("getattr", "setattr"):
            return struct.pack("=QII", 0, 0, 0) + self.attributes(node)
        if name == "create":
            self.name, self.data = body[16:].rstrip(b"\0"), b""
            return self.entry() + struct.pack("=QII", 0, 0, 0)
        if name == "unlink":
            self.name = None
            return b""
        if name in ("open", "opendir"):
            return struct.pack("=QII", 0, 0, 0)
        if name == "write":
            offset, size = struct.unpack_from("=8xQI", body)
            self.data = self.data[:offset].ljust(offset, b"\0") + body[40 : 40 + size]
            return struct.pack("=II", size, 0)
        if name == "read":
            offset, size = struct.unpack_from("=8xQI", body)
            return self.data[offset : offset + size]
        if name == "statfs":
            return struct.pack("=5Q4I24x", 1000, 500, 400, 100, 90, 4096, 255, 4096, 0)
        if name in ("readdir", "fsync", "flush", "release", "releasedir", "access"):
            return b""
        return errno.ENOSYS


def serve(fd: int) -> None:
    folder = Folder()
    hung: set[str] = set()
    failing: dict[str, int] = {}
    held: list[tuple[str, int, int, bytes]] = []
    while True:
        ready, _, _ = select.select([fd, 0], [], [])
        if 0 in ready:
            order = os.read(0, 4096)
            if not order:
                return
            for line in order.decode().splitlines():
                verb, *words = line.split()
                if verb == "hang":
                    hung.add(words[0])
                elif verb == "fail":
                    failing[words[0]] = int(words[1])
                else:
                    hung.clear()
                    failing.clear()
                    for request in held:
                        _reply(fd, folder, *request, failing)
                    held.clear()
        if fd in ready:
            try:
                data = os.read(fd, 1 << 18)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                continue
            _, opcode, unique, node = struct.unpack_from("=IIQQ", data)
            request = (NAMES.get(opcode, ""), unique, node, data[40:])
            if request[0] in hung:
                held.append(request)
            else:
                _reply(fd, folder, *request, failing)


def _reply(
    fd: int, folder: Folder, name: str, unique: int, node: int, body: bytes, failing: dict[str, int]
) -> None:
    if name in _SILENT:
        return
    found = failing.get(name) or folder.answer(name, node, body)
    error, out = (-found, b"") if isinstance(found, int) else (0, found)
    with suppress(OSError):  # whoever asked was killed meanwhile
        os.write(fd, struct.pack("=IiQ", 16 + len(out), error, unique) + out)


def mount(point: str) -> int | str:
    """The open /dev/fuse, or why there is none."""
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"exaserve-test", point.encode(), b"fuse.exaserve", 0, options.encode()):
        return f"mount: {os.strerror(ctypes.get_errno())}"
    return fd


def unmount(point: str) -> None:
    """At once, whoever still waits in it."""
    ctypes.CDLL(None).umount2(point.encode(), MNT_DETACH)


if __name__ == "__main__":
    opened = mount(sys.argv[1])
    print("mounted" if isinstance(opened, int) else f"can't: {opened}", flush=True)
    if isinstance(opened, int):
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(1))
        signal.alarm(MOST_SECONDS)
        try:
            serve(opened)
        finally:
            unmount(sys.argv[1])
