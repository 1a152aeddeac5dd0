"""The upgrade gate end to end: real locust runs against servers that are alike, slower by 5 %, slower in their tail.

    .venv/bin/python tests/benchmarks/gate_check.py alike|median|tail [--repetitions 10] [--folder DIR]

``alike`` plays A against A on a simulated replica as often as asked (each with a seed of its own) and counts false
alarms. ``median`` and ``tail`` compare two paced servers whose times to the first token follow one lognormal
distribution exactly (a sequence of low discrepancy instead of chance, so that runs hardly differ): the second one is
slower by ``--factor`` always, or only among its slowest 3 %. ``engine`` compares two simulated replicas, one with
every engine step slower by ``--factor``. Status 0 if the gate said what it should.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from scipy import stats

ROOT = Path(__file__).parents[2]
#: Long beside what a busy machine adds to them.
MEDIAN, SIGMA, GAP, TOKENS = 0.250, 0.35, 0.020, 8
GOLDEN = (math.sqrt(5) - 1) / 2


class Paced:
    """Streams ``TOKENS`` tokens. factor: of times whose place in the distribution lies above ``above``."""

    def __init__(self, factor: float, above: float) -> None:
        self.factor, self.above, self.place, self.address = factor, above, 0.0, ""

    def first(self) -> float:
        self.place = (self.place + GOLDEN) % 1.0
        slower = self.factor if self.place >= self.above else 1.0
        return slower * MEDIAN * math.exp(SIGMA * float(stats.norm.ppf(min(max(self.place, 1e-6), 1 - 1e-6))))

    async def serve(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self.talk, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await server.serve_forever()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lengths = [
                    x.split(":")[1] for x in head.lower().split("\r\n") if x.startswith("content-length:")
                ]
                if lengths:
                    await reader.readexactly(int(lengths[0]))
                if "/chat/completions" in head.split("\r\n")[0]:
                    await self.stream(writer)
                else:
                    body = json.dumps(
                        {"object": "list", "data": [{"id": "paced", "object": "model"}]}
                    ).encode()
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                        % (len(body), body)
                    )
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def stream(self, writer: asyncio.StreamWriter) -> None:
        at = asyncio.get_running_loop().time() + self.first()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for i in range(TOKENS):
            await asyncio.sleep(at + i * GAP - asyncio.get_running_loop().time())
            choice = {
                "index": 0,
                "delta": {"content": "w "},
                "finish_reason": "stop" if i == TOKENS - 1 else None,
            }
            self.event(writer, json.dumps({"object": "chat.completion.chunk", "choices": [choice]}))
        usage = {"prompt_tokens": 10, "completion_tokens": TOKENS, "total_tokens": 10 + TOKENS}
        self.event(writer, json.dumps({"object": "chat.completion.chunk", "choices": [], "usage": usage}))
        self.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def event(self, writer: asyncio.StreamWriter, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def paced(factor: float, above: float) -> list[str]:
    """Addresses of both servers, in one thread of this process."""
    servers = [Paced(1.0, 0.0), Paced(factor, above)]
    ready = [threading.Event() for _ in servers]

    async def both() -> None:
        await asyncio.gather(*(s.serve(r) for s, r in zip(servers, ready, strict=True)))

    threading.Thread(target=lambda: asyncio.run(both()), daemon=True).start()
    for event in ready:
        event.wait(10)
    return [s.address for s in servers]


class Simulated:
    """Replicas of ``exaserve simulate-replicas``; ``slower`` sets a fault on the last."""

    def __init__(self, count: int) -> None:
        words = [sys.executable, "-m", "serving.cli", "simulate-replicas", "--count", str(count), "--json"]
        self.process = subprocess.Popen([*words, "--profile", "gpu-8b-not-measured"], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline())
        self.addresses = [r["url"] for r in found["replicas"]]

    def slower(self, factor: float) -> None:
        body = json.dumps({"kind": "slow", "factor": factor}).encode()
        request = urllib.request.Request(
            f"{self.addresses[-1]}/_sim/fault", body, {"content-type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=10).read()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def gate(options: argparse.Namespace, addresses: list[str], seed: int) -> dict:
    sides = ["--self-check", "--baseline", addresses[0]]
    if len(addresses) == 2:
        sides = ["--baseline", addresses[0], "--candidate", addresses[1]]
    folder = Path(options.folder) / f"{options.what}-{seed}"
    began = time.monotonic()
    words = [
        sys.executable,
        "-m",
        "serving.cli",
        "gate",
        *sides,
        "--workload",
        "chat",
        "--warmup",
        "1",
        "--json",
    ]
    words += ["--rate", str(options.rate), "--requests", str(options.requests), "--runs", str(options.runs)]
    words += ["--seed", str(seed), "--folder", str(folder), "--", "--max-tokens", str(TOKENS)]
    done = subprocess.run(
        words,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 2 or not done.stdout:
        sys.exit(done.stderr)
    told = json.loads(done.stdout)
    print(
        f"seed {seed}: {told['verdict']} ({told['reason']}; more runs a side: {told['further']}; "
        f"not used: {len(told['unused'])}), {time.monotonic() - began:.0f} s",
        flush=True,
    )
    for row in told["rows"]:
        if row["change"] is not None and row["status"] != "refused":
            bounds = " … ".join("?" if row[k] is None else f"{100 * row[k]:+.1f} %" for k in ("low", "high"))
            print(
                f"   {row['metric']:13} {row['quantile']:4} {100 * row['change']:+.1f} % ({bounds}) {row['status']}"
            )
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("alike", "median", "tail", "engine"))
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--factor", type=float, default=None, help="default: 1.05, for tail 1.10")
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir() + "/gate-check")
    options = parser.parse_args()
    factor = options.factor or (1.10 if options.what == "tail" else 1.05)
    simulated = None
    if options.what in ("alike", "engine"):
        simulated = Simulated(1 if options.what == "alike" else 2)
        addresses = simulated.addresses
    else:
        addresses = paced(factor, 0.97 if options.what == "tail" else 0.0)
    try:
        if simulated is not None and options.what == "engine":
            simulated.slower(factor)
        seen = [gate(options, addresses, seed)["verdict"] for seed in range(1, options.repetitions + 1)]
    finally:
        if simulated is not None:
            simulated.end()
    failed = seen.count("fail")
    print(f"{options.what}: {failed} of {len(seen)} gates failed, {seen.count('pass')} passed")
    sys.exit(failed > max(1, len(seen) // 10) if options.what == "alike" else failed < len(seen))


if __name__ == "__main__":
    main()
