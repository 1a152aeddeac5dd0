"""Looks once at what a device has, and writes down which files to read and what each of them is.

Looking costs more than reading: it lists folders, follows links and reads texts that hardly ever change. The plan
is good until one of its folders changes; who notices is ``_infiniband_device.py``.

Layout: Documentation/ABI/stable/sysfs-class-infiniband of the kernel. ``hw_counters`` stands at the device, at the
port, or at both, and then both may have the same names: those of the device have metrics of their own, so that a
sum over ports counts nothing twice.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from exporters.collectors._infiniband_counters import (
    EXTENDED_COUNTERS,
    EXTENDED_ONLY_64_BIT,
    EXTENDED_SIGN,
    GAUGES,
    LIFESPAN,
    NODE_HW_COUNTERS,
    PORT_COUNTERS,
    PortCounter,
)
from exporters.collectors._infiniband_files import File, Files
from exporters.registry import Sample

#: Ports of one device (the specification allows 254), and files of one folder. More than a kernel ever gave.
MAX_PORTS = 256
MAX_FILES = 512

_D = "exaserve_infiniband_device_"
_P = "exaserve_infiniband_port_"
SATURATED = "exaserve_infiniband_port_saturated"

#: Names that become label values. irdma has blanks in them ("RNR sent").
_COUNTER = re.compile(r"[!-~](?:[ -~]{0,62}[!-~])?")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_Labels = tuple[str, ...]
#: (st_dev, st_ino, st_mtime_ns) of a folder.
Mark = tuple[int, int, int]


class Counter(NamedTuple):
    """A file with one whole number in it.

    series: (metric, labels) that get the number times ``factor``. full: all ones of its width, at which it stands
    still; 0 where it has no such end. full_labels: of the series that says whether it does. divisor: for
    node_exporter's lifespan, which it gives in whole seconds.
    """

    file: File
    series: tuple[tuple[str, _Labels], ...]
    factor: int = 1
    full: int = 0
    full_labels: _Labels = ()
    divisor: int = 1


class Port(NamedTuple):
    """Files of a port that are no plain numbers; labels: (device, port)."""

    labels: _Labels
    state: File
    physical: File
    rate: File


class Plan(NamedTuple):
    """marks: folders by path, as they were. fixed: samples that stay the same. left_out: files beyond MAX_FILES."""

    marks: dict[str, Mark]
    fixed: tuple[Sample, ...]
    ports: tuple[Port, ...]
    counters: tuple[Counter, ...]
    left_out: int

    def close(self) -> None:
        for port in self.ports:
            for file in (port.state, port.physical, port.rate):
                file.close()
        for counter in self.counters:
            counter.file.close()


def mark(path: str) -> Mark:
    """What changes when the folder is another one, or gets or loses an entry. Raises OSError."""
    s = os.stat(path)
    return s.st_dev, s.st_ino, s.st_mtime_ns


def look(device: str, path: str, files: Files, node_names: bool) -> Plan:
    """The plan of the device in the folder ``path``. Raises OSError if the folder is not there.

    What the device lacks is not in the plan. Nothing is kept open yet.
    """
    return _Look(device, path, files, node_names).plan()


class _Look:
    def __init__(self, device: str, path: str, files: Files, node_names: bool) -> None:
        self._device, self._path, self._files, self._node = device, path, files, node_names
        self._marks: dict[str, Mark] = {path: mark(path)}
        self._fixed: list[Sample] = []
        self._ports: list[Port] = []
        self._counters: list[Counter] = []
        self._taken: set[tuple[str, _Labels]] = set()
        self._left_out = 0

    def plan(self) -> Plan:
        self._about()
        self._hw_counters(f"{self._path}/hw_counters", (self._device,), _D)
        ports = self._list(f"{self._path}/ports")
        numbers = sorted(int(p) for p in ports if p.isascii() and p.isdigit() and len(p) < 6)
        folders = {int(p): p for p in ports if p.isascii() and p.isdigit() and len(p) < 6}
        self._left_out += len(numbers[MAX_PORTS:])
        for number in sorted(set(numbers))[:MAX_PORTS]:
            self._port(number, f"{self._path}/ports/{folders[number]}")
        return Plan(
            self._marks, tuple(self._fixed), tuple(self._ports), tuple(self._counters), self._left_out
        )

    def _about(self) -> None:
        at = self._path
        kind = self._text("node_type").partition(":")[2].strip()
        firmware, board, hca = self._text("fw_ver"), self._text("board_id"), self._text("hca_type")
        driver = _link(f"{at}/device/driver")
        labels = (
            self._device,
            driver,
            kind,
            self._text("node_guid"),
            firmware,
            board,
            hca,
            self._text("hw_rev"),
            self._pci_address(),
        )
        self._fixed.append(Sample(_D + "info", labels, 1.0))
        # A function on the auxiliary bus (irdma) has no node of its own; the PCI device above it has.
        for place in ("device/numa_node", "device/../numa_node"):
            node = self._text(place)
            if node:
                # -1: the firmware did not say. Then nobody knows, which is no node.
                if node.isascii() and node.isdigit():
                    self._fixed.append(Sample(_D + "numa_node", (self._device,), float(int(node))))
                break
        if self._node:
            self._fixed.append(Sample("node_infiniband_info", (self._device, board, firmware, hca), 1.0))

    def _port(self, number: int, at: str) -> None:
        labels = (self._device, str(number))
        layer = self._text(f"{at}/link_layer")
        self._fixed.append(Sample(_P + "info", (*labels, layer, self._net_device(number, at)), 1.0))
        file = self._files.file
        self._ports.append(Port(labels, file(f"{at}/state"), file(f"{at}/phys_state"), file(f"{at}/rate")))
        # First the 64-bit counters: what they have given, the 32-bit ones of the same name don't give again.
        self._port_counters(f"{at}/counters_ext", labels, EXTENDED_COUNTERS)
        self._port_counters(f"{at}/counters", labels, PORT_COUNTERS)
        self._hw_counters(f"{at}/hw_counters", labels, _P)

    def _port_counters(self, at: str, labels: _Labels, table: dict[str, PortCounter]) -> None:
        names = self._list(at)
        for name in names:
            known = table.get(name)
            if known is None:
                self._add(f"{at}/{name}", ("exaserve_infiniband_port_other_total", (*labels, name)))
                continue
            bits = known.bits
            if name in EXTENDED_ONLY_64_BIT and EXTENDED_SIGN not in names:
                bits = 32
            node = (known.node, labels) if self._node else None
            self._add(f"{at}/{name}", (known.name, labels), node, known.factor, bits, (*labels, name))

    def _hw_counters(self, at: str, labels: _Labels, prefix: str) -> None:
        for name in self._list(at):
            if name == LIFESPAN:
                if self._node and len(labels) == 2:
                    series = (("node_infiniband_lifespan_seconds", labels),)
                    self._counters.append(Counter(self._files.file(f"{at}/{name}"), series, divisor=1000))
                continue
            kind = "hw_objects" if name.startswith(GAUGES) else "hw_total"
            theirs = NODE_HW_COUNTERS.get(name) if self._node and len(labels) == 2 else None
            self._add(f"{at}/{name}", (prefix + kind, (*labels, name)), (theirs, labels) if theirs else None)

    def _add(
        self,
        path: str,
        ours: tuple[str, _Labels],
        node: tuple[str, _Labels] | None = None,
        factor: int = 1,
        bits: int = 0,
        full_labels: _Labels = (),
    ) -> None:
        new = ours not in self._taken
        self._taken.add(ours)
        series = tuple(s for s in (ours if new else None, node) if s)
        if series:
            full = 2**bits - 1 if bits and new else 0
            self._counters.append(Counter(self._files.file(path), series, factor, full, full_labels))

    def _list(self, at: str) -> list[str]:
        """Entries of a folder in order, those that can be a label value; none if it is not there."""
        try:
            self._marks[at] = mark(at)
            found = os.listdir(at)
        except OSError:
            self._marks.pop(at, None)
            return []
        names = sorted(name for name in found if _COUNTER.fullmatch(name))
        self._left_out += len(found) - len(names[:MAX_FILES])
        return names[:MAX_FILES]

    def _text(self, place: str) -> str:
        """The text of a file of the device; "" if there is none, or it can't be read."""
        try:
            return self._files.text(place if place.startswith("/") else f"{self._path}/{place}")
        except (OSError, ValueError):
            return ""

    def _pci_address(self) -> str:
        path = os.path.realpath(f"{self._path}/device")
        for part in (os.path.basename(path), os.path.basename(os.path.dirname(path))):
            if _PCI.fullmatch(part):
                return part
        return ""

    def _net_device(self, number: int, at: str) -> str:
        """Its network interface: of RoCE by the first GID, else of the PCI device, else what rxe says."""
        name = self._text(f"{at}/gid_attrs/ndevs/0")
        if name:
            return name
        net = f"{self._path}/device/net"
        try:
            names = sorted(os.listdir(net))[:MAX_FILES]
        except OSError:
            return self._text("parent")
        if len(names) > 1:
            # dev_port counts from 0 (Documentation/ABI/testing/sysfs-class-net); ports count from 1.
            names = [n for n in names if self._text(f"{net}/{n}/dev_port") == str(number - 1)]
        return names[0] if names else ""


def _link(path: str) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
