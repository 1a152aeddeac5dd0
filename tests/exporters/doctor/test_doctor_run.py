"""Checks side by side: one that hangs or breaks costs only itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from exporters.doctor import run
from exporters.doctor.check import Check, Finding, Node
from exporters.doctor.side_by_side import each


def fine(_: Node) -> Iterator[Finding]:
    yield Finding("a", "1", "ok")


def test_findings_come_in_the_order_of_the_checks_with_their_names() -> None:
    def slow(node: Node) -> Iterator[Finding]:
        time.sleep(0.05)
        yield from fine(node)

    found = run.run([Check("slow", "", slow, 60), Check("quick", "", fine, 60)], Node())

    assert [(f.check, f.what, f.value) for f in found] == [("slow", "a", "1"), ("quick", "a", "1")]


def test_a_check_that_hangs_keeps_what_it_found_and_costs_only_itself() -> None:
    over = threading.Event()

    def hangs(_: Node) -> Iterator[Finding]:
        yield Finding("first", "1", "ok")
        over.wait(120)
        yield Finding("second", "2", "ok")

    begin = time.monotonic()
    found = run.run([Check("hangs", "", hangs, 3), Check("fine", "", fine, 60)], Node())
    took = time.monotonic() - begin
    over.set()

    assert [(f.check, f.what, f.verdict, f.value) for f in found] == [
        ("hangs", "first", "ok", "1"),
        ("hangs", "check", "unknown", "no answer within 3 s"),
        ("fine", "a", "ok", "1"),
    ]
    assert took < 30


def test_a_check_that_breaks_says_so_and_keeps_what_it_found() -> None:
    def breaks(_: Node) -> Iterator[Finding]:
        yield Finding("first", "1", "ok")
        raise KeyError("no such thing")

    found = run.run([Check("breaks", "", breaks, 60), Check("fine", "", fine, 60)], Node())

    assert [(f.check, f.verdict, f.value) for f in found] == [
        ("breaks", "ok", "1"),
        ("breaks", "unknown", "the check broke: KeyError: 'no such thing'"),
        ("fine", "ok", "1"),
    ]


def test_a_check_without_end_is_cut_at_its_rows() -> None:
    def endless(_: Node) -> Iterator[Finding]:
        while True:
            yield Finding("a", "1", "ok")

    assert len(run.run([Check("endless", "", endless, 60)], Node())) == run.MAX_FINDINGS


def test_every_file_of_the_folder_is_a_check_of_its_name_with_one_line_of_help() -> None:
    checks = run.load()

    assert list(checks) == [
        "clock", "cpu", "engine", "gpu", "infiniband", "kernel", "limits", "memory", "model", "mtu", "nccl", "numa",
        "pci", "peers", "ports", "ptrace", "python", "shm", "storage",
    ]  # fmt: skip
    assert all(c.name == name and c.help and "\n" not in c.help for name, c in checks.items())


def test_work_side_by_side_comes_in_order_and_no_more_at_once_than_allowed() -> None:
    lock, at_once, most = threading.Lock(), 0, 0

    def work(i: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.002 * (5 - i % 5))
        with lock:
            at_once -= 1
        return i * i

    assert each(work, range(20), 3) == [i * i for i in range(20)]
    assert most <= 3
    assert each(work, [], 3) == []
