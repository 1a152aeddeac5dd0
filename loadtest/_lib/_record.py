"""One request as it is kept: a JSON object a line in ``requests.jsonl`` of a run's folder.

Written by whoever sends, read by summaries, reports, gates and experiments (``chaos/`` reads the file, not this
module). Times are Unix seconds (one clock reading at the start of the process, then a monotonic clock), spans are
seconds, gaps milliseconds. A key whose value is unknown is null.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Raised when a key changes its meaning; readers refuse what they don't know.
VERSION = 1
#: How a request ended. unsent: it was due and never sent. open: it had not ended when the run did.
OUTCOMES = ("ok", "failed", "unsent", "open")
#: Why it failed, as in exporters/catalog/loadtest.py; ``detail`` has the words.
REASONS = (
    "status_4xx",
    "status_429",
    "status_5xx",
    "connect",
    "reset",
    "cut",
    "timeout",
    "empty",
    "error",
    "other",
)


#: The reason of an unsent request that this client was too slow to begin; others were kept back on purpose.
TOO_SLOW = "client"


@dataclass(slots=True)
class Record:
    """due: when it should have been sent (open loop), else null. first, last: tokens, the role-only chunk is none.

    ttft and e2e count from ``due`` where there is one, else from ``sent``; tpot = (last - first) / (n - 1) with n from
    the server's usage; gaps: between chunks with tokens. ttft, e2e, tpot are null where it did not get that far; those
    of failed requests are kept for the curious and are in no percentile. retry_after: seconds of that header.
    step: which stage of a schedule (0, 1, …) or measured step of a search it was due in.
    """

    worker: int
    number: int
    profile: str
    phase: str
    outcome: str
    due: float | None = None
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    gaps: list[float] = field(default_factory=list)
    chunks: int = 0
    bytes: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    status: int | None = None
    replica: str | None = None
    pool: str | None = None
    finish_reason: str | None = None
    reason: str | None = None
    detail: str | None = None
    retry_after: float | None = None
    session: str | None = None
    intent: str | None = None
    request_id: str | None = None
    step: int | None = None
