"""What ExaServe's router costs, beside HAProxy, nginx and two routers in Rust: one command, one table.

    python tests/benchmarks/router.py                      everything, 10 minutes
    python tests/benchmarks/router.py --quick              the same in 2 minutes, for a first look
    python tests/benchmarks/router.py --only json,chunk --peers exaserve,haproxy --rounds 5
    python tests/benchmarks/router.py --only soak          3,000 streams for a minute; too few open files

Parts (--only): json and chunk (CPU time per request and per streamed chunk), latency (added at a third of the
router's capacity), streams (memory of 10,000 open ones), aborts (what 100,000 aborted ones leave behind), choice
(12 and 3,072 replicas), sweep (the load of 3,072 replicas), soak (only when asked for).

All proxies run at once in front of the same fake replicas, pinned to one core; client and replicas have the others.
Rounds take each proxy in turn. Peers run as they are by default, one process and one thread where they can;
vllm-router and sglang-router are installed into $EXASERVE_HOME/peers by themselves, HAProxy and nginx with
`apt-get install haproxy nginx-light`. What is missing is left out and said. CPU time compares on a busy machine
too; latency needs a quiet one. None of it is a promise about another machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[2])  # run as a file: packages start at the repository, not here

from tests.benchmarks import clients, cpu, limits, ours, peers, report, soak, upstreams  # noqa: E402

PARTS = ("json", "chunk", "latency", "streams", "aborts", "choice", "sweep", "soak")
DEFAULT_PARTS = PARTS[:-1]
DEFAULT_PEERS = (
    "exaserve",
    "exaserve-bare",
    "haproxy",
    "nginx",
    "vllm-router",
    "vllm-router-rr",
    "sglang-router",
)
BUILDERS = ours.OURS | peers.PEERS
FAILURES = (clients.Refused, OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired)


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", file=sys.stderr, flush=True)


BEGAN = time.monotonic()


class Sizes:
    """How much of each; ``quick`` for a first look."""

    def __init__(self, quick: bool, rounds: int | None) -> None:
        self.rounds = rounds or (2 if quick else 5)
        self.seconds = 0.6 if quick else 1.5
        self.streams = 2_000 if quick else 10_000
        self.aborts = 5_000 if quick else 100_000
        self.steps = 0.5 if quick else 1.0
        self.latency_rounds = 2 if quick else 4
        self.soak = (1_000, 10.0) if quick else (3_000, 60.0)


class Machine:
    """Cores: one for the proxies, the others for clients and fake replicas."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.proxy = cores[:1] if len(cores) > 1 else []
        self.rest = cores[1:]
        if self.rest:
            os.sched_setaffinity(0, self.rest)
        self.files = upstreams.raise_file_limit()
        where = "the proxy alone on one" if self.proxy else "all on one: clients disturb the proxy's caches"
        self.words = (
            f"{_model()}, {len(cores)} cores ({where}), Linux {platform.release().split('-')[0]}, "
            f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the start, "
            f"{self.files} open files allowed."
        )

    def run(self, name: str, urls: Sequence[str]) -> contextlib.AbstractContextManager[peers.Proxy]:
        """The proxy of that name, pinned."""
        return peers.running(
            name, BUILDERS[name], urls, self.proxy, ours.ready if name in ours.OURS else None
        )


def _model() -> str:
    with contextlib.suppress(OSError, IndexError):
        lines = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
        return lines[0].partition(":")[2].strip()
    return platform.machine()


# --- parts ---


def measure_cpu(
    machine: Machine, sizes: Sizes, names: Sequence[str], parts: Sequence[str], result: dict[str, Any]
) -> None:
    """json and chunk."""
    result |= {"cpu": {}, "missing": {}, "features": {}}
    with contextlib.ExitStack() as stack:
        fakes = stack.enter_context(upstreams.running(8, 0.02, machine.rest))
        running: dict[str, peers.Proxy] = {}
        for name in names:
            say(f"starting {name}")
            try:
                running[name] = stack.enter_context(machine.run(name, fakes.urls))
            except (peers.Missing, RuntimeError, OSError) as error:
                result["missing"][name] = str(error)
                say(f"{name} is left out: {error}")
        kinds = cpu.kinds(sizes.seconds, 256, [p for p in ("json", "chunk") if p in parts])
        costs = {name: {k.name: cpu.Cost() for k in kinds} for name in running}
        for i in range(sizes.rounds):
            order = list(running)[i % len(running) :] + list(running)[: i % len(running)]
            for kind in kinds:
                for name in order:
                    one_round(kind, costs[name][kind.name], running[name])
                medians = ", ".join(f"{n} {report.cost(costs[n][kind.name].view())}" for n in running)
                say(f"round {i + 1}/{sizes.rounds}, {kind.name}: {medians}")
        if "exaserve" in running:
            result["features"] = ours.evidence(running["exaserve"], fakes.counts()["traces"])
        for name, proxy in running.items():
            result["cpu"][name] = {
                "version": peers.version(name),
                "threads": proxy.threads(),
                "idle_ms": round(cpu.idle(proxy, 1.0, time.sleep), 2),
                "costs": {k: c.view() for k, c in costs[name].items()},
            }


def one_round(kind: cpu.Kind, cost: cpu.Cost, proxy: peers.Proxy) -> None:
    if cost.failed:
        return
    try:
        kind.once(cost, proxy)
    except FAILURES as error:
        cost.failed = str(error) or type(error).__name__
        say(f"{proxy.name}, {kind.name}: failed: {cost.failed}")


