"""One paced server, measured by our load test and by others' in the same run: do the figures agree?

    python -m tests.benchmarks.loadtest_peers --vllm ENGINE/bin/vllm --guidellm VENV/bin/guidellm --tokenizer MODEL

Each client sends the same constant rate for the same time, one client after the other, and is compared with what the
server says it sent **to it** (``loadtest/_lib/_paced.py``). A client that is not given is left out. Exit code 1 if one of
our figures is more than 3 % from the truth; those of others are only shown.

What the definitions differ in:

=================  ===================================================================================================
TTFT, E2E          ours count from when the request was due; the others from when they sent it, just before connecting
TTFT, chat         that of ``vllm bench serve`` is the role-only chunk, which has no token in it and comes at once; its
                   E2E ends with the last event, ours with the last token. On /v1/completions there is no such chunk
TPOT               of all: (last - first token) / (output tokens - 1), mean over requests; GuideLLM's own
                   "time per output token" is E2E / output tokens, so its "inter token latency" stands here
tokens per second  ours: tokens that came inside the measured time / that time; the others: all tokens / the time from
                   the first request to the last answer, so they have the tail in it
=================  ===================================================================================================
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

from loadtest._lib import _selftest

ROOT = Path(__file__).resolve().parents[2]
#: Half a millisecond is what two processes need to hand a packet over; below that a percentage says nothing.
CLOSE, SHARE = 0.0005, 0.03
FIGURES = ("TTFT mean", "TTFT P50", "TTFT P99", "TPOT mean", "E2E mean", "E2E P50", "E2E P99", "tokens/s")

Figures = dict[str, float | None]


class Missing(Exception):
    """The client is not here, or said nothing; the message says what it said."""


def ours(url: str, given: argparse.Namespace, folder: Path) -> Figures:
    run = folder / "run"
    _call(
        *(
            sys.executable,
            "-m",
            "locust",
            "-f",
            str(ROOT / "loadtest" / "chat.py"),
            "--headless",
            "--only-summary",
        ),
        *("-H", url, "--arrivals", "constant", "--rate", f"{given.rate:g}", "-t", f"{given.seconds}s"),
        *("--warmup", "0", "--run-folder", str(run), "--model", "paced"),
    )
    summary = json.loads((run / "summary.json").read_text())["all"]
    latency = summary["latency"]
    return {
        "TTFT mean": latency["ttft"]["mean"],
        "TTFT P50": latency["ttft"]["p50"],
        "TTFT P99": latency["ttft"]["p99"],
        "TPOT mean": latency["tpot"]["mean"],
        "E2E mean": latency["e2e"]["mean"],
        "E2E P50": latency["e2e"]["p50"],
        "E2E P99": latency["e2e"]["p99"],
        "tokens/s": summary["output_tokens_per_second"],
    }


def vllm(url: str, given: argparse.Namespace, folder: Path) -> Figures:
    return _vllm(url, given, folder, "openai", "/v1/completions")


def vllm_chat(url: str, given: argparse.Namespace, folder: Path) -> Figures:
    return _vllm(url, given, folder, "openai-chat", "/v1/chat/completions")


def _vllm(url: str, given: argparse.Namespace, folder: Path, backend: str, path: str) -> Figures:
    count = round(given.rate * given.seconds)
    _call(
        *(given.vllm, "bench", "serve", "--backend", backend, "--endpoint", path),
        *("--base-url", url, "--model", "paced", "--tokenizer", given.tokenizer, "--dataset-name", "random"),
        *("--random-input-len", "32", "--random-output-len", str(given.tokens), "--num-prompts", str(count)),
        *("--request-rate", f"{given.rate:g}", "--burstiness", "1000000", "--seed", "1", "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"),
        *(
            "--save-result",
            "--result-dir",
            str(folder),
            "--result-filename",
            "vllm.json",
            "--num-warmups",
            "0",
        ),
        env={"HF_HUB_OFFLINE": "1"},
    )
    found = json.loads((folder / "vllm.json").read_text())

    def seconds(name: str) -> float | None:
        return found[name] / 1000 if name in found else None

    return {
        "TTFT mean": seconds("mean_ttft_ms"),
        "TTFT P50": seconds("median_ttft_ms"),
        "TTFT P99": seconds("p99_ttft_ms"),
        "TPOT mean": seconds("mean_tpot_ms"),
        "E2E mean": seconds("mean_e2el_ms"),
        "E2E P50": seconds("median_e2el_ms"),
        "E2E P99": seconds("p99_e2el_ms"),
        "tokens/s": found.get("output_throughput"),
    }


def guidellm(url: str, given: argparse.Namespace, folder: Path) -> Figures:
    path = folder / "guidellm.json"
    _call(
        *(given.guidellm, "run", "--backend", f"kind=openai_http,target={url},model=paced"),
        *("--profile", f"kind=constant,rate={given.rate:g}"),
        *("--constraint", f"kind=max_duration,seconds={given.seconds}"),
        *("--tokenizer", f"kind=hf_auto,model={given.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={given.tokens}"),
        *("--output", f"kind=json,path={path}", "--disable-console"),
        env={"HF_HUB_OFFLINE": "1"},
    )
    metrics = json.loads(path.read_text())["benchmarks"][0]["metrics"]

    def of(name: str, statistic: str, scale: float = 1000) -> float | None:
        found = metrics[name]["successful"]
        value = found["percentiles"].get(statistic) if statistic.startswith("p") else found.get(statistic)
        return None if value is None else value / scale

    return {
        "TTFT mean": of("time_to_first_token_ms", "mean"),
        "TTFT P50": of("time_to_first_token_ms", "p50"),
        "TTFT P99": of("time_to_first_token_ms", "p99"),
        "TPOT mean": of("inter_token_latency_ms", "mean"),
        "E2E mean": of("request_latency", "mean", 1),
        "E2E P50": of("request_latency", "p50", 1),
        "E2E P99": of("request_latency", "p99", 1),
        "tokens/s": of("output_tokens_per_second", "mean", 1),
    }


def _load(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Streams of the load itself, without what a client asks before it to see whether the server is there."""
    streams = sorted((a for a in answers if a["sends"]), key=lambda a: a["arrived"])
    while len(streams) > 1 and streams[1]["arrived"] > streams[0]["ended"]:
        streams = streams[1:]
    return streams


