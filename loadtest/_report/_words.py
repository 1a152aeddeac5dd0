"""The verdict in words, and numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest._report._definitions import LATENCIES, VERDICTS


def verdict(summary: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """(key of VERDICTS, its title, sentences that say why)."""
    key = "void" if summary.get("void") else str(summary.get("verdict") or "no_requests")
    why: list[str] = []
    if summary.get("void"):
        reasons = [str(reason) for reason in summary.get("void_reasons") or ()]
        why.append(
            "The client itself was the bottleneck, so its numbers are about the client: "
            + ("; ".join(reasons) or "no reason was noted")
            + "."
        )
        why.append(
            "Run it again with more processes (--processes), on a machine with more free cores, or at less rate."
        )
    why += _objectives(summary)
    return key, VERDICTS.get(key, key), why


def _objectives(summary: Mapping[str, Any]) -> list[str]:
    every = summary["all"]
    offered, good = int(every.get("offered") or 0), int(every.get("good") or 0)
    if not offered:
        return ["Not one request was offered in the measured phase."]
    limits = objectives(summary)
    asked = (summary.get("slo") or {}).get("attainment")
    share = every.get("attainment")
    share = good / offered if share is None else share
    what = "completed and met every objective" if limits else "completed (no objective was given: --slo)"
    told = f"{good:,} of {offered:,} offered requests ({ratio(share)}) {what}"
    if asked is not None:
        told += f"; {ratio(asked)} were asked for"
    lost = [
        f"{int(every.get(key) or 0):,} {word}"
        for key, word in (("failed", "failed"), ("unsent", "were never sent"), ("open", "had not ended"))
        if every.get(key)
    ]
    slow = int(every.get("completed") or 0) - good
    if slow > 0 and limits:
        lost.append(f"{slow:,} completed too slowly")
    return [f"{told}.", *([f"Of the others, {', '.join(lost)}."] if lost else [])]


def objectives(summary: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by latency that the run judged by."""
    slo = summary.get("slo") or {}
    return {name: float(slo[name]) for name in LATENCIES if slo.get(name)}


def number(value: float | None, unit: str) -> str:
    """With its unit, in the size that reads best; "–" for none."""
    if value is None:
        return "–"
    if unit == "s":
        return seconds(value)
    if unit == "ratio":
        return ratio(value)
    text = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.3g}"
    return text + unit.removeprefix("tok")


def seconds(value: float) -> str:
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= size or unit == "µs":
            scaled = value / size
            return f"{scaled:,.0f} {unit}" if abs(scaled) >= 1000 else f"{scaled:.4g} {unit}"
    raise AssertionError(value)


def ratio(value: float) -> str:
    """A share as per cent. What is not all is never rounded to 100 %."""
    text = f"{value * 100:.2f}"
    if text == "100.00" and value < 1:
        text = "99.99"
    return f"{text.rstrip('0').rstrip('.')} %"