def measure_latency(machine: Machine, sizes: Sizes, names: Sequence[str], result: dict[str, Any]) -> None:
    with contextlib.ExitStack() as stack:
        fakes = stack.enter_context(upstreams.running(8, 0.01, machine.rest))
        proxies = {}
        for name in names:
            if name in ("exaserve", "haproxy", "vllm-router-rr"):
                with contextlib.suppress(peers.Missing):
                    proxies[name] = stack.enter_context(machine.run(name, fakes.urls))
        made = {name: clients.requests(512, 600, p.start.keys) for name, p in proxies.items()}
        found = limits.capacity(proxies["exaserve"], made["exaserve"], sizes.steps, say)
        ports = {"direct": fakes.ports[0]} | {n: p.port for n, p in proxies.items()}
        made["direct"] = clients.requests(512, 600)
        say(f"latency at {found.rate / 3:.0f}/s")
        rows = limits.latency(ports, made, found.rate / 3, sizes.steps * 2, sizes.latency_rounds)
        result["latency"] = {
            "rate": round(found.rate / 3, 1),
            "capacity": round(found.rate),
            "ended_by": found.ended_by,
            "rows": {n: {k: round(v, 4) for k, v in r.items()} for n, r in rows.items()},
        }


def measure_streams(machine: Machine, sizes: Sizes, names: Sequence[str], result: dict[str, Any]) -> None:
    result["streams"] = {}
    count = min(sizes.streams, peers.most_connections() - 80)
    for name in [
        n for n in names if n not in ("vllm-router", "sglang-router-rr")
    ]:  # a policy takes no memory
        say(f"{count} open streams through {name}")
        with upstreams.running(8, 3600, machine.rest) as fakes:
            try:
                with machine.run(name, fakes.urls) as proxy:
                    made = clients.requests(512, 600, proxy.start.keys, True, 8)
                    result["streams"][name] = limits.open_streams(proxy, made, count)
            except (peers.Missing, *FAILURES) as error:
                result["streams"][name] = {"failed": str(error)}
        say(f"{name}: {result['streams'][name]}")


def measure_aborts(machine: Machine, sizes: Sizes, result: dict[str, Any]) -> None:
    with upstreams.running(8, 3600, machine.rest) as fakes, machine.run("exaserve", fakes.urls) as proxy:
        made = clients.requests(512, 600, proxy.start.keys, True, 8)
        result["aborts"] = limits.aborted_streams(proxy, made, sizes.aborts, say)
        result["aborts"]["upstream_aborted"] = fakes.counts()["aborted"]


def measure_other(part: str, result: dict[str, Any]) -> None:
    """choice and sweep: benchmarks that stand by themselves too; their tables go into the report as they are."""
    name = {"choice": "choice_cost.py", "sweep": "load_sweep.py"}[part]
    say(f"{part}: tests/benchmarks/{name}")
    file = Path(__file__).with_name(name)
    if not file.is_file():
        result[part] = {"failed": f"tests/benchmarks/{name} is not there"}
        return
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        result[part] = {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    else:
        result[part] = {"text": done.stdout.rstrip()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = parser.add_argument
    words("--only", default=",".join(DEFAULT_PARTS), metavar="PARTS", help=f"some of {','.join(PARTS)}")
    words("--peers", default=",".join(DEFAULT_PEERS), metavar="NAMES", help=f"some of {','.join(BUILDERS)}")
    words("--rounds", type=int, metavar="N", help="rounds of the CPU parts [5; with --quick 2]")
    words("--quick", action="store_true", help="smaller numbers of everything, about 2 minutes")
    words("--json", type=Path, metavar="FILE", help="write every number there, too")
    a = parser.parse_args()
    parts, names = chosen(parser, "--only", a.only, PARTS), chosen(parser, "--peers", a.peers, list(BUILDERS))
    if a.rounds is not None and a.rounds < 1:
        parser.error("--rounds: at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or the proxies would outlive it
    sizes, machine = Sizes(a.quick, a.rounds), Machine()
    result: dict[str, Any] = {"machine": machine.words, "parts": parts}
    steps = {
        "latency": lambda: measure_latency(machine, sizes, names, result),
        "streams": lambda: measure_streams(machine, sizes, names, result),
        "aborts": lambda: measure_aborts(machine, sizes, result),
        "choice": lambda: measure_other("choice", result),
        "sweep": lambda: measure_other("sweep", result),
        "soak": lambda: result.update(soak=soak.soak(machine.proxy, machine.rest, *sizes.soak)),
    }
    if {"json", "chunk"} & set(parts):
        measure_cpu(machine, sizes, names, parts, result)
    for part in parts:
        if part in steps:
            try:
                steps[part]()
            except FAILURES as error:
                result.setdefault("failed", {})[part] = str(error)
                say(f"{part} failed: {error}")
    print(report.markdown(result))
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")
        say(f"numbers in {a.json}")


def chosen(parser: argparse.ArgumentParser, option: str, text: str, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated list, checked, in the order of ``known``."""
    names = [x.strip() for x in text.split(",") if x.strip()]
    for name in names:
        if name not in known:
            parser.error(f"{option}: there is no {name}; known: {', '.join(known)}")
    return [k for k in known if k in names]


if __name__ == "__main__":
    main()
