"""The closed set of steps that faults and undos are made of, carried out. Standard library only, Python 3.8.

Steps are plain JSON; ``steps.py`` builds them and says what each does. Everything here may be called again with the
same step: an undo has to be right from any state. What a step acts on may be gone: in an undo that is nothing to
undo, in an injection it is an error. Runs wherever ``undo.py`` runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from chaos import identity

_POST = (
    "import sys,urllib.request as u;"
    "r=u.Request(sys.argv[1],sys.argv[2].encode(),{'content-type':'application/json'});"
    "u.build_opener(u.ProxyHandler({})).open(r,timeout=float(sys.argv[3])).read()"
)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class StepError(Exception):
    """A step could not be carried out; the text says which and why."""


def _never() -> bool:
    return False


class Context:
    """What a step needs to know.

    mark: what helpers carry in their environment, the record's path. spawned: helpers by key, added to here and kept
    by ``keep``. undoing: what is gone needs no undo. stop: whether the fault is not wanted any more; a program that
    runs is ended then.
    """

    def __init__(
        self,
        mark: str,
        spawned: dict[str, Any],
        undoing: bool,
        keep: Callable[[], None] = lambda: None,
        stop: Callable[[], bool] = _never,
    ) -> None:
        self.mark, self.spawned, self.undoing = mark, spawned, undoing
        self.keep, self.stop = keep, stop


def execute(context: Context, step: dict[str, Any]) -> None:
    """Carry out one step. Raises StepError."""
    try:
        OPS[step["op"]](context, step)
    except StepError:
        raise
    except Exception as error:  # whatever it is, the steps after it have to be tried
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StepError(f"{step.get('op')}: {type(error).__name__}: {why}") from None


# --- programs


def _inside(context: Context, step: dict[str, Any]) -> bool:
    """Whether the node that the step acts on is there: its pid in the argv would be another process's otherwise."""
    inside = step.get("inside")
    if inside is None or identity.alive(inside):
        return True
    if context.undoing:
        return False
    raise StepError(f"process {inside['pid']}, which holds the node together, is gone")


def _program(context: Context, argv: list[str], step: dict[str, Any]) -> None:
    with _scratch() as said, _scratch() as given:
        given.write(step.get("input", "").encode())
        given.seek(0)
        environment = {**os.environ, "LC_ALL": "C"}
        if not context.undoing:  # whoever undoes ends it first, should the one who started it be gone
            environment[identity.STEP] = context.mark
        try:
            process = subprocess.Popen(
                argv, stdin=given, stdout=said, stderr=said, env=environment, start_new_session=True
            )
        except OSError as error:
            raise StepError(f"{argv[0]}: {error.strerror or error}") from None
        limit = time.monotonic() + step.get("timeout", 10.0)
        # Short waits: a fault that nobody wants any more ends within 20 ms, not when its program likes to.
        while process.poll() is None:
            late = time.monotonic() >= limit
            if late or context.stop():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                why = "no end" if late else "not wanted any more"
                try:
                    process.wait(5.0)
                except subprocess.TimeoutExpired:
                    # In the kernel, on storage that hangs; others are not to wait for it.
                    why += f", and process {process.pid} can't be killed"
                raise StepError(f"{' '.join(argv)}: {why}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        said.seek(0)
        words = said.read().decode("utf-8", "replace").strip()
    if process.returncode and not (context.undoing and any(a in words for a in step.get("absent", ()))):
        raise StepError(f"{' '.join(argv)}: exit {process.returncode}: {words[-400:] or 'it said nothing'}")


def _scratch() -> Any:
    """A file for a program's words, in memory: a full disk must keep nobody from healing."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("exaserve-chaos"), "w+b")
    return tempfile.TemporaryFile()


def _run(context: Context, step: dict[str, Any]) -> None:
    if _inside(context, step):
        _program(context, step["argv"], step)


def dies_with_us(number: int) -> Callable[[], None]:
    """For Popen's ``preexec_fn``: the child gets the signal when this process ends, however that happens."""
    libc, us = ctypes.CDLL(None), os.getpid()

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != us:  # it ended between fork and prctl
            os._exit(1)

    return in_child


def _spawn(context: Context, step: dict[str, Any]) -> None:
    if not _inside(context, step):
        return
    key, ready = step["key"], step.get("ready", "")
    with _scratch() as said:
        try:
            process = subprocess.Popen(
                step["argv"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, **step.get("env", {}), identity.MARK: context.mark},
                start_new_session=True,
                preexec_fn=dies_with_us(signal.SIGKILL),
            )
        except OSError as error:
            raise StepError(f"{step['argv'][0]}: {error.strerror or error}") from None
        # Kept before anybody waits for it; between the two its environment names the record.
        context.spawned[key] = identity.of(process.pid) or {"pid": process.pid, "ticks": -1, "boot": ""}
        context.keep()
        words = ""

        def told() -> bool:
            nonlocal words
            ended = process.poll() is not None  # asked before the words are read: the last ones are in
            words = os.pread(said.fileno(), 65536, 0).decode("utf-8", "replace").strip()
            return (bool(ready) and ready in words) or ended or context.stop()

        identity.until(told, step.get("timeout", 10.0) if ready else 0.05)
    if process.poll() is not None:
        raise StepError(f"{key}: ended with exit {process.returncode}: {words[-400:] or 'it said nothing'}")
    if ready and ready not in words:
        raise StepError(f"{key}: was not ready: {words[-400:] or 'it said nothing'}")


def _stop(context: Context, step: dict[str, Any]) -> None:
    """End a helper and all that it started: its session, and whatever else carries the mark."""
    who = context.spawned.get(step["key"])

    def left() -> list[dict[str, Any]]:
        return [*(identity.session(who) if who else []), *(one for one, _ in identity.helpers(context.mark))]

    for number, seconds in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 3.0)):
        for one in left():
            identity.send(one, number)
            identity.send(one, signal.SIGCONT)
        if identity.until(lambda: not left(), seconds):
            return
    raise StepError(f"{step['key']}: processes {sorted(one['pid'] for one in left())} do not end")


