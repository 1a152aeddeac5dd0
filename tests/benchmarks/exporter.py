"""What the exporter costs: CPU and time of a scrape, memory at rest, and growth with the number of replicas.

    .venv/bin/python -m tests.benchmarks.exporter              (about a minute)
    .venv/bin/python -m tests.benchmarks.exporter --only fabric,rest

fabric: our infiniband collector alone against node_exporter's alone, on one sysfs tree of 8 mlx5 ports with every
counter. Rounds take both in turn, so that what the machine does meanwhile meets both; figures are medians.
rest: memory and CPU of the whole exporter, every default collector on, between scrapes and at one.
replicas: one exporter that reads 192, 768 and 3,072 replicas whose page is a captured one of vLLM 0.32; they live
in a process of their own and answer a question for some names only (``name[]=``) as vLLM does.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from tests.benchmarks import vllm_pages
from tests.benchmarks.report import Goal, table
from tests.exporters import infiniband_trees as trees

PARTS = ("fabric", "rest", "replicas")
COUNTS = (192, 768, 3072)

CPU_FACTOR = 2.0  # of node_exporter's on the same tree
RSS_MIB = 60.0
#: CPU per replica at the most replicas against that at the fewest.
LINEAR = 1.3


class Running(NamedTuple):
    """An exporter: its process and where it serves."""

    process: psutil.Process
    port: int

    def cpu(self) -> float:
        """Seconds of CPU until now, user and system, all threads."""
        return float(sum(self.process.cpu_times()[:2]))

    def rss(self) -> float:
        """MiB."""
        return float(self.process.memory_info().rss) / 2**20


class Cost(NamedTuple):
    """cpu: seconds of CPU of each scrape on average. took: seconds of each. size: bytes of a page."""

    cpu: float
    took: list[float]
    size: int


@contextlib.contextmanager
def ours(*options: str) -> Iterator[Running]:
    argv = [sys.executable, "-m", "serving.cli", "exporter", "--port", "0", *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = urlsplit(process.stdout.readline().split()[1]).port
            assert port is not None
            yield Running(psutil.Process(process.pid), port)
        finally:
            process.terminate()


def node_exporter_binary() -> str | None:
    """Debian calls it prometheus-node-exporter, its makers node_exporter."""
    return shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")


@contextlib.contextmanager
def node_exporter(binary: str, sysfs: Path) -> Iterator[Running]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [binary, "--collector.disable-defaults", "--collector.infiniband", f"--path.sysfs={sysfs}"]
    argv += [f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 20
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if time.monotonic() > until or process.poll() is not None:
                    raise RuntimeError("node_exporter did not start")
                time.sleep(0.05)
            yield Running(psutil.Process(process.pid), port)
        finally:
            process.terminate()


def scrape(of: Running, times: int, packed: bool = True, wait: float = 10) -> Cost:
    """``times`` scrapes over one kept connection, asking as Prometheus does."""
    headers = {
        "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "Accept-Encoding": "gzip" if packed else "identity",
        "X-Prometheus-Scrape-Timeout-Seconds": str(wait),
    }
    client = http.client.HTTPConnection("127.0.0.1", of.port, timeout=wait + 5)
    took, size, before = [], 0, of.cpu()
    for _ in range(times):
        began = time.monotonic()
        client.request("GET", "/metrics", headers=headers)
        answer = client.getresponse()
        size = len(answer.read())
        took.append(time.monotonic() - began)
        if answer.status != 200:
            raise RuntimeError(f"a scrape was answered {answer.status}")
    client.close()
    return Cost((of.cpu() - before) / times, took, size)


def fabric(rounds: int, times: int) -> dict[str, Any]:
    """Both exporters on one tree, in turn."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        sysfs = Path(folder)
        for i in range(8):
            at = trees.device(sysfs, f"mlx5_{i}", numa=i // 4, board_id="MT_0000000223", hca_type="MT4129")
            port = trees.numbered(trees.PMA, 1_000_000 * (i + 1))
            hw = trees.numbered([*trees.MLX5, *trees.MLX5_ROCE], 2_000_000 * (i + 1)) | {"lifespan": 10}
            trees.port(at, counters=port, hw_counters=hw, net=f"ib{i}")
        files = sum(1 for p in sysfs.glob("devices/*/infiniband/*/**/*") if p.is_file())
        running = {
            "exaserve": stack.enter_context(
                ours("--collector.disable-defaults", "--collector.infiniband", f"--path.sysfs={sysfs}")
            )
        }
        binary = node_exporter_binary()
        if binary is not None:
            running["node_exporter"] = stack.enter_context(node_exporter(binary, sysfs))
        rows: dict[str, Any] = {}
        for packed in (False, True):
            costs: dict[str, list[Cost]] = {name: [] for name in running}
            for r in running.values():
                scrape(r, 20, packed)
            for _ in range(rounds):
                for name, r in running.items():
                    costs[name].append(scrape(r, times, packed))
            for name, found in costs.items():
                took = sorted(t for c in found for t in c.took)
                rows[f"{name}{', gzip' if packed else ''}"] = {
                    "cpu_ms": [1000 * c.cpu for c in found],
                    "p50_ms": 1000 * took[len(took) // 2],
                    "p99_ms": 1000 * took[int(len(took) * 0.99)],
                    "bytes": found[-1].size,
                    "rss_mib": running[name].rss(),
                }
        return {"files": files, "rows": rows}


def rest(seconds: float) -> dict[str, Any]:
    """The whole exporter between scrapes and at them, on this machine as it is."""
    with ours() as running:
        scrape(running, 3)
        time.sleep(1)
        before, began = running.cpu(), time.monotonic()
        time.sleep(seconds)
        idle = (running.cpu() - before) / (time.monotonic() - began)
        at_rest, files = running.rss(), running.process.num_fds()
        cost = scrape(running, 20)
        return {
            "rss_mib": at_rest,
            "idle_ms_per_s": 1000 * idle,
            "scrape_cpu_ms": 1000 * cost.cpu,
            "threads": running.process.num_threads(),
            "files": files,
        }


def replicas(counts: tuple[int, ...], times: int) -> list[dict[str, Any]]:
    """Scrapes of an exporter that reads so many replicas."""
    said, pipe = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=vllm_pages.run, args=(pipe,), daemon=True)
    server.start()
    try:
        port = said.recv()
        rows = []
        for count in counts:
            said.send(count)
            options = ["--collector.disable-defaults", "--collector.engine", "--timeout", "30"]
            with ours(*options, f"--discover=http://127.0.0.1:{port}/sd") as running:
                for _ in range(4):  # what is asked once of each replica, its version, is asked by then
                    scrape(running, 1, wait=60)
                before = _received(said)
                cost = scrape(running, times, wait=60)
                received = (_received(said) - before) / times
                peak = running.rss()
            rows.append(
                {
                    "replicas": count,
                    "cpu_s": cost.cpu,
                    "took_s": median(cost.took),
                    "bytes_in": received,
                    "bytes_out": cost.size,
                    "rss_mib": peak,
                }
            )
        return rows
    finally:
        server.kill()
        server.join()


def _received(said: Connection) -> int:
    said.send("bytes")
    return int(said.recv())


def goals(result: dict[str, Any]) -> list[Goal]:
    found = []
    if "fabric" in result:
        rows = result["fabric"]["rows"]
        for kind in ("", ", gzip"):
            name = f"CPU of a scrape ≤ {CPU_FACTOR:g} × node_exporter's (8 ports{kind})"
            theirs = rows.get(f"node_exporter{kind}")
            if theirs is None:
                found.append(Goal(name, "node_exporter is not installed", None))
                continue
            pairs = zip(rows[f"exaserve{kind}"]["cpu_ms"], theirs["cpu_ms"], strict=True)
            # A round of few scrapes can be shorter than the kernel's clock tick.
            ratios = [a / b for a, b in pairs if b > 0]
            if not ratios:
                found.append(Goal(name, "too few scrapes to measure", None))
                continue
            said = f"{median(ratios):.2f} × ({min(ratios):.2f}–{max(ratios):.2f})"
            found.append(Goal(name, said, median(ratios) <= CPU_FACTOR))
    if "rest" in result:
        rss = result["rest"]["rss_mib"]
        found.append(Goal(f"memory at rest ≤ {RSS_MIB:g} MiB", f"{rss:.1f} MiB", rss <= RSS_MIB))
    rows = result.get("replicas", [])
    if len(rows) > 1:
        each = [row["cpu_s"] / row["replicas"] for row in rows]
        name = f"CPU per replica at {rows[-1]['replicas']} ≤ {LINEAR:g} × at {rows[0]['replicas']}"
        found.append(Goal(name, f"{each[-1] / each[0]:.2f} ×", each[-1] <= LINEAR * each[0]))
    return found


def markdown(result: dict[str, Any]) -> str:
    parts = ["# Exporter benchmark"]
    if "fabric" in result:
        rows = [
            [
                name,
                f"{median(r['cpu_ms']):.2f} ({min(r['cpu_ms']):.2f}–{max(r['cpu_ms']):.2f})",
                f"{r['p50_ms']:.2f}",
                f"{r['p99_ms']:.2f}",
                f"{r['bytes']:,}",
                f"{r['rss_mib']:.1f}",
            ]
            for name, r in result["fabric"]["rows"].items()
        ]
        head = ["infiniband alone", "CPU, ms a scrape", "P50, ms", "P99, ms", "bytes", "RSS, MiB"]
        parts.append(f"8 mlx5 ports, {result['fabric']['files']} files\n\n{table(head, rows)}")
    if "rest" in result:
        r = result["rest"]
        head = [
            "all default collectors",
            "RSS, MiB",
            "CPU at rest, ms/s",
            "CPU of a scrape, ms",
            "threads",
            "files",
        ]
        row = ["exaserve", f"{r['rss_mib']:.1f}", f"{r['idle_ms_per_s']:.2f}", f"{r['scrape_cpu_ms']:.1f}"]
        parts.append(table(head, [[*row, str(r["threads"]), str(r["files"])]]))
    if "replicas" in result:
        rows = [
            [
                f"{r['replicas']:,}",
                f"{r['cpu_s']:.2f}",
                f"{1e6 * r['cpu_s'] / r['replicas']:.0f}",
                f"{r['took_s']:.2f}",
                f"{r['bytes_in'] / 1e6:.1f}",
                f"{r['bytes_out'] / 1e6:.2f}",
                f"{r['rss_mib']:.0f}",
            ]
            for r in result["replicas"]
        ]
        head = [
            "replicas",
            "CPU, s a scrape",
            "µs each",
            "took, s",
            "MB read",
            "MB served (gzip)",
            "RSS, MiB",
        ]
        parts.append(table(head, rows))
    parts.append(
        table(["goal", "measured", "verdict"], [[g.name, g.measured, g.verdict] for g in goals(result)])
    )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of fabric [5]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there, too")
    a = parser.parse_args()
    parts = [p.strip() for p in a.only.split(",")]
    for part in parts:
        if part not in PARTS:
            parser.error(f"--only: there is no {part}; known: {', '.join(PARTS)}")
    result: dict[str, Any] = {}
    if "fabric" in parts:
        result["fabric"] = fabric(max(1, a.rounds), 100)
    if "rest" in parts:
        result["rest"] = rest(5)
    if "replicas" in parts:
        result["replicas"] = replicas(COUNTS, 3)
    print(markdown(result))
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
