"""The tables of ``router.py`` and the goals that they are held against. Only words: nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

#: (goal's name, kind of work, factor, proxies of which the cheapest counts)
RATIOS = [
    ("JSON request ≤ 0.5 × vllm-router", "json", 0.5, ("vllm-router", "vllm-router-rr")),
    ("JSON request ≤ 2.5 × HAProxy", "json", 2.5, ("haproxy",)),
    ("JSON request ≤ 1.5 × HAProxy (wished for)", "json", 1.5, ("haproxy",)),
    ("streamed chunk ≤ 0.7 × vllm-router", "chunk", 0.7, ("vllm-router", "vllm-router-rr")),
    ("streamed chunk ≤ 1.15 × HAProxy", "chunk", 1.15, ("haproxy",)),
]
CHOICE = 1.3  # replica choice, 3,072 replicas over 12
KIB_PER_STREAM = 30.0
GROWTH_MIB = 1.0  # after the first 10 % of the aborted streams; noise of allocators, not 10 bytes a stream
ENOUGH_ABORTS = 50_000  # below it, what an allocator keeps in reserve hides what leaks
LIVEZ_SECONDS = 0.5


@dataclass
class Goal:
    """A goal and what was measured. ``ok`` None: not measured."""

    name: str
    measured: str
    ok: bool | None

    @property
    def verdict(self) -> str:
        return {True: "PASS", False: "**MISSED**", None: "not measured"}[self.ok]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; columns after the first are right-aligned."""
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    lines = [
        "| "
        + " | ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))
        )
        + " |"
        for r in [head, *rows]
    ]
    rule = "|" + "|".join("-" * (w + 1) + ("-" if i == 0 else ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def cost(view: dict[str, Any] | None) -> str:
    """``34.1 (33.0-36.2)``: median and range of the rounds."""
    if not view:
        return "–"
    if "us" not in view:
        return "failed"
    flag = " !" if view["bundled_share"] > 0.05 else ""
    return f"{view['us']:.1f} ({view['low']:.1f}–{view['high']:.1f}){flag}"


def cpu(result: dict[str, Any]) -> str:
    """CPU per unit of work, one row a proxy."""
    kinds = [
        k for k in ("json", "json-3.5k", "chunk") if any(k in r["costs"] for r in result["cpu"].values())
    ]
    titles = {"json": "JSON request, 600 B", "json-3.5k": "JSON request, 3.5 KB", "chunk": "streamed chunk"}
    rows = []
    for name, row in result["cpu"].items():
        costs = row["costs"]
        workers = [f"{costs[k]['workers_us']:.1f}" for k in kinds if costs.get(k, {}).get("workers_us")]
        kernel = [f"{costs[k]['kernel_us']:.0f}" for k in kinds if "kernel_us" in costs.get(k, {})]
        cells = [f"{name} {row['version']}".strip(), *(cost(costs.get(k)) for k in kinds)]
        aside = [f"{costs[k]['aside_us']:.0f}" for k in kinds if costs.get(k, {}).get("aside_us")]
        cells += [" / ".join(kernel) or "–", " / ".join(workers) or "–", " / ".join(aside) or "–"]
        rows.append([*cells, f"{row['idle_ms']:.1f}", str(row["threads"])])
    head = [
        "µs of CPU per …",
        *(titles[k] for k in kinds),
        "of it in the kernel",
        "in workers",
        "apart: intents' second stage",
        "idle, ms/s",
        "threads",
    ]
    rows += [[name, *["–"] * len(kinds), "–", "–", "–", "–", "–"] for name in result["missing"]]
    return table(head, rows)


def goals(result: dict[str, Any]) -> list[Goal]:
    """Every goal of the parts that were asked for."""
    return [
        *_ratios(result),
        *_choice(result),
        *_latency(result),
        *_streams(result),
        *_aborts(result),
        *_soak(result),
    ]


def _runs(result: dict[str, Any], name: str, kind: str) -> list[float]:
    return list(result.get("cpu", {}).get(name, {}).get("costs", {}).get(kind, {}).get("runs", []))


def _ratios(result: dict[str, Any]) -> Iterator[Goal]:
    """The median of the rounds' ratios: what disturbed a round met both."""
    for name, kind, factor, others in RATIOS:
        if kind not in result["parts"]:
            continue
        mine = _runs(result, "exaserve", kind)
        theirs = [(median(runs), other, runs) for other in others if (runs := _runs(result, other, kind))]
        if not mine or not theirs:
            yield Goal(name, "–", None)
            continue
        us, other, runs = min(theirs)
        ratios = [m / t for m, t in zip(mine, runs, strict=False)]
        said = f"{median(ratios):.2f} × {other} ({min(ratios):.2f}–{max(ratios):.2f}; {median(mine):.1f} and {us:.1f} µs)"
        yield Goal(name, said, median(ratios) <= factor)


def _choice(result: dict[str, Any]) -> Iterator[Goal]:
    """The ratio stands last in each policy's line of the choice benchmark."""
    if "choice" not in result["parts"]:
        return
    name = f"choice at 3,072 replicas ≤ {CHOICE} × at 12"
    found = result.get("choice", {})
    lines = [line.split() for line in found.get("text", "").splitlines()[1:] if line.strip()]
    try:
        ratio, worst = max((float(words[-1]), words[0]) for words in lines)
    except (ValueError, IndexError):
        yield Goal(name, str(found.get("failed", "–"))[:80], None)
        return
    yield Goal(name, f"{ratio:.2f} × (worst: {worst})", ratio <= CHOICE)


def _latency(result: dict[str, Any]) -> Iterator[Goal]:
    found = result.get("latency")
    if found:
        row = found["rows"]["exaserve"]
        said = f"+{row['added_p50']:.3f} / +{row['added_p99']:.3f} ms at {found['rate']:.0f}/s"
        yield Goal("added latency P50 / P99 at a third of capacity (no limit set)", said, True)


def _streams(result: dict[str, Any]) -> Iterator[Goal]:
    if "streams" not in result["parts"]:
        return
    found = result.get("streams", {}).get("exaserve", {})
    name = f"memory per open stream ≤ {KIB_PER_STREAM:.0f} KiB at 10,000"
    if "kib_per_stream" not in found:
        yield Goal(name, str(found.get("failed", "–"))[:80], None)
        return
    said = f"{found['kib_per_stream']:.1f} KiB at {found['streams']}, {found['failed']} failed"
    yield Goal(name, said, found["kib_per_stream"] <= KIB_PER_STREAM and not found["failed"])


def _aborts(result: dict[str, Any]) -> Iterator[Goal]:
    if "aborts" not in result["parts"]:
        return
    found = result.get("aborts")
    name = "no growth after 100,000 aborted streams"
    if not found:
        yield Goal(name, "–", None)
        return
    said = f"{found['growth_mib']:+.2f} MiB, {found['growth_files']:+d} files, {found['in_flight']} in flight"
    clean = found["in_flight"] == 0 and found["growth_files"] <= 64 and not found["failed"]
    if clean and found["aborted"] < ENOUGH_ABORTS:
        yield Goal(name, f"{said} after {found['aborted']}: too few to judge memory", None)
    else:
        yield Goal(name, f"{said} after {found['aborted']}", clean and found["growth_mib"] <= GROWTH_MIB)


def _soak(result: dict[str, Any]) -> Iterator[Goal]:
    if "soak" not in result:
        return
    many, limit = result["soak"]["many"], result["soak"]["limit"]
    name = f"{many['streams']} streams for {many['seconds']:.0f} s: none fails"
    yield Goal(name, f"{many['whole']} whole, {many['failed']} failed", not many["failed"])
    ok = many["livez_max_s"] < LIVEZ_SECONDS and not many["livez_failed"]
    yield Goal("/livez below 0.5 s meanwhile", f"{many['livez_max_s']:.3f} s at most", ok)
    bound = 2 * many["streams"] + 200
    yield Goal("open files bounded", f"{many['files_most']} ≤ {bound}", many["files_most"] <= bound)
    said = f"{limit['served']} served, {limit['answered_503']} of {limit['refused']} others told so, {limit['hanging']} hang"
    clean = limit["hanging"] == 0 and limit["served"] > 0 and limit["livez"] and limit["serves_again"] is True
    clean = (
        clean and limit["answered_503"] >= 0.9 * limit["refused"]
    )  # a connection that is reset says nothing
    yield Goal(f"{limit['limit']} open files: a clean refusal", said, clean)
    named = limit["log_names_limit"]
    yield Goal(
        "the log names the limit, once",
        (named or ["no line"])[0][:100],
        bool(named) and limit["log_lines"] < 50,
    )


def markdown(result: dict[str, Any]) -> str:
    """The whole report."""
    parts = [f"# Router benchmark\n\n{result['machine']}"]
    if "cpu" in result:
        parts += [cpu(result), _notes(result)]
    if "latency" in result:
        parts.append(_latency_table(result["latency"]))
    if "streams" in result:
        rows = [
            [
                name,
                str(r.get("streams", "–")),
                f"{r['kib_per_stream']:.1f}",
                str(r["failed"]),
                f"{r['seconds_to_open']:.1f}",
            ]
            if "kib_per_stream" in r
            else [name, "–", str(r.get("failed", "–"))[:60], "–", "–"]
            for name, r in result["streams"].items()
        ]
        parts.append(table(["open streams", "number", "KiB each (PSS)", "failed", "s to open"], rows))
    for name in ("choice", "sweep"):
        if name in result:
            found = result[name]
            parts.append(
                f"{name}:\n\n```\n{found['text']}\n```" if "text" in found else f"{name}: {found['failed']}"
            )
    rows = [[g.name, g.measured, g.verdict] for g in goals(result)]
    parts.append(table(["goal", "measured", "verdict"], rows))
    return "\n\n".join(parts)


def _latency_table(found: dict[str, Any]) -> str:
    rows = [
        [n, *(f"{r[k]:.3f}" for k in ("p50", "p99", "added_p50", "added_p99", "lag_p99"))]
        for n, r in found["rows"].items()
    ]
    head = [f"ms at {found['rate']:.0f}/s", "P50", "P99", "added P50", "added P99", "client late, P99"]
    said = f"Capacity of ExaServe here: {found['capacity']:.0f}/s (the next step was too much for {found['ended_by']})."
    return f"{table(head, rows)}\n\n{said}"


def _notes(result: dict[str, Any]) -> str:
    on = [k for k, v in result["features"].items() if v == "on"]
    off = [f"{k}: {v}" for k, v in result["features"].items() if v != "on"]
    shares = [
        f"{n} {r['costs']['chunk']['bundled_share']:.1%}"
        for n, r in result["cpu"].items()
        if "us" in r["costs"].get("chunk", {})
    ]
    lines = [
        "CPU: user and system time of all processes and threads of the proxy; median of the rounds (lowest–highest).",
        f"exaserve has on: {', '.join(on) or 'nothing'}."
        + (f" Not on: {'; '.join(off)}." if off else "")
        + " exaserve-bare and the peers, as they are by default, do without all of these.",
        "vllm-router's default policy asks every replica for the tokens of each prompt; -rr is round robin, the cheaper.",
    ]
    if shares:
        lines.append(
            f"Chunks that shared a read with another at the client: {', '.join(shares)} (! marks above 5 %)."
        )
    lines += [f"Left out: {n}: {why}." for n, why in result["missing"].items()]
    failed = [
        (n, k, c["failed"])
        for n, r in result["cpu"].items()
        for k, c in r["costs"].items()
        if c.get("failed")
    ]
    lines += [f"Failed: {n}, {k}: {why[:200]}" for n, k, why in failed]
    return "\n".join(f"- {line}" for line in lines)
