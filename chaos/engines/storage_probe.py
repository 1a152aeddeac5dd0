"""Looks at one folder and prints one line of JSON. Standard library only, Python 3.8: it is sent to nodes as text.

    python3 -I -c "$(cat storage_probe.py)" '{"folder": "/models", "do": ["space", "read"], "file": "a", "limit": 1.5}'

What may hang happens in a child that is killed and left behind after ``limit`` seconds; ``hung`` is then the
operation that did not come back. One that writes is not killed: it removes its file once it can. The answer, with
only what was asked for and worked::

    {"hung": null, "space": {"size", "free", "available"}, "names": [...], "device": 41,
     "read": {"seconds", "slowest", "bytes", "direct", "sha256"}, "write": {"seconds"}, "errors": {"read": "EIO"}}

read: ``size`` bytes from the beginning of ``file``, past the page cache (O_DIRECT, or a hint to drop it), median
seconds of ``count``. write: a file of 4 KiB with fsync, removed again when all is said. touch: the folder's times,
which leaves nothing behind where it hangs. names: the first 256.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import select
import signal
import sys
import time
from typing import Any

Ask = dict[str, Any]
NAME = ".exaserve-chaos-probe"
#: Seconds for which the file of a write is tried to be removed: a fault may be in that lets it be made, and then not that.
TIDY = 60.0


def space(ask: Ask) -> dict[str, int]:
    s = os.statvfs(ask["folder"])
    return {
        "size": s.f_blocks * s.f_frsize,
        "free": s.f_bfree * s.f_frsize,
        "available": s.f_bavail * s.f_frsize,
    }


def names(ask: Ask) -> list[str]:
    return sorted(os.listdir(ask["folder"]))[:256]


def device(ask: Ask) -> int:
    return os.stat(ask["folder"]).st_dev


def read(ask: Ask) -> Ask:
    path, size = os.path.join(ask["folder"], ask["file"]), ask.get("size", 4096)
    direct = True
    times, data = [], b""
    for _ in range(ask.get("count", 1)):
        began = time.monotonic()
        try:
            fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
            data = _pull(fd, size)
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            direct = False
            began = time.monotonic()
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            data = _pull(fd, size)
        times.append(time.monotonic() - began)
    times.sort()
    told = {"seconds": times[len(times) // 2], "slowest": times[-1], "bytes": len(data), "direct": direct}
    return {**told, "sha256": hashlib.sha256(data).hexdigest()}


def _pull(fd: int, size: int) -> bytes:
    """``size`` bytes from the beginning; less if the file ends. Closes the descriptor."""
    try:
        block = mmap.mmap(-1, 1 << 20)  # O_DIRECT wants whole pages
        parts, got = [], 0
        while got < size:
            n = os.preadv(fd, [memoryview(block)[: min(len(block), -(-(size - got) // 4096) * 4096)]], got)
            if n == 0:
                break
            parts.append(bytes(block[:n]))
            got += n
        return b"".join(parts)[:size]
    finally:
        os.close(fd)


def write(ask: Ask) -> Ask:
    began = time.monotonic()
    fd = os.open(os.path.join(ask["folder"], NAME), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, b"\0" * ask.get("size", 4096))
        os.fsync(fd)
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)
    return {"seconds": time.monotonic() - began}


def tidy(folder: str) -> None:
    """Remove the file of a write, if there is one; nobody waits for it."""
    end = time.monotonic() + TIDY
    while time.monotonic() < end:
        try:
            os.unlink(os.path.join(folder, NAME))
            return
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return
        time.sleep(0.2)


def touch(ask: Ask) -> Ask:
    began = time.monotonic()
    os.utime(ask["folder"])
    return {"seconds": time.monotonic() - began}


ASKED = {f.__name__: f for f in (space, names, device, read, write, touch)}


def child(ask: Ask, out: int) -> None:
    for what in ask["do"]:
        os.write(out, json.dumps(["began", what]).encode() + b"\n")
        try:
            os.write(out, json.dumps([what, ASKED[what](ask)]).encode() + b"\n")
        except OSError as error:
            os.write(
                out,
                json.dumps(["error", what, errno.errorcode.get(error.errno or 0, "OTHER")]).encode() + b"\n",
            )


def main(ask: Ask) -> None:
    back, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Whoever waits for our output must not wait for a child that hangs.
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            child(ask, out)
            os.close(out)
            if "write" in ask["do"]:
                tidy(ask["folder"])
        finally:
            os._exit(0)
    os.close(out)
    end, said = time.monotonic() + ask.get("limit", 1.5), b""
    while select.select([back], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(back, 65536)
        if not part:
            break
        said += part
    answer: Ask = {"errors": {}}
    open_since = None
    for line in said.decode().splitlines():
        what, *rest = json.loads(line)
        if what == "began":
            open_since = rest[0]
        else:
            open_since = None
            if what == "error":
                answer["errors"][rest[0]] = rest[1]
            else:
                answer[what] = rest[0]
    answer["hung"] = open_since
    if open_since and "write" not in ask["do"]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
