"""Starts and stops the proxies that a benchmark compares, and reads their CPU time.

Each peer is one function that gives the command line; one process and one thread where the peer can. HAProxy and
nginx come from the distribution, the Rust routers from wheels in an environment of their own under
``$EXASERVE_HOME/peers``, so that their pins never meet ours. ExaServe's own rows are in ``ours.py``.
"""

from __future__ import annotations

import getpass
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from serving.home import home
from tests.benchmarks.upstreams import ROOT

#: Wheels and their versions; changing one changes what the goals are measured against.
WHEELS = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}


class Missing(Exception):
    """The peer is not on this machine; the message says how to get it."""


@dataclass
class Start:
    """How to start a proxy."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)  # API keys that its clients must use; none: any will do
    admin_port: int = 0
    folder: Path | None = None  # where its files are
    said: dict[str, str] = field(default_factory=dict)  # for the report: what is switched on


#: (port to listen on, URLs of the replicas, folder for files) -> Start. Raises Missing.
Builder = Callable[[int, Sequence[str], Path], Start]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def most_connections() -> int:
    """Client connections that a proxy of one process can serve within this machine's limit of open files."""
    return min(12_000, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 400) // 2)


# --- peers ---


def haproxy(port: int, urls: Sequence[str], folder: Path) -> Start:
    servers = "\n".join(f" server s{i} {u.removeprefix('http://')}" for i, u in enumerate(urls))
    (folder / "haproxy.cfg").write_text(
        f"global\n nbthread 1\n maxconn {most_connections()}\n"
        "defaults\n mode http\n timeout connect 5s\n timeout client 300s\n timeout server 300s\n"
        " option http-no-delay\n"
        f"frontend f\n bind 127.0.0.1:{port} backlog 4096\n default_backend b\n"
        f"backend b\n balance roundrobin\n http-reuse always\n{servers}\n"
    )
    return Start([_packaged("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")])


