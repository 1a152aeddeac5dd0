"""How much more of the prompts the engines' prefix caches hold when conversations stay with their replica.

    exaserve up --detach
    python tests/benchmarks/prefix_affinity.py --admin http://127.0.0.1:8001

Puts a router per strategy in front of the replicas that the given one has, and holds the same kind of conversations
through each in turns: every turn sends all that was said before. Prints, per strategy, the share of prompt tokens
that the engines found in their prefix caches (vllm:prefix_cache_hits_total by vllm:prefix_cache_queries_total) and
the time to the first token of later turns. Nobody else should use the replicas meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

import httpx

ROOT = Path(__file__).parents[2]
STRATEGIES = ("round_robin", "least_work", "hybrid")
WORDS = [
    "river",
    "garden",
    "window",
    "letter",
    "morning",
    "village",
    "kitchen",
    "summer",
    "mountain",
    "bridge",
    "market",
    "music",
    "harbour",
    "story",
    "friend",
    "winter",
    "paper",
    "train",
    "island",
    "cloud",
    "orange",
    "table",
    "forest",
    "lesson",
    "doctor",
    "church",
    "school",
    "engine",
    "street",
    "colour",
]


def text(words: int, chosen: random.Random) -> str:
    return " ".join(chosen.choice(WORDS) for _ in range(words))


def counters(replicas: list[str]) -> tuple[float, float]:
    """(hits, queries) in tokens, over all replicas."""
    found = [0.0, 0.0]
    for url in replicas:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        for i, name in enumerate(("hits", "queries")):
            for value in re.findall(rf"^vllm:prefix_cache_{name}_total\{{.*\}} (\S+)$", page, re.M):
                found[i] += float(value)
    return found[0], found[1]


async def conversation(client: httpx.AsyncClient, model: str, turns: int, seed: int) -> list[float]:
    """Seconds to the first token of each turn after the first."""
    chosen = random.Random(seed)
    messages = [{"role": "user", "content": text(220, chosen)}]
    waits = []
    for turn in range(turns):
        body = {"model": model, "messages": messages, "stream": True, "max_tokens": 16, "temperature": 0}
        began = time.perf_counter()
        answer = ""
        first = 0.0
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    said = json.loads(line[6:])["choices"]
                    piece = said[0]["delta"].get("content") if said else None
                    if piece:
                        first = first or time.perf_counter() - began
                        answer += piece
        if turn:
            waits.append(first)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": text(40, chosen)}]
    return waits


async def hold(port: int, model: str, conversations: int, turns: int, seed: int) -> list[float]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        found = await asyncio.gather(
            *(conversation(client, model, turns, seed * 1000 + i) for i in range(conversations))
        )
    return [w for waits in found for w in waits]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--admin", default="http://127.0.0.1:8001", help="admin API of a router with the replicas"
    )
    parser.add_argument("--conversations", type=int, default=5, help="at a time")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with urllib.request.urlopen(f"{options.admin}/fleet", timeout=10) as answer:
        fleet = json.load(answer)["replicas"]
    urls, model = [r["url"] for r in fleet], fleet[0]["model"]
    folder = Path(tempfile.mkdtemp(prefix="exaserve-affinity-"))
    first = 27000 + random.randrange(0, 300) * 10
    running, ports = [], {}
    totals = {s: [0.0, 0.0] for s in STRATEGIES}
    waits: dict[str, list[float]] = {s: [] for s in STRATEGIES}
    try:
        for i, strategy in enumerate(STRATEGIES):
            ports[strategy] = first + 2 * i
            (folder / f"{strategy}.yaml").write_text(f"router: {{strategy: {strategy}}}\n")
            argv = [f"--replica={r['name']}={r['url']}" for r in fleet]
            argv += [
                f"--config={folder / strategy}.yaml",
                f"--port={first + 2 * i}",
                f"--admin-port={first + 2 * i + 1}",
            ]
            log = (folder / f"{strategy}.log").open("wb")
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "serving.cli", "router", *argv], cwd=ROOT, stdout=log, stderr=2
                )
            )
        for port in ports.values():
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                    break
                except OSError:
                    time.sleep(0.1)
        for round_ in range(options.rounds):
            for i, strategy in enumerate(STRATEGIES):
                before = counters(urls)
                found = asyncio.run(
                    hold(ports[strategy], model, options.conversations, options.turns, 100 * round_ + i)
                )
                after = counters(urls)
                waits[strategy] += found
                for k in (0, 1):
                    totals[strategy][k] += after[k] - before[k]
                print(
                    f"round {round_ + 1}/{options.rounds}  {strategy}: {after[0] - before[0]:.0f} of "
                    f"{after[1] - before[1]:.0f} prompt tokens from the cache, TTFT P50 {median(found) * 1e3:.0f} ms",
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)
    print("| strategy | prompt tokens | from the prefix cache | share | TTFT P50 of later turns, ms |")
    print("|---|---:|---:|---:|---:|")
    for strategy, (hits, queries) in totals.items():
        print(
            f"| {strategy} | {queries:.0f} | {hits:.0f} | {100 * hits / max(queries, 1):.1f} % "
            f"| {median(waits[strategy]) * 1e3:.0f} |"
        )
    return 0 if totals["hybrid"][0] > totals["round_robin"][0] else 1


if __name__ == "__main__":
    sys.exit(main())
