"""Storage collector: latency, space and state of each configured folder, asked by a thread of its own.

A file system that hangs holds whoever asks it, so a scrape asks none: it hands over what the threads found
last. Each folder has one thread, which probes it every ``storage_interval`` seconds (``_probe.py``). One that
has not come back after ``storage_stuck_after`` seconds is stuck: the folder's measurements are gone,
``stuck`` is 1, and no second thread is sent after the first. Some file systems (FUSE) hold even a killed
process until they answer, so an exporter with a stuck mount may not end before that; its port is free at
once. What is mounted is read from the kernel (``_mountinfo.py``), which never hangs.

A folder that lay on a mount point of its own and now lies on another one has lost it: ``mounted`` is 0,
nothing is written to what is below, and all other series of it end until it is back."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections import Counter
from pathlib import Path

from exporters.collectors import _mountinfo
from exporters.collectors._mountinfo import Mount
from exporters.collectors._probe import NOT_ALLOWED, Found, kind_of, probe
from exporters.registry import NoData, Sample, register
from exporters.settings import Settings

log = logging.getLogger("exaserve.exporter")

#: Folders of one exporter; each costs a thread.
MAX_MOUNTS = 64
#: Seconds between two probes, whatever the settings say: a probe writes and syncs.
LEAST_INTERVAL = 15.0
#: Seconds that the first scrape waits for the first probes, so that it is not empty.
FIRST_WAIT = 1.0

_GAUGES = (
    ("exaserve_storage_size_bytes", "size"),
    ("exaserve_storage_free_bytes", "free"),
    ("exaserve_storage_available_bytes", "available"),
    ("exaserve_storage_inodes", "inodes"),
    ("exaserve_storage_inodes_free", "inodes_free"),
    ("exaserve_storage_read_latency_seconds", "read"),
    ("exaserve_storage_read_direct", "direct"),
    ("exaserve_storage_write_latency_seconds", "write"),
)


class Watch:
    """One folder and its thread. Everything that both sides touch is under the lock."""

    def __init__(self, folder: str, procfs: Path, interval: float, stuck_after: float) -> None:
        self.folder = folder
        self.first = threading.Event()
        self._procfs, self._interval, self._stuck_after = procfs, interval, stuck_after
        self._host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:64]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began: tuple[float, float] | None = None  # monotonic and unix time of the probe that is out
        self._found: Found | None = None
        self._ended = 0.0
        self._probes = 0
        self._errors: Counter[tuple[str, str]] = Counter()
        self._resolved = os.path.abspath(folder)
        self._point: str | None = None  # mount point where it was first seen
        self._missing = False

    def start(self) -> None:
        """Once; a thread that hangs is not given a second one beside it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"storage-{self.folder}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                self._began = (time.monotonic(), time.time())
            found = self._probe()
            with self._lock:
                self._began, self._found, self._ended = None, found, time.monotonic()
                self._probes += 1
                self._errors.update(found.errors if found is not None else ())
            self.first.set()
            self._stop.wait(self._interval)

    def _probe(self) -> Found | None:
        """None if the folder is not there or not mounted."""
        try:
            resolved = os.path.realpath(self.folder, strict=True)
            os.stat(resolved)
        except OSError as error:
            gone = kind_of(error) == "missing"
            with self._lock:
                self._missing = gone
            return None if gone else Found(errors=[("stat", kind_of(error))])
        try:
            mount = _mountinfo.of(resolved, _mountinfo.read(self._procfs))
        except (OSError, ValueError):
            mount = None
        with self._lock:
            self._missing, self._resolved = False, resolved
            if mount is None or self._is_lost(mount):
                return None
            self._point = mount.point
        try:
            return probe(resolved, self._host, mount.read_only)
        except Exception as error:  # a thread that ended would look like a mount that is fine
            log.exception("storage %s: %s", self.folder, error)
            return Found(errors=[("stat", "other")])

    def _is_lost(self, mount: Mount) -> bool:
        """The folder's own mount is gone: it lies on the one that was below."""
        return self._point is not None and _mountinfo.is_above(mount.point, self._point)

    def _mount(self, mounts: list[Mount]) -> Mount | None:
        """What the folder lies on, if it is there; asks no file system."""
        with self._lock:
            # Until the thread has come back once, links in the path are not known.
            mount = _mountinfo.of(self._resolved, mounts)
            return None if mount is None or self._missing or self._is_lost(mount) else mount

    def samples(self, mounts: list[Mount], limit: float) -> list[Sample]:
        at = (self.folder,)
        mount = self._mount(mounts)
        with self._lock:
            began, found, age = self._began, self._found, time.monotonic() - self._ended
            probes, errors = self._probes, dict(self._errors)
        stuck = began is not None and time.monotonic() - began[0] > self._stuck_after
        samples = [Sample("exaserve_storage_mounted", at, float(mount is not None))]
        samples.append(Sample("exaserve_storage_probes_total", at, probes))
        samples += [
            Sample("exaserve_storage_probe_errors_total", (*at, *which), n) for which, n in errors.items()
        ]
        if stuck and began is not None:
            samples.append(Sample("exaserve_storage_stuck_since_timestamp_seconds", at, began[1]))
        if mount is None:
            # Not mounted any more, and yet the thread hangs in it: that is worth a series.
            return samples + ([Sample("exaserve_storage_stuck", at, 1)] if stuck else [])
        about = (mount.point, mount.fs_type, mount.source, mount.options)
        samples += [
            Sample("exaserve_storage_stuck", at, float(stuck)),
            Sample("exaserve_storage_mount_info", (*at, *about), 1),
            Sample("exaserve_storage_read_only", at, float(mount.read_only)),
            Sample("exaserve_storage_read_limit_seconds", at, limit),
        ]
        if found is not None and not stuck and age < 2 * self._interval + self._stuck_after:
            samples += [
                Sample(name, at, float(value))
                for name, field in _GAUGES
                if (value := getattr(found, field)) is not None
            ]
            samples += _failures(at, found)
        return samples