def nginx(port: int, urls: Sequence[str], folder: Path) -> Start:
    servers = " ".join(f"server {u.removeprefix('http://')};" for u in urls)
    temp = " ".join(f"{x}_temp_path {folder};" for x in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    files = 2 * most_connections() + 50
    (folder / "nginx.conf").write_text(
        f"user {getpass.getuser()}; daemon off; worker_processes 1; worker_rlimit_nofile {files};\n"
        f"pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
        f"events {{ worker_connections {files}; }}\n"
        f"http {{ access_log off; {temp}\n"
        f" upstream u {{ {servers} keepalive 512; }}\n"
        f" server {{ listen 127.0.0.1:{port} backlog=4096; keepalive_requests 100000000; location / {{\n"
        ' proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;\n'
        " proxy_read_timeout 300s; } } }\n"
    )
    return Start([_packaged("nginx", "nginx-light"), "-c", str(folder / "nginx.conf"), "-p", str(folder)])


def vllm_router(port: int, urls: Sequence[str], _: Path) -> Start:
    program = _from_wheel("vllm-router")
    argv = [program, *_rust(port, urls), "--log-level", "warning"]
    return Start(argv, {"TOKIO_WORKER_THREADS": "1"})


def sglang_router(port: int, urls: Sequence[str], _: Path) -> Start:
    program = _from_wheel("sglang-router")
    argv = [program, "launch", *_rust(port, urls), "--log-level", "warn"]
    return Start(argv, {"TOKIO_WORKER_THREADS": "1"})


def _rust(port: int, urls: Sequence[str]) -> list[str]:
    return [
        "--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1",
        "--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1", "--worker-urls", *urls,
    ]  # fmt: skip


def _round_robin(builder: Builder) -> Builder:
    def build(port: int, urls: Sequence[str], folder: Path) -> Start:
        start = builder(port, urls, folder)
        start.argv += ["--policy", "round_robin"]
        return start

    return build


#: Name -> how to start it, as it is by default; ``-rr``: with round robin, the cheapest of its policies.
PEERS: dict[str, Builder] = {
    "haproxy": haproxy,
    "nginx": nginx,
    "vllm-router": vllm_router,
    "vllm-router-rr": _round_robin(vllm_router),
    "sglang-router": sglang_router,
    "sglang-router-rr": _round_robin(sglang_router),
}


def _packaged(name: str, package: str = "") -> str:
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise Missing(f"not installed; on Debian and Ubuntu: apt-get install {package or name}")
    return path


def _from_wheel(name: str) -> str:
    """The program, installed at its pinned version into an environment of its own if it is not there yet."""
    version = WHEELS[name]
    folder = home() / "peers" / f"{name}-{version}"
    program, stamp = folder / "bin" / name, folder / "installed"
    if stamp.is_file():
        return str(program)
    print(f"installing {name} {version} into {folder}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    pip += ["--disable-pip-version-check", f"{name}=={version}"]
    for argv in ([sys.executable, "-m", "venv", str(folder)], pip):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            last = [x for x in done.stdout.splitlines() if "WARNING" not in x][-1:] or ["no message"]
            raise Missing(f"pip could not install {name}=={version}: {last[0].strip()}")
    stamp.touch()
    return str(program)


def version(name: str) -> str:
    """What the report calls the peer."""
    base = name.removesuffix("-rr")
    if base in WHEELS:
        return WHEELS[base]
    with suppress(Missing, OSError, IndexError):
        done = subprocess.run([_packaged(base), "-v"], capture_output=True, text=True)
        return re.findall(r"\d+\.\d+\.\d+", done.stdout + done.stderr)[0]
    return ""


# --- a running proxy ---


class Proxy:
    """A running proxy. ``cpu()`` and the rest read what the kernel knows of its processes."""

    def __init__(
        self, name: str, start: Start, port: int, process: subprocess.Popen[bytes], log: Path
    ) -> None:
        self.name = name
        self.start = start
        self.port = port
        self.process = process
        self.log = log

    @property
    def pids(self) -> list[int]:
        """The process, then its children."""
        root = psutil.Process(self.process.pid)
        return [root.pid, *(p.pid for p in root.children(recursive=True))]

    def is_aside(self, pid: int) -> bool:
        """Whether it is the second stage of ExaServe's intents."""
        with suppress(psutil.Error):
            return "serving.intent.worker" in " ".join(psutil.Process(pid).cmdline())
        return False

    def put_aside(self) -> None:
        """The second stage leaves the proxy's core: it would have one of its own beside a busy router."""
        for pid in self.pids:
            if self.is_aside(pid):
                with suppress(OSError):
                    os.sched_setaffinity(pid, os.sched_getaffinity(0))

    def cpu(self) -> dict[int, tuple[float, float]]:
        """Process -> seconds of CPU of all its threads, ended ones too: (user and system, system alone).

        The first has nanoseconds, the second the kernel's ticks of 10 ms.
        """
        found = {}
        for pid in self.pids:
            with suppress(OSError, psutil.Error):  # it has just ended
                total = time.clock_gettime((~pid << 3) | 2)  # the clock that clock_getcpuclockid(pid) gives
                found[pid] = (total, psutil.Process(pid).cpu_times().system)
        return found

    def threads(self) -> int:
        return sum(psutil.Process(p).num_threads() for p in self.pids)

    def memory(self) -> int:
        """Proportional set size, bytes: shared pages are divided among those who share them."""
        total = 0
        for pid in self.pids:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(re.findall(r"^Pss: +(\d+) kB", text, re.M)[0]) * 1024
        return total

    def files(self) -> int:
        """Open file descriptors."""
        return sum(len(os.listdir(f"/proc/{p}/fd")) for p in self.pids)

    def tail(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-600:].strip()


@contextmanager
def running(
    name: str,
    builder: Builder,
    urls: Sequence[str],
    cores: Iterable[int] = (),
    ready: Callable[[Proxy], None] | None = None,
    max_files: int | None = None,
) -> Iterator[Proxy]:
    """The proxy in front of ``urls``, pinned to ``cores``, answering; ended with SIGTERM.

    ready: waits until it serves; by default until ``GET /v1/models`` gives 200. max_files: its limit of open files.
    Raises Missing, or RuntimeError with what it printed if it does not come up within a minute.
    """
    wanted = set(cores)
    with tempfile.TemporaryDirectory(prefix="exaserve-bench-") as folder:
        port = free_port()
        start = builder(port, urls, Path(folder))

        def before() -> None:
            if wanted:
                os.sched_setaffinity(0, wanted)
            most = max_files or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

        log = Path(folder) / "output.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                start.argv, cwd=ROOT, stdout=out, stderr=out, env=os.environ | start.env, preexec_fn=before
            )
        proxy = Proxy(name, start, port, process, log)
        try:
            (ready or answers)(proxy)
            yield proxy
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, 15 seconds, SIGKILL for it and its children."""
    children = []
    with suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        with suppress(psutil.Error):
            child.kill()


def answers(proxy: Proxy) -> None:
    """Waits until the proxy answers ``GET /v1/models`` with 200."""
    request = urllib.request.Request(f"http://127.0.0.1:{proxy.port}/v1/models")
    if proxy.start.keys:
        request.add_header("authorization", f"Bearer {proxy.start.keys[0]}")
    end, why = time.monotonic() + 60, "no answer"
    while time.monotonic() < end:
        if proxy.process.poll() is not None:
            raise RuntimeError(f"{proxy.name} ended with {proxy.process.returncode}: {proxy.tail()}")
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError as error:
            why = str(error)
        time.sleep(0.1)
    raise RuntimeError(f"{proxy.name} did not come up ({why}): {proxy.tail()}")