def truth(answers: list[dict[str, Any]]) -> Figures:
    """Of what the server sent to one client; tokens per second over the others' time, first request to last answer."""
    ttft = [a["sends"][0] - a["arrived"] for a in answers]
    e2e = [a["sends"][-1] - a["arrived"] for a in answers]
    time = max(a["ended"] for a in answers) - min(a["arrived"] for a in answers)
    return {
        "TTFT mean": mean(ttft),
        "TTFT P50": median(ttft),
        "TTFT P99": sorted(ttft)[-(len(ttft) // 100) - 1],
        "TPOT mean": mean((a["sends"][-1] - a["sends"][0]) / (a["tokens"] - 1) for a in answers),
        "E2E mean": mean(e2e),
        "E2E P50": median(e2e),
        "E2E P99": sorted(e2e)[-(len(e2e) // 100) - 1],
        "tokens/s": sum(a["tokens"] for a in answers) / time,
    }


def _call(*command: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, "EXASERVE_HOME": tempfile.gettempdir(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        check=False,
    )
    if done.returncode not in (0, 1, 3):
        raise Missing(
            f"{command[0]} ended with {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        )


def _row(name: str, figure: str, found: float | None, true: float | None) -> tuple[str, bool]:
    if found is None or true is None:
        return f"| {name} | {figure} | – | – | – |", True
    scale, unit = (1, "") if figure == "tokens/s" else (1000, " ms")
    right = abs(found - true) <= max(SHARE * true, 0 if figure == "tokens/s" else CLOSE)
    difference = f"{100 * (found / true - 1):+.2f} %" + ("" if right else " !")
    return (
        f"| {name} | {figure} | {true * scale:.2f}{unit} | {found * scale:.2f}{unit} | {difference} |",
        right,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second (default: 10)")
    parser.add_argument("--seconds", type=int, default=20, help="of each client (default: 20)")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer (default: 32)")
    parser.add_argument("--ttft", type=float, default=0.15, help="seconds (default: 0.15)")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between tokens (default: 0.02)")
    parser.add_argument("--vllm", default="", help="the vllm command, for vllm bench serve")
    parser.add_argument("--guidellm", default="", help="the guidellm command")
    parser.add_argument("--tokenizer", default="", help="folder with a tokenizer.json; both need one")
    given = parser.parse_args()
    clients: list[tuple[str, Callable[[str, argparse.Namespace, Path], Figures]]] = [("ours", ours)]
    if given.vllm:
        clients += [("vllm bench serve", vllm), ("the same, chat", vllm_chat)]
    clients += [("GuideLLM", guidellm)] if given.guidellm else []
    failed = False
    print("| client | figure | truth | measured | difference |\n|---|---|---:|---:|---:|")
    pace = ("--ttft", str(given.ttft), "--gap", str(given.gap), "--tokens", str(given.tokens))
    with _selftest.paced(*pace) as url:
        seen = 0
        for name, client in clients:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    figures = client(url, given, Path(folder))
                except (Missing, OSError, KeyError, ValueError) as error:
                    print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                    failed = True
                    continue
            with urllib.request.urlopen(f"{url}/truth") as answer:
                answers = json.load(answer)
            true = truth(_load(answers[seen:]))
            seen = len(answers)
            for figure in FIGURES:
                line, right = _row(name, figure, figures[figure], true[figure])
                print(line, flush=True)
                if figure != "tokens/s" and name == "ours":
                    failed |= not right
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
