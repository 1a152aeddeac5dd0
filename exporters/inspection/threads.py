"""What one thread is at: from its Python stack (py-spy), what the kernel says it waits in, and its CPU time.

Python stacks end where C begins: a thread that waits for a lock shows only the line with the lock. So the kernel's
word (proc(5), ``wchan``) decides what is waited for, and the stack what it is waited for in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Share of a CPU from which on a thread counts as busy; less will do for one that runs just now, since on a full
#: machine nobody gets a whole CPU.
BUSY, BUSY_RUNNING = 0.5, 0.1
#: Frames, innermost first, that are looked at; further out every thread looks alike.
_DEPTH = 12

#: What is told by a frame ``file:function``; the first that matches any of the inner frames wins.
_STACKS = [
    ("garbage collection", r"gc_collect|_PyGC_|PyGC_Collect"),
    ("collective", r"distributed_c10d\.py:|pynccl|custom_all_reduce|nccl(AllReduce|AllGather|GroupEnd|Broadcast|Send|Recv)"),
    ("next step", r"shm_broadcast\.py:(dequeue|acquire_read|MessageQueue)"),
    ("GPU", r"torch/cuda/.*synchronize|cu(da)?(Stream|Event|Ctx|Device|Context)Synchronize"),
    ("tokenizing", r"transformers/(tokenization|models/.*/tokenization)|/tokenizers/|mistral_common|tiktoken"),
    ("compiling", r"torch/(_dynamo|_inductor|_functorch)/|triton/(compiler|runtime)/"),
    ("loading weights", r"safetensors|weight_utils|model_loader|/gguf/"),
    ("next task", r"concurrent/futures/thread\.py:_worker|(^|/)queue\.py:(Queue\.|SimpleQueue\.)?get|multiprocessing/(queues|connection)\.py:"),
    ("signal", r"/threading\.py:((Condition|Event|Barrier)\.)?wait$"),
    ("next message", r"/zmq/"),
    ("events", r"selectors\.py:|asyncio/.*:|uvloop"),
]  # fmt: skip
_STACK_RULES = [(what, re.compile(pattern)) for what, pattern in _STACKS]

#: What is told by the kernel function that a thread sleeps in (the names of Linux 4 to 6).
_KERNEL = [
    ("lock", r"futex"),
    ("events", r"ep_poll|epoll|poll_schedule|do_sys_poll|do_select|do_poll|core_sys_select"),
    ("socket", r"accept|skb_|sk_wait|tcp_|unix_|inet_|sock_|datagram"),
    ("pipe", r"pipe"),
    ("sleep", r"nanosleep|sigtimedwait|sigsuspend"),
    ("child", r"do_wait|kernel_wait"),
    ("storage", r"io_schedule|folio_|wait_on_page|nfs|rpc_|fuse|request_wait_answer|jbd2|ext4|xfs|ll_|cl_|lustre|blk_"),
    ("GPU", r"nv[_0-9]|nvidia|uvm_|os_acquire"),
]  # fmt: skip
_KERNEL_RULES = [(what, re.compile(pattern)) for what, pattern in _KERNEL]

#: Waits that mean: there is nothing to do now.
IDLE = {"next step", "next task", "signal", "next message", "events", "sleep", "child"}


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. file: as the process knows it; line: 0 where it isn't known."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(self.file.split('/')[-3:])}:{self.line})"


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread with a Python stack.

    cpu: share of one CPU over the last half second. kernel: the kernel function that it sleeps in, "" if it runs
    or that can't be read. state: proc(5)'s letter. what: one of the words above, ``running`` or ``unknown``.
    frames: innermost first.
    """

    tid: int
    name: str
    what: str
    holds_gil: bool
    cpu: float
    kernel: str
    state: str
    frames: tuple[Frame, ...]

    @property
    def busy(self) -> bool:
        return is_busy(self.cpu, self.state)

    @property
    def idle(self) -> bool:
        return not self.busy and self.what in IDLE

    @property
    def at(self) -> str:
        """Where it is: the innermost frame that isn't Python's own library, or the innermost."""
        own = [f for f in self.frames if not re.search(r"/lib/python[\d.]+/(?!site-packages)", f.file)]
        return str((own or list(self.frames) or [Frame("?", "?", 0)])[0])


def is_busy(cpu: float, state: str) -> bool:
    return cpu >= BUSY or (state == "R" and cpu >= BUSY_RUNNING)


def what(frames: tuple[Frame, ...], kernel: str, state: str, cpu: float) -> str:
    """What the thread is at, in one or two words; for one that waits: what it waits for."""
    busy = is_busy(cpu, state)
    inner = [f"{f.file}:{f.function}" for f in frames[:_DEPTH]]
    told = next((what for what, rule in _STACK_RULES if any(map(rule.search, inner))), None)
    if told is not None and not (busy and told in IDLE):
        return told
    if busy:
        return "running"
    waits = next((what for what, rule in _KERNEL_RULES if rule.search(kernel)), None)
    return waits or ("running" if state == "R" else "unknown")
