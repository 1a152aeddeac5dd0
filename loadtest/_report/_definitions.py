"""What every number of a report means: its name, unit and formula, in one place for page, Markdown and JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meaning:
    """title: for people. unit: s, /s, ratio, tok, tok/s or "" for a plain number. formula: how it is computed.

    better: "low" or "high" where that can be said of it, else "".
    """

    title: str
    unit: str
    formula: str
    better: str = ""


#: The latencies, in the order in which they are shown.
LATENCIES = {
    "ttft": Meaning(
        "TTFT",
        "s",
        "time to first token = arrival of the first token of any kind (content, reasoning, tool call; a chunk with a"
        " role alone has none) − when the request was due. In a closed loop, where nothing is due: − when it was sent.",
        "low",
    ),
    "itl": Meaning(
        "ITL",
        "s",
        "inter-token latency = each gap between two chunks with tokens of one stream, as it arrived; one value a gap,"
        " so long answers weigh more. See tokens per chunk: above 1, a gap is one between bundles.",
        "low",
    ),
    "tpot": Meaning(
        "TPOT",
        "s",
        "time per output token = (last token − first token) ÷ (n − 1), n being the output tokens of the server's own"
        " usage; one value a request. None without usage or with fewer than 2 tokens.",
        "low",
    ),
    "e2e": Meaning(
        "E2E",
        "s",
        "end to end = arrival of the last token − when the request was due (in a closed loop: − when it was sent)."
        " For an answer that is no stream, the end of the answer.",
        "low",
    ),
}
LAG = Meaning(
    "schedule lag",
    "s",
    "when a request was sent − when it was due; of the client's making. There is none in a closed loop.",
    "low",
)
QUANTILE = (
    "Quantiles are exact, by nearest rank: p99 of n values is the ⌈0.99 × n⌉-th smallest. They are of completed"
    " requests of the measured phase; failed ones have no latency, and count against the attainment."
)
#: Quantiles of summary.json, in the order in which they are shown.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}

#: Numbers of a group, in the order in which they are shown.
NUMBERS = {
    "offered": Meaning(
        "offered", "", "requests that were due by the schedule; in a closed loop, those a user came to"
    ),
    "started": Meaning("sent", "", "requests that were sent"),
    "completed": Meaning("completed", "", "requests answered whole and with content"),
    "good": Meaning("good", "", "completed requests that met every objective of the run"),
    "failed": Meaning("failed", "", "requests that were sent and did not complete"),
    "unsent": Meaning("never sent", "", "requests that were due and never sent; they count as bad"),
    "open": Meaning("still open", "", "requests that had not ended when the run did; they count as bad"),
    "attainment": Meaning(
        "SLO attainment", "ratio", "good ÷ offered; failed, never sent and open requests are bad", "high"
    ),
    "goodput": Meaning("goodput", "/s", "good requests ÷ seconds of the measured phase", "high"),
    "rate": Meaning(
        "throughput",
        "/s",
        "requests whose last token came inside the measured time ÷ its seconds; what came while the server emptied is left out",
        "high",
    ),
    "output_tokens_per_second": Meaning(
        "output tokens per second",
        "tok/s",
        "output tokens of completed requests that came inside the measured time ÷ its seconds; those of a stream are spread"
        " evenly over its chunks",
        "high",
    ),
    "input_tokens": Meaning(
        "input tokens", "tok", "prompt tokens of completed requests, by the server's usage"
    ),
    "output_tokens": Meaning(
        "output tokens", "tok", "completion tokens of completed requests, by the server's usage"
    ),
    "tokens_per_chunk": Meaning(
        "tokens per chunk",
        "",
        "output tokens ÷ chunks with tokens, of completed streams whose usage is known; 1: every token came alone",
    ),
    "tokens_per_gpu_hour": Meaning(
        "output tokens per GPU-hour",
        "tok",
        "output tokens per second × 3600 ÷ GPUs (`--gpus N`); nothing without that option",
        "high",
    ),
}

REASONS = {
    "status_4xx": "answered 4xx (not 429): the request itself was refused",
    "status_429": "answered 429: asked to come later",
    "status_5xx": "answered 5xx",
    "connect": "no connection",
    "reset": "the connection was closed before an answer",
    "cut": "the stream ended before its end: no finish_reason or no [DONE]",
    "timeout": "no end within --request-timeout",
    "empty": "ended without one token",
    "error": "an error inside a stream that began with 200",
    "other": "anything else",
}

VERDICTS = {
    "passed": "Passed",
    "missed": "Objectives missed",
    "void": "Void: says nothing about the service",
    "no_requests": "Nothing was measured",
    "all_failed": "Every request failed",
    "unfinished": "Unfinished",
}
