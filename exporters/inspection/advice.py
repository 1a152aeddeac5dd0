"""What to look at next, from plain facts: one rule a function, each with its reason in the facts.

A rule says what was seen, never more: that many threads wait at one line is a fact, that it is a deadlock is not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from exporters.inspection.gather import Process
from exporters.inspection.threads import Thread

#: Threads waiting at one line that are worth a word.
SAME_LOCK = 3
#: Share of the limit of open files that is near it.
NEAR_LIMIT = 0.8

_ENGINE = re.compile(r"EngineCor|Worker|VLLM::|sglang|sched", re.I)


@dataclass(frozen=True, slots=True)
class Finding:
    """pid: the process it is about. seen: what was seen. look: what to do or look at next."""

    pid: int
    seen: str
    look: str


def advice(processes: list[Process]) -> list[Finding]:
    """What stands out, most telling first; empty if nothing does."""
    return [Finding(p.pid, *found) for rule in _RULES for p in processes for found in rule(p)]


def _stopped(p: Process) -> Iterator[tuple[str, str]]:
    if p.state in ("T", "t"):
        how = "traced by a debugger" if p.state == "t" else "stopped by a signal"
        yield f"it is {how}", f"kill -CONT {p.pid}, or end the debugger that holds it"


def _kernel(p: Process) -> Iterator[tuple[str, str]]:
    stuck = [t for t in p.threads if t.state == "D"]
    if p.state == "D" or stuck:
        where = p.wait if p.state == "D" else stuck[0].kernel
        count = max(1, len(stuck))
        yield (
            f"{count} thread(s) wait in the kernel and can't be interrupted ({where or 'place not told'})",
            "storage or a driver does not answer: look at the mounts, at dmesg, and at the GPU's Xids",
        )


def _same_lock(p: Process) -> Iterator[tuple[str, str]]:
    places = Counter(t.at for t in p.threads if t.what == "lock")
    holders = [t for t in p.threads if t.holds_gil or t.busy]
    for place, count in places.most_common(3):
        if count >= SAME_LOCK:
            held = f"; running meanwhile: {_names(holders)}" if holders else "; nothing runs meanwhile"
            yield (
                f"{count} threads wait for a lock at {place}{held}",
                "find who holds that lock: "
                + ("the running thread's stack is the first guess" if holders else "a deadlock is possible"),
            )


def _collective(p: Process) -> Iterator[tuple[str, str]]:
    those = [t for t in p.threads if t.what == "collective"]
    if those:
        yield (
            f"{_names(those)} in a collective operation at {those[0].at}",
            "one rank waits for the others: inspect the other workers of this replica and look for the one that is"
            " elsewhere; then at the fabric's board and at NVLink errors",
        )


def _gpu(p: Process) -> Iterator[tuple[str, str]]:
    those = [t for t in p.threads if t.what == "GPU"]
    if those:
        yield (
            f"{_names(those)} waits for the GPU at {those[0].at}",
            "look at exaserve_gpu_utilisation_ratio: near 1 it works, near 0 it hangs; then at its Xids",
        )


def _work(p: Process) -> Iterator[tuple[str, str]]:
    looks = {
        "tokenizing": "the tokenizer is the bottleneck of this process: more API server processes"
        " (--api-server-count), or shorter prompts",
        "compiling": "kernels are compiled, which ends by itself after a start; if not, a shape changes every time",
        "loading weights": "weights are read: look at the storage's latency if it takes long",
        "garbage collection": "Python's garbage collector runs: many long-lived objects; look whether memory grows",
    }
    for what, look in looks.items():
        those = [t for t in p.threads if t.what == what]
        if those:
            yield f"{_names(those)}: {what} at {those[0].at}", look


def _busy(p: Process) -> Iterator[tuple[str, str]]:
    for t in p.threads:
        if t.what == "running" and t.busy:
            gil = " and holds the GIL" if t.holds_gil else ""
            yield (
                f"thread {t.name or t.tid} uses {t.cpu:.0%} of a CPU{gil}, at {t.at}",
                f"inspect again: if it is at the same place it computes in a loop; py-spy top --pid {p.pid} shows more",
            )


def _files(p: Process) -> Iterator[tuple[str, str]]:
    if p.fds is not None and p.fd_limit and p.fds >= NEAR_LIMIT * p.fd_limit:
        yield (
            f"{p.fds} of {p.fd_limit} file descriptors are open",
            f"new connections fail soon: ls -l /proc/{p.pid}/fd shows what they are; raise the limit (ulimit -n)",
        )


def _storage(p: Process) -> Iterator[tuple[str, str]]:
    those = [t for t in p.threads if t.what == "storage" and t.state != "D"]
    if those:
        yield f"{_names(those)} waits for storage ({those[0].kernel})", "look at the mounts and their latency"


def _engine_idle(p: Process) -> Iterator[tuple[str, str]]:
    if _ENGINE.search(p.command) and p.threads and all(t.idle for t in p.threads):
        yield (
            "the engine waits for work",
            "if requests are open, they are not here: look at the API server process and at the router",
        )


_RULES: list[Callable[[Process], Iterator[tuple[str, str]]]] = [
    _stopped,
    _kernel,
    _same_lock,
    _collective,
    _gpu,
    _work,
    _busy,
    _files,
    _storage,
    _engine_idle,
]


def _names(threads: list[Thread]) -> str:
    names = [t.name or str(t.tid) for t in threads[:3]]
    return ", ".join(names) + (f" and {len(threads) - 3} more" if len(threads) > 3 else "")
