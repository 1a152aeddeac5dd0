"""What a run ends with: its verdict, its exit code, and the lines that tell it.

The first that applies, over the measured phase:

====  ============  ===========================================================================================
code  verdict       when
====  ============  ===========================================================================================
2     (none)        wrong usage; there was no run
4     no_requests   not one request ended (none was offered, or all were unsent or still open)
5     all_failed    requests ended, and not one of them completed
3     void          the client itself was too slow (``_limits``), or a worker was lost
1     missed        good / offered < ``--slo-attainment``; failed, unsent and open requests are not good
0     passed        otherwise; without ``--slo`` each completed request is good
====  ============  ===========================================================================================
"""

from __future__ import annotations

from typing import Any

PASSED, MISSED, USAGE, VOID, NO_REQUESTS, ALL_FAILED = range(6)
NAMES = {
    PASSED: "passed",
    MISSED: "missed",
    VOID: "void",
    NO_REQUESTS: "no_requests",
    ALL_FAILED: "all_failed",
}


def code(completed: int, failed: int, attainment: float | None, wanted: float, void: bool) -> int:
    """The exit code. attainment: None without an offered request."""
    if not completed and not failed:
        return NO_REQUESTS
    if not completed:
        return ALL_FAILED
    if void:
        return VOID
    return PASSED if attainment is not None and attainment >= wanted else MISSED


def lines(summary: dict[str, Any]) -> list[str]:
    """For the end of a run on a terminal."""
    group = summary["all"]
    asked = ", ".join(
        f"{name} <= {limit:g} s" for name, limit in summary["slo"].items() if name != "attainment" and limit
    )
    told = [
        f"{summary['verdict']}: {group['good']} of {group['offered']} offered requests were good"
        + (
            f" ({group['attainment']:.2%}; wanted {summary['slo']['attainment']:.2%})"
            if group["offered"]
            else ""
        )
        + (f", good: completed with {asked}" if asked else ", good: completed"),
        f"measured {summary['measured_seconds']:.1f} s after {summary['warmup']['seconds']:.1f} s of warm-up: "
        f"{group['completed']} completed, {group['failed']} failed, {group['unsent']} unsent, {group['open']} open; "
        f"{group['output_tokens_per_second']:.1f} tokens/s, goodput {group['goodput']:.2f}/s",
    ]
    for name, values in group["latency"].items():
        if values["count"]:
            told.append(
                f"{name}: P50 {_ms(values['p50'])}, P95 {_ms(values['p95'])}, P99 {_ms(values['p99'])} of {values['count']}"
            )
    if summary["exit_code"] == NO_REQUESTS:
        told.append("not one measured request ended; nothing was measured")
        if not group["offered"] and summary["warmup"].get("requests"):
            told.append(
                f"all {summary['warmup']['requests']} requests were warm-up: give a shorter --warmup or a longer -t"
            )
    told += [f"void: {reason}" for reason in summary["void_reasons"]]
    return told


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
