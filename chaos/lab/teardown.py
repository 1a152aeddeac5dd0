"""Removing a lab whatever is left of it. Everything is found by name, so a state file is not needed.

A lab's processes have its folder in their environment, its interfaces begin with ``exal-NAME``, its mounts lie
below its folder; tables of nftables that faults made for it in the machine's own network are called
``exal_NAME_…`` and control groups ``exal-NAME-…``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from chaos import identity
from chaos.lab import mounts, network
from chaos.lab.state import MARK, LabError, folder

_SECONDS = 20.0


def remove(name: str) -> list[str]:
    """Remove everything of the lab; what there was, in words (empty: nothing).

    Raises LabError, after everything else is removed, if something can't be.
    """
    check_outside()
    place, found = str(folder(name)), []
    failed: list[str] = []
    try:
        foreign = is_foreign(name)
    except LabError as error:  # without ip(8); everything else goes all the same
        foreign = True
        failed.append(f"interfaces: {error}")
    steps: list[tuple[str, str, Callable[[], int]]] = [
        ("process", "processes", lambda: _end_all(place, _groups(name))),
        ("control group", "control groups", lambda: sum(map(_remove_group, _groups(name)))),
        ("mount", "mounts", lambda: _unmount_all(place)),
    ]
    if not foreign:
        steps += [
            ("interface", "interfaces", lambda: _remove_interfaces(name)),
            ("nftables table", "nftables tables", lambda: _remove_tables(name)),
        ]
    for one, many, step in steps:
        try:
            count = step()
        except (LabError, OSError, subprocess.SubprocessError) as error:
            failed.append(f"{many}: {error}")  # the steps after it have to be tried
            continue
        if count:
            found.append(f"{count} {one if count == 1 else many}")
    left = mounts.below(place)
    if left:
        failed.append(f"still mounted, so its folder stays: {', '.join(m.path for m in left)}")
    elif os.path.lexists(place):
        shutil.rmtree(place, ignore_errors=True)
        if os.path.lexists(place):
            failed.append(f"{place} can't be removed")
        found.append("its folder")
    if failed:
        raise LabError(f"lab {name!r} is not gone altogether: {'; '.join(failed)}")
    return found


def check_outside() -> None:
    """Raises LabError inside of a lab, where names mean something else."""
    if os.environ.get(MARK):
        raise LabError("this is a shell inside of a lab; run it on the machine itself")


def is_foreign(name: str) -> bool:
    """Whether a lab of that name is there that lies in another folder: of it only the name is ours. Raises LabError."""
    return network.owner(name) not in (None, "", str(folder(name)))


def processes(place: str) -> list[int]:
    """Processes of the lab: those with its folder in their environment. Not this one nor its ancestors."""
    want, found = os.fsencode(f"{MARK}={place}"), []
    for pid in identity.pids():
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if want in words:
            found.append(pid)
    return [pid for pid in found if identity.of(pid) and pid != os.getpid()]


def leftovers(name: str) -> list[str]:
    """What of the lab is there, in words; empty if nothing is."""
    place = str(folder(name))
    found = [f"process {pid}" for pid in processes(place)]
    found += [f"mount {m.path}" for m in mounts.below(place)]
    if not is_foreign(name):
        found += [f"interface {link}" for link in network.of(name)]
        found += [f"table {family} {table}" for family, table in _tables(name)]
    return found + [f"control group {group}" for group in _groups(name)]


def _end_all(place: str, groups: list[Path]) -> int:
    """Kill all at once, and again what was started meanwhile, until none is left."""
    seen: set[int] = set()
    end = time.monotonic() + _SECONDS
    while left := processes(place):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            seen.add(pid)
        for group in groups:
            _thaw(group)
        if time.monotonic() > end:
            raise LabError(f"not ended after {_SECONDS:.0f} s: {', '.join(map(str, left))}")
        time.sleep(0.05)
    return len(seen)


def _thaw(group: Path) -> None:
    """A frozen process dies once it is thawed. With its processes the group may go at any time: that is no error."""
    for file, text in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        with contextlib.suppress(OSError):  # who stays frozen is named when the time is over
            if (group / file).exists():
                (group / file).write_text(text)


def _unmount_all(place: str) -> int:
    count, end = 0, time.monotonic() + _SECONDS
    while left := mounts.below(place):
        for mount in reversed(left):
            count += mounts.detach(mount.path)
        if time.monotonic() > end:
            raise LabError(
                f"{left[-1].path} is still mounted after {_SECONDS:.0f} s: it can't be detached, or it is mounted "
                f"again and again; look for who does that, or: umount -l {left[-1].path}"
            )
        time.sleep(0.01)
    return count


def _remove_interfaces(name: str) -> int:
    there = network.of(name)
    network.remove(there)
    return len(there)


def _tables(name: str) -> list[tuple[str, str]]:
    """(family, name) of the lab's tables in the machine's own network; none where nft is not installed."""
    if shutil.which("nft") is None:
        return []
    done = network.run(["nft", "list", "tables"])
    pattern = rf"^table (\w+) (exal_{re.escape(name)}(?:_\S*)?)$"
    return [(m[1], m[2]) for m in re.finditer(pattern, done.stdout, re.MULTILINE)]


def _remove_tables(name: str) -> int:
    there = _tables(name)
    for family, table in there:
        done = network.run(["nft", "delete", "table", family, table])
        if done.returncode and (family, table) in _tables(name):
            raise LabError(f"table {family} {table}: {done.stderr.strip()}")
    return len(there)


def _groups(name: str) -> list[Path]:
    """Control groups of the lab, the deepest first, in every hierarchy that is mounted."""
    return sorted(set(_walk_groups(name)), key=lambda path: -len(path.parts))


def _walk_groups(name: str) -> Iterator[Path]:
    for mount in mounts.everything():
        if not mount.fstype.startswith("cgroup"):
            continue
        try:
            tops = [
                p for p in Path(mount.path).iterdir() if re.match(rf"exal-{re.escape(name)}(-|$)", p.name)
            ]
        except OSError:
            continue
        for top in tops:  # os.walk bears groups that vanish meanwhile; Path.rglob does not
            yield from (Path(path) for path, _, _ in os.walk(top))


def _remove_group(group: Path) -> int:
    end = time.monotonic() + 5
    while group.exists():
        try:
            group.rmdir()
        except OSError as error:
            if time.monotonic() > end:
                raise OSError(error.errno, f"{group}: {error.strerror}") from None
            time.sleep(0.05)
    return 1
