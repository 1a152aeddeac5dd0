"""Whether short questions stay quick while long documents flood in: pools against one pool for all.

    python tests/benchmarks/isolation.py [--rounds 3] [--seconds 10] [--profile gpu-8b-not-measured]

Four simulated replicas, a router without pools and one with two: documents have a replica of their own there. Short
questions arrive at a steady rate, without and then with a flood of documents, in turns; their TTFT is compared.
The goal: with pools the P99 under the flood is at most 1.5 times what it is without. Exit code 1 if it is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median, quantiles

import uvloop
import yaml

ROOT = Path(__file__).parents[2]
GOAL = 1.5
POOLS = {
    "long": {"match": {"min_input_tokens": 1500}, "replicas": ["sim-3"], "max_waiting": 64, "max_wait": 60.0},
    "interactive": {"replicas": ["sim-[012]"]},
}
SHORT, LONG = 300, 20_000  # bytes of a prompt
WORDS = [
    "the",
    "report",
    "of",
    "our",
    "team",
    "says",
    "that",
    "many",
    "people",
    "would",
    "like",
    "a",
    "shorter",
    "way",
    "to",
    "the",
    "station",
]


def body(size: int, tokens: int, chosen: random.Random) -> bytes:
    text = " ".join(chosen.choice(WORDS) for _ in range(size // 5))
    return json.dumps(
        {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": tokens}
    ).encode()


async def ask(port: int, content: bytes) -> float | None:
    """Seconds to the first piece of the answer; None if it was refused. Reads the answer to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        began = time.perf_counter()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head[:16]:
            return None
        # vLLM's first event has the role only; the first token is in the second.
        seen = b""
        while seen.count(b"data: ") < 2:
            seen += await reader.read(65536)
        first = time.perf_counter() - began
        while await reader.read(65536):
            pass
        return first
    finally:
        writer.close()


async def phase(
    port: int, seconds: float, flood: int, rate: float, seed: int
) -> tuple[list[float], int, int]:
    """(TTFT of short questions, how many of them were refused, documents answered)."""
    chosen = random.Random(seed)
    stop = asyncio.Event()
    documents = 0

    async def flooding() -> None:
        nonlocal documents
        while not stop.is_set():
            answered = await ask(port, body(LONG, 64, chosen)) is not None
            documents += answered  # after the await, or the others' would be lost

    floods = [asyncio.create_task(flooding()) for _ in range(flood)]
    if flood:
        await asyncio.sleep(2.0)  # until the flood is there
    tasks = []
    due = time.perf_counter()
    end = due + seconds
    while due < end:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(ask(port, body(SHORT, 32, chosen))))
        due += chosen.expovariate(rate)
    found = await asyncio.gather(*tasks)
    stop.set()
    await asyncio.gather(*floods)
    return [f for f in found if f is not None], sum(f is None for f in found), documents


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98] if len(values) > 1 else float("nan")


def start(argv: list[str], log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "serving.cli", *argv], cwd=ROOT, stdout=log.open("wb"), stderr=2
    )


def until_ready(admin: int) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=2):
                pass
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/fleet", timeout=2) as answer:
                if all(r["state"] == "ready" for r in json.load(answer)["replicas"]):
                    return
        except OSError:  # HTTP errors too
            pass
        time.sleep(0.1)
    raise SystemExit("the router did not become ready within a minute")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one phase")
    parser.add_argument("--rate", type=float, default=20.0, help="short questions a second")
    parser.add_argument("--flood", type=int, default=24, help="documents at a time")
    parser.add_argument("--profile", default="gpu-8b-not-measured")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="exaserve-isolation-"))
    first = 28000 + random.randrange(0, 400) * 10
    running = [
        start(
            ["simulate-replicas", "--count=4", f"--port={first}", f"--profile={options.profile}"],
            folder / "sim.log",
        )
    ]
    ports = {}
    try:
        for i, (name, pools) in enumerate((("one pool", {}), ("pools", POOLS))):
            port = first + 4 + 2 * i
            ports[name] = port
            (folder / f"{i}.yaml").write_text(yaml.safe_dump({"pools": pools}, sort_keys=False))
            replicas = [f"--replica=sim-{k}=http://127.0.0.1:{first + k}" for k in range(4)]
            argv = [
                "router",
                *replicas,
                f"--config={folder / f'{i}.yaml'}",
                f"--port={port}",
                f"--admin-port={port + 1}",
            ]
            running.append(start(argv, folder / f"router-{i}.log"))
        for port in ports.values():
            until_ready(port + 1)
        rows: dict[tuple[str, bool], list[float]] = {}
        refused = 0
        for round_ in range(options.rounds):
            for name, port in ports.items():
                for flood in (0, options.flood):
                    found, no, documents = uvloop.run(
                        phase(port, options.seconds, flood, options.rate, round_)
                    )
                    refused += no
                    rows.setdefault((name, bool(flood)), []).append(p99(found))
                    print(
                        f"round {round_ + 1}/{options.rounds}  {name:9} {'flood' if flood else 'calm ':5} "
                        f"{len(found)} short, P50 {median(found) * 1e3:.0f} ms, P99 {p99(found) * 1e3:.0f} ms, "
                        f"{documents} documents, {no} refused",
                        file=sys.stderr,
                        flush=True,
                    )
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(60)
    print("| | TTFT P99 calm, ms | under the flood, ms | ratio |\n|---|---:|---:|---:|")
    ratios = {}
    for name in ports:
        calm, flooded = median(rows[name, False]), median(rows[name, True])
        ratios[name] = flooded / calm
        print(f"| {name} | {calm * 1e3:.0f} | {flooded * 1e3:.0f} | {ratios[name]:.2f} |")
    good = ratios["pools"] <= GOAL and not refused
    print(
        f"\nwith pools at most {GOAL} x: {'PASS' if good else 'MISSED'} ({refused} short questions refused)"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
