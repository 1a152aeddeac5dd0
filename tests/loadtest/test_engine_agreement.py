"""Against real vLLM behind the router: what the client measured is what the engines counted themselves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
NAMES = ("time_to_first_token_seconds", "inter_token_latency_seconds")


def sums(urls: list[str], name: str) -> tuple[float, float]:
    """Sum (seconds) and count of a histogram over all replicas."""
    pages = [httpx.get(f"{url}/metrics", timeout=30).text for url in urls]
    found = [
        sum(float(v) for page in pages for v in re.findall(rf"^vllm:{name}_{part}{{.*}} (\S+)$", page, re.M))
        for part in ("sum", "count")
    ]
    return found[0], found[1]


class Probes:
    """The router asks each engine for one token every 5 s, which has a TTFT too; it shows how long the last one took."""

    def __init__(self, admin: str) -> None:
        self._admin = admin
        self._last = self._now()
        self.seconds: list[float] = []

    def _now(self) -> dict[str, float]:
        replicas = httpx.get(f"{self._admin}/fleet", timeout=30).json()["replicas"]
        return {replica["name"]: replica["probe_seconds"] for replica in replicas}

    def look(self) -> None:
        now = self._now()
        self.seconds += [seconds for name, seconds in now.items() if seconds != self._last[name]]
        self._last = now


def test_ttft_and_itl_agree_with_the_engines_own_histograms(real_stack: Any, tmp_path: Path) -> None:
    """Means within 10 %. Ours have the way through the router in them, theirs have not: some milliseconds."""
    replicas = httpx.get(f"{real_stack.admin}/fleet").json()["replicas"]
    urls = [replica["url"] for replica in replicas]
    probes, before = Probes(real_stack.admin), [sums(urls, name) for name in NAMES]
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        f"{ROOT}/loadtest/chat.py",
        "--headless",
        "--only-summary",
    ]
    load = ["-H", real_stack.router, "-u", "2", "-r", "2", "-t", "15s", "-s", "90", "--warmup", "0"]
    # What this machine does besides (two engines on its cores) is not what this test is about.
    kept = ["--run-folder", str(tmp_path / "run"), "--client-limits", "lag=9s,delay=9s,cpu=9"]
    run = subprocess.Popen(
        [*command, *load, *kept, "--max-tokens", "16"], cwd=tmp_path, stderr=(tmp_path / "err").open("wb")
    )
    try:
        while run.poll() is None:
            time.sleep(0.2)
            probes.look()
    finally:
        run.kill()
    assert run.returncode == 0, (tmp_path / "err").read_text()[-3000:]
    (ttft, firsts), (itl, gaps) = (
        (a[0] - b[0], a[1] - b[1]) for a, b in zip([sums(urls, name) for name in NAMES], before, strict=True)
    )
    records = [json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text().splitlines()]
    assert abs(firsts - len(records) - len(probes.seconds)) <= 2, "one may begin before and end after"
    engine_ttft = (ttft - sum(probes.seconds)) / len(records)
    our_ttft = sum(r["ttft"] for r in records) / len(records)
    # A chunk may bring several tokens, where the client did not keep up; the engine counts each gap.
    our_gaps = sum(r["output_tokens"] - 1 for r in records)
    our_itl = sum(sum(r["gaps"]) / 1000 for r in records) / our_gaps
    print(
        f"TTFT of {len(records)}: {our_ttft * 1000:.2f} ms; engines, without {len(probes.seconds)} probes: {engine_ttft * 1000:.2f} ms"
    )
    print(f"ITL of {our_gaps}: {our_itl * 1000:.3f} ms; engines, of {gaps:.0f}: {itl / gaps * 1000:.3f} ms")
    assert our_gaps == gaps
    assert our_ttft == pytest.approx(engine_ttft, rel=0.1)
    assert our_itl == pytest.approx(itl / gaps, rel=0.1)
    assert {r["replica"] for r in records} == {replica["name"] for replica in replicas}