def _failures(at: tuple[str], found: Found) -> list[Sample]:
    """Whether each operation that was tried failed. That we may not write is no failure."""
    failed = dict(found.errors)
    tried = {"stat": True, "read": found.read is not None, "write": found.write is not None}
    return [
        Sample("exaserve_storage_probe_failed", (*at, operation), float(operation in failed))
        for operation, worked in tried.items()
        if worked or (operation in failed and failed[operation] not in NOT_ALLOWED)
    ]


class StorageCollector:
    """Watches ``settings.mounts``."""

    def __init__(self, settings: Settings, least_interval: float = LEAST_INTERVAL) -> None:
        folders = list(dict.fromkeys(settings.mounts))
        if len(folders) > MAX_MOUNTS:
            raise ValueError(f"{len(folders)} mounts, at most {MAX_MOUNTS} are watched")
        interval = max(least_interval, settings.storage_interval)
        self._settings = settings
        self._waited = False
        self._watches = [
            Watch(folder, settings.procfs, interval, settings.storage_stuck_after) for folder in folders
        ]

    def collect(self, deadline: float) -> list[Sample]:
        if not self._watches:
            raise NoData
        for watch in self._watches:
            watch.start()
        if not self._waited:
            self._waited = True
            until = min(deadline - 0.1, time.monotonic() + FIRST_WAIT)
            for watch in self._watches:
                watch.first.wait(max(0.0, until - time.monotonic()))
        mounts = _mountinfo.read(self._settings.procfs)
        return [s for w in self._watches for s in w.samples(mounts, self._settings.storage_read_limit)]

    def close(self) -> None:
        """End the threads, except those that hang."""
        for watch in self._watches:
            watch.stop()


register("storage", StorageCollector)