def _unmount(context: Context, step: dict[str, Any]) -> None:
    """Take away our mount and none below it: only while the topmost one at the path is ours."""
    if not _inside(context, step):
        return
    holder = (step.get("inside") or {"pid": "self"})["pid"]
    argv = [*step.get("prefix", []), "umount", *(["-l"] if step.get("lazy", True) else []), step["path"]]
    for _ in range(16):
        with open(f"/proc/{holder}/mountinfo") as f:
            rows = [line.split() for line in f]
        there = [r for r in rows if r[4] == _escaped(step["path"])]
        # proc(5), mountinfo: root within the file system is the 4th field, the source the last but one.
        if not there or not any(step["ours"] in word for word in (there[-1][3], there[-1][-2])):
            return
        _program(context, argv, {"absent": ["not mounted", "no mount point"]})
    raise StepError(f"{step['path']}: still mounted")


def _escaped(path: str) -> str:
    """As mountinfo writes it (proc(5): space, tab, newline and backslash as octal numbers)."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in path)


# --- processes


def _signal(context: Context, step: dict[str, Any]) -> None:
    if not identity.send(step["who"], getattr(signal, step["signal"])) and not context.undoing:
        raise StepError(f"process {step['who']['pid']}, which was to get {step['signal']}, is gone")


def _end(context: Context, step: dict[str, Any]) -> None:
    who = step["who"]
    identity.send(who, signal.SIGTERM)
    identity.send(who, signal.SIGCONT)  # a stopped process would never hear of it
    if not identity.until(lambda: not identity.alive(who), step.get("grace", 2.0)):
        identity.send(who, signal.SIGKILL)
        if not identity.until(lambda: not identity.alive(who), 3.0):
            raise StepError(f"process {who['pid']} does not end")


# --- files


def write_whole(path: str, text: str, mode: int) -> None:
    """The old file or the whole new one, and on the disk when this returns. Raises OSError."""
    folder = os.path.dirname(path) or "."
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(path)}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temporary, mode)
        with contextlib.suppress(OSError):  # a file that was there keeps its owner
            about = os.stat(path)
            os.chown(temporary, about.st_uid, about.st_gid)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # the name, too, has to outlive a power cut
    finally:
        os.close(handle)


def _write(context: Context, step: dict[str, Any]) -> None:
    path, wanted = step["path"], step.get("only_if")
    if wanted is not None:
        try:
            with open(path, encoding="utf-8", errors="surrogateescape", newline="") as f:
                found = f.read()
        except FileNotFoundError:
            if context.undoing:
                return
            raise
        if found != wanted:
            if context.undoing:
                return  # somebody has put another text there since; it is theirs
            raise StepError(f"{path} was changed by somebody else just now")
    write_whole(path, step["text"], step.get("mode", 0o644))


def _put(context: Context, step: dict[str, Any]) -> None:
    try:
        with open(step["path"], "w") as f:
            f.write(step["text"])
    except FileNotFoundError:
        if not context.undoing:
            raise StepError(f"{step['path']} is not there") from None


def _mkdir(context: Context, step: dict[str, Any]) -> None:
    os.makedirs(step["path"], exist_ok=True)


def _remove(context: Context, step: dict[str, Any]) -> None:
    path = step["path"]
    with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            os.unlink(path)


def _rename(context: Context, step: dict[str, Any]) -> None:
    source, target = step["source"], step["target"]
    if os.path.lexists(target):
        if os.path.lexists(source):
            raise StepError(f"{target} and {source} are both there; which one counts is for you to say")
        return
    os.rename(source, target)


# --- HTTP


def _post(context: Context, step: dict[str, Any]) -> None:
    url, text, limit = step["url"], json.dumps(step["body"]), step.get("timeout", 3.0)
    if step.get("prefix"):
        if _inside(context, step):
            argv = [*step["prefix"], sys.executable or "python3", "-I", "-c", _POST, url, text, str(limit)]
            _program(context, argv, {"timeout": limit + 5.0, "absent": ["Connection refused"]})
        return
    request = urllib.request.Request(url, text.encode(), {"content-type": "application/json"})  # noqa: S310
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=limit) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        said = error.read()[:300].decode("utf-8", "replace")
        raise StepError(f"{url}: HTTP {error.code}: {said}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if not (context.undoing and isinstance(reason, ConnectionRefusedError)):
            raise StepError(f"{url}: {reason}") from None


OPS: dict[str, Callable[[Context, dict[str, Any]], None]] = {
    "run": _run,
    "spawn": _spawn,
    "stop": _stop,
    "unmount": _unmount,
    "signal": _signal,
    "end": _end,
    "write": _write,
    "put": _put,
    "mkdir": _mkdir,
    "remove": _remove,
    "rename": _rename,
    "post": _post,
}
