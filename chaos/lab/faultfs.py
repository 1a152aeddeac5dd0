"""A file system that passes everything through to a folder and fails as it is told (FUSE, by mfusepy).

    python -m chaos.lab.faultfs BACKING MOUNTPOINT --control FOLDER [--name NAME]

Stays in the foreground and prints ``ready`` when the mount answers. What it is told lies in FOLDER (rules and
their format: ``faultrules.py``), which must not lie in the mount. SIGTERM frees every held operation, takes
the mount away and ends, whatever hangs. SIGKILL leaves a mount whose every use fails with ENOTCONN;
``fusermount3 -u -z MOUNTPOINT`` clears it.

The kernel keeps pages of files that were read, mapped ones too, and would answer from them as if nothing had
happened. So whenever the rules change, the daemon has it drop the pages of every file that was ever opened:
the next touch comes here. (``direct_io`` would do so for reads alone, and refuses shared mappings, which
weights in safetensors need.) Out of reach: pages that a process has written to in a private mapping, or copied
into its own memory. An error under a mapping is a SIGBUS in the process that touches it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from chaos.lab.faultops import Faults, PassThrough
from chaos.lab.faultrules import Folder

#: As mountinfo shows it; leftovers are found by it.
FS_TYPE = "fuse.exaserve"
#: Seconds between two looks at the control folder.
POLL = 0.05
#: Operations that can be held at once before others wait behind them (libfuse's own limit is 10).
_THREADS = 256
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def is_mounted(mountpoint: str, name: str | None = None) -> bool:
    """Whether one of our file systems (of that name) is mounted there. Asks the kernel, not the file system."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            left, _, right = line.partition(" - ")
            fs_type, source = right.split()[:2]
            if (
                fs_type == FS_TYPE
                and _plain(left.split()[4]) == mountpoint
                and name in (None, _plain(source))
            ):
                return True
    return False


def _plain(text: str) -> str:
    """mountinfo writes blanks and backslashes as octal."""
    for octal, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, char)
    return text


def _unmount(mountpoint: str) -> None:
    detach = 2  # MNT_DETACH: also with files open in it
    if ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(mountpoint), detach) != 0:
        subprocess.run(["fusermount3", "-u", "-z", "-q", mountpoint], check=False)


def _serve(fuse: Any, backing: str, mountpoint: str, control: Path, name: str) -> None:
    faults = Faults(folder := Folder(control))
    faults.look()
    files = PassThrough(backing, faults, fuse._libfuse.fuse_get_context, fuse._libfuse.fuse_invalidate_path)
    stale, dropped = threading.Event(), threading.Event()

    def watch() -> None:
        files.mounted.wait()
        written: tuple[Any, ...] = ()
        while True:
            if faults.look():
                dropped.clear()
                stale.set()
                # What the state says then also holds for pages; a held read may keep one for longer.
                dropped.wait(0.5)
            state = (dict(folder.files), dict(faults.hits))
            if state != written:
                folder.write_state(state[1])
                written = state
            time.sleep(POLL)

    def drop() -> None:
        # A thread of its own: it waits for pages that a held read has locked.
        while stale.wait():
            stale.clear()
            files.drop_pages()
            dropped.set()

    def announce() -> None:
        while not is_mounted(mountpoint, name):
            time.sleep(0.01)
        files.mounted.wait()
        print("ready", flush=True)

    def end() -> None:
        signal.sigwait(_ENDING)
        if is_mounted(mountpoint, name):
            _unmount(mountpoint)
        os._exit(0)  # closes the connection, and with it everything that is held

    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    for work in (watch, drop, announce, end):
        threading.Thread(target=work, name=f"faultfs-{work.__name__}", daemon=True).start()
    # The kernel checks permissions; everybody may look in, as with any shared storage.
    options = {"allow_other": True, "default_permissions": True, "max_threads": _THREADS}
    fuse.FUSE(files, mountpoint, foreground=True, fsname=name, subtype=FS_TYPE.partition(".")[2], **options)


def _folders(arguments: argparse.Namespace) -> tuple[str, str, Path]:
    """Absolute folders. Raises ValueError with a sentence."""
    backing, mountpoint = os.path.realpath(arguments.backing), os.path.realpath(arguments.mountpoint)
    control = Path(os.path.realpath(arguments.control))
    for what, folder in (("BACKING", backing), ("MOUNTPOINT", mountpoint)):
        if not os.path.isdir(folder):
            raise ValueError(f"{what}: {folder} is no folder")
    if is_mounted(mountpoint):
        raise ValueError(
            f"MOUNTPOINT: {mountpoint} already is one of these mounts (fusermount3 -u -z {mountpoint})"
        )
    if mountpoint == backing or mountpoint.startswith(f"{backing}/") or backing.startswith(f"{mountpoint}/"):
        raise ValueError("BACKING and MOUNTPOINT must not lie in each other")
    if control == Path(mountpoint) or Path(mountpoint) in control.parents:
        raise ValueError(
            "--control: the folder must lie outside of MOUNTPOINT, or a fault could not be lifted"
        )
    if not arguments.name or any(c in arguments.name for c in ", \t\n\\"):
        raise ValueError("--name: letters, digits, - and _ are possible")
    try:
        control.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--control: {control}: {error.strerror}") from None
    return backing, mountpoint, control


def main(argv: list[str] | None = None) -> None:
    """Serve until SIGTERM or until somebody unmounts it. Exit 2 with a sentence if it can't begin."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.lab.faultfs",
        description="Pass a folder through and fail as the files in the control folder say.",
        epilog="example: python -m chaos.lab.faultfs /srv/models /mnt/models --control /run/models.control; then"
        """ echo '{"rules": [{"fault": "latency", "seconds": 0.2}]}' > /run/models.control/slow.json""",
    )
    parser.add_argument("backing", metavar="BACKING", help="the folder that holds the files")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="where they appear")
    parser.add_argument("--control", metavar="FOLDER", required=True, help="where rules lie; made if missing")
    parser.add_argument(
        "--name", default="exaserve", help="its source in the list of mounts (default: exaserve)"
    )
    arguments = parser.parse_args(argv)
    try:
        backing, mountpoint, control = _folders(arguments)
    except ValueError as error:
        parser.exit(2, f"faultfs: {error}\n")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        parser.exit(2, "faultfs: /dev/fuse can't be opened: FUSE is not in this kernel or this container\n")
    try:
        import mfusepy
    except (ImportError, OSError, AttributeError):
        parser.exit(2, "faultfs: libfuse is missing: sudo apt-get install fuse3 (and pip install mfusepy)\n")
    with contextlib.suppress(KeyboardInterrupt):
        try:
            _serve(mfusepy, backing, mountpoint, control, arguments.name)
        except RuntimeError as error:
            parser.exit(
                2, f"faultfs: {mountpoint} could not be mounted (libfuse: {error}; see the line above)\n"
            )


if __name__ == "__main__":
    main()
