"""Reads one device: makes its plan when it is new or has changed, then reads file by file what the plan names.

A file that can't be read, or holds no number, costs its own series and is counted. Known ways: ``N/A (no PMA)`` (old
kernels), EINVAL, ENOSYS, EOPNOTSUPP, EACCES, ENODEV and ENOENT.
"""

from __future__ import annotations

import threading
import time

from exporters.collectors._infiniband_files import Files
from exporters.collectors._infiniband_plan import SATURATED, Plan, Port, look, mark
from exporters.registry import Sample

#: Seconds after which texts, the interface's name among them, are read anew without any sign of a change.
LOOK_AGAIN = 60.0
#: rate says Gb/s, in powers of 1000.
_BYTES_OF_GIGABIT = 125_000_000
#: Digits of 2**64 - 1, which is also the longest number of a sysfs counter.
_DIGITS = 20

_UNREADABLE = "exaserve_infiniband_device_unreadable_files"
_STATE = "exaserve_infiniband_port_state_id"
_PHYSICAL = "exaserve_infiniband_port_physical_state_id"
_RATE = "exaserve_infiniband_port_rate_bytes_per_second"


class Device:
    """``read`` is called by one thread at a time; ``forget`` by any.

    busy: some scrape has it in work, or hangs in it; the collector's to set.
    """

    def __init__(self, name: str, path: str, files: Files, node_names: bool) -> None:
        self.name = name
        self.busy = False
        self._path, self._files, self._node = path, files, node_names
        self._plan: Plan | None = None
        self._looked = 0.0
        self._reading = self._gone = False
        self._lock = threading.Lock()

    def read(self) -> list[Sample]:
        """Its samples of now. Raises OSError (FileNotFoundError among them) if the device is not there."""
        with self._lock:
            self._reading = True
        try:
            plan = self._current()
            samples = list(plan.fixed)
            unreadable = plan.left_out + self._read_ports(plan, samples) + _read_counters(plan, samples)
            samples.append(Sample(_UNREADABLE, (self.name,), float(unreadable)))
            return samples
        finally:
            with self._lock:
                self._reading = False
                if self._gone:
                    self._drop()

    def forget(self) -> None:
        """The device is gone: close what is open, at once or when the thread that reads it comes back."""
        with self._lock:
            self._gone = True
            if not self._reading:
                self._drop()

    def _current(self) -> Plan:
        now = time.monotonic()
        plan = self._plan
        if plan is not None and (now - self._looked > LOOK_AGAIN or not _still(plan)):
            self._drop()
            plan = None
        if plan is None:
            plan = self._plan = look(self.name, self._path, self._files, self._node)
            self._looked = now
        return plan

    def _drop(self) -> None:
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.close()

    def _read_ports(self, plan: Plan, samples: list[Sample]) -> int:
        """Adds state, physical state and rate of each port. Returns how many files could not be read."""
        unreadable = 0
        for port in plan.ports:
            found = [*_states(port), (_RATE, "node_infiniband_rate_bytes_per_second", _rate(port))]
            for ours, theirs, value in found:
                if value is None:
                    unreadable += 1
                    continue
                samples.append(Sample(ours, port.labels, value))
                if self._node:
                    samples.append(Sample(theirs, port.labels, value))
        return unreadable


def _still(plan: Plan) -> bool:
    """Whether every folder is the one that was looked at."""
    try:
        return all(mark(path) == was for path, was in plan.marks.items())
    except OSError:
        return False


def _read_counters(plan: Plan, samples: list[Sample]) -> int:
    """Adds a sample for each number. Returns how many files hold none. The hot path: 60 times for each port."""
    unreadable = 0
    add = samples.append
    for file, series, factor, full, full_labels, divisor in plan.counters:
        try:
            digits = file.read().strip()
        except OSError:
            unreadable += 1
            continue
        if not digits.isdigit() or len(digits) > _DIGITS:
            unreadable += 1
            continue
        raw = int(digits)
        value = float(raw * factor) if divisor == 1 else float(raw // divisor)
        for name, labels in series:
            add(Sample(name, labels, value))
        if full:
            add(Sample(SATURATED, full_labels, float(raw == full)))
    return unreadable


def _states(port: Port) -> list[tuple[str, str, float | None]]:
    found: list[tuple[str, str, float | None]] = []
    for file, ours, theirs in (
        (port.state, _STATE, "node_infiniband_state_id"),
        (port.physical, _PHYSICAL, "node_infiniband_physical_state_id"),
    ):
        # "4: ACTIVE"
        try:
            number = file.read().partition(b":")[0].strip()
        except OSError:
            number = b""
        found.append((ours, theirs, float(int(number)) if number.isdigit() and len(number) < 4 else None))
    return found


def _rate(port: Port) -> float | None:
    """Bytes per second out of "100 Gb/sec (4X EDR)" or "2.5 Gb/sec (1X SDR)"; None if it says something else."""
    try:
        number, gigabit, _ = port.rate.read().partition(b" Gb/sec")
    except OSError:
        return None
    whole, _, fraction = number.strip().partition(b".")
    if not gigabit or not (whole + fraction).isdigit() or not whole or len(number) > 12:
        return None
    return float(int(float(number) * _BYTES_OF_GIGABIT))
