"""What a run comes to: its summary, made from the folder alone, at the end of the run or ever after.

Every figure is of the **measured** phase: requests that were due (closed loop: sent) at ``warmup_until`` or later. Spans
are seconds; quantiles are exact, by nearest rank (``_exact``).

================================  ========================================================================================
offered                           requests that were due; in a closed loop, those that a user came to
started                           of them, those that were sent
completed, failed, unsent, open   what became of them; open: not ended when the run did
good                              completed, and every objective of the run kept
attainment                        good / offered; null without an offered request
goodput                           good / measured_seconds
rate                              requests whose last token came inside the measured time / measured_seconds
output_tokens_per_second          tokens of completed requests that came inside the measured time / measured_seconds; those
                                  of a stream are spread evenly over its chunks, each counts when it came
input_tokens, output_tokens       sums over the completed requests, from the server's usage
tokens_per_gpu_hour               output_tokens_per_second × 3600 / ``--gpus``; null without it
tokens_per_chunk                  output tokens / chunks, of completed streams whose usage is known
latency                           of completed requests; ttft and e2e from when they were due (closed loop: sent), itl each
                                  gap between chunks, tpot (last − first) / (output tokens − 1) of each stream
lag                               how much later than due a request was sent; count 0 in a closed loop
================================  ========================================================================================

measured_seconds runs from ``warmup_until`` to when the time was up. Requests that end after it count as what they came
to, but not into rate and tokens per second, which an emptying server would flatter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from loadtest._lib import _bottleneck, _run, _verdict
from loadtest._lib._exact import Exact
from loadtest._lib._limits import Limits
from loadtest._lib._objectives import Objectives
from loadtest._lib._record import TOO_SLOW, Record

VERSION = 1
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_record = msgspec.json.Decoder(Record)


def write(folder: Path) -> dict[str, Any]:
    """Make the summary and put it into the folder as summary.json. Raises OSError, ValueError."""
    summary = make(folder)
    _run.write_whole(folder / "summary.json", summary)
    return summary


def make(folder: Path) -> dict[str, Any]:
    """The summary. Raises OSError where files are missing, ValueError where run.json is none of this version."""
    run = read_run(folder)
    began = float(run["warmup_until"])
    # A run that was killed has neither; it is known up to its last record.
    stopped = float(run.get("stopping") or run.get("ended") or _last_moment(folder) or began)
    limits = Limits(**run["limits"])
    summing = _Summing(Objectives(**run["slo"]), began, max(began, stopped), limits.lag)
    for record in read_records(folder):
        summing.add(record)
    everything = summing.all()
    client = _bottleneck.read(folder, began, stopped, limits)
    client["lag_p99"] = everything.lag.quantile(0.99)
    void = _bottleneck.reasons(client, limits, summing.late, everything.lag.count, summing.too_slow)
    if run.get("lost_workers"):
        void.append(
            f"lost: not all records of worker {', '.join(map(str, run['lost_workers']))} have arrived"
        )
    if run.get("incomplete"):
        void.append("lost: the folder could not be written to the end")
    gpus = run.get("gpus")
    all_ = everything.summary(summing.seconds, gpus)
    exit_code = _verdict.code(
        all_["completed"], all_["failed"], all_["attainment"], run["attainment"], bool(void)
    )
    search = run.get("arrivals", {}).get("search")
    if search and exit_code not in (_verdict.NO_REQUESTS, _verdict.ALL_FAILED):
        exit_code = int(search["exit_code"])  # single steps of a search must miss
    return {
        "version": VERSION,
        "run": run["name"],
        "profile": run["profile"],
        "void": bool(void),
        "void_reasons": void,
        "verdict": _verdict.NAMES[exit_code],
        "exit_code": exit_code,
        "started": run["started"],
        "ended": run.get("ended"),
        "measured_seconds": summing.seconds,
        "warmup": run["warmup"] | {"requests": summing.warmup},
        "slo": run["slo"] | {"attainment": run["attainment"]},
        "gpus": gpus,
        "client": client,
        "all": all_,
        **{
            kind: {name: group.summary(summing.seconds, gpus) for name, group in sorted(groups.items())}
            for kind, groups in summing.groups.items()
        },
    }


def read_run(folder: Path) -> dict[str, Any]:
    """run.json. Raises OSError, ValueError."""
    try:
        run = msgspec.json.decode((folder / "run.json").read_bytes())
    except msgspec.DecodeError as error:
        raise ValueError(f"{folder / 'run.json'}: no JSON: {error}") from None
    if not isinstance(run, dict) or run.get("version") != _run.VERSION:
        raise ValueError(f"{folder / 'run.json'}: not of version {_run.VERSION}")
    return run


def _last_moment(folder: Path) -> float | None:
    """Unix seconds at which the last request ended; None without any."""
    return max((record.ended for record in read_records(folder) if record.ended is not None), default=None)


def read_records(folder: Path) -> Iterator[Record]:
    """Records in the order in which they ended (of each worker). A line that was cut off is skipped. Raises OSError."""
    with (folder / "requests.jsonl").open("rb") as lines:
        for line in lines:
            try:
                yield _record.decode(line)
            except msgspec.DecodeError:
                continue


class Group:
    """Sums over some of a run's requests."""

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.reasons: defaultdict[str, int] = defaultdict(int)
        self.started = self.good = self.inside = 0
        self.input_tokens = self.output_tokens = 0
        self.tokens_inside = 0.0
        self.stream_tokens = self.chunks = 0
        self.latency = {name: Exact() for name in ("ttft", "itl", "tpot", "e2e")}
        self.lag = Exact()

    def add(self, record: Record, good: bool) -> None:
        """A request of the measured phase."""
        self.outcomes[record.outcome] += 1
        self.started += record.sent is not None
        self.good += good
        if record.due is not None and record.sent is not None:
            self.lag.add(record.sent - record.due)
        if record.outcome == "failed":
            self.reasons[record.reason or "other"] += 1
        if record.outcome != "ok":
            return
        for name, value in (("ttft", record.ttft), ("tpot", record.tpot), ("e2e", record.e2e)):
            if value is not None:
                self.latency[name].add(value)
        self.latency["itl"].add_many([gap / 1000 for gap in record.gaps])
        self.input_tokens += record.input_tokens or 0
        self.output_tokens += record.output_tokens or 0
        if record.chunks and record.output_tokens is not None:
            self.stream_tokens += record.output_tokens
            self.chunks += record.chunks

    def add_inside(self, record: Record, began: float, stopped: float) -> None:
        """A completed request of any phase: what of it came inside the measured time."""
        if record.last is None:
            return
        self.inside += began <= record.last <= stopped
        tokens = record.output_tokens or 0
        if record.first is None or not record.gaps:
            self.tokens_inside += tokens * (began <= record.last <= stopped)
        elif began <= record.first and record.last <= stopped:
            self.tokens_inside += tokens
        elif record.last >= began and record.first <= stopped:
            times = accumulate((gap / 1000 for gap in record.gaps), initial=record.first)
            arrived = sum(began <= at <= stopped for at in times)
            self.tokens_inside += tokens * arrived / (len(record.gaps) + 1)

    def merge(self, other: Group) -> None:
        for outcome, n in other.outcomes.items():
            self.outcomes[outcome] += n
        for reason, n in other.reasons.items():
            self.reasons[reason] += n
        for name in (
            "started",
            "good",
            "inside",
            "input_tokens",
            "output_tokens",
            "tokens_inside",
            "stream_tokens",
            "chunks",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, exact in other.latency.items():
            self.latency[name].merge(exact)
        self.lag.merge(other.lag)

    def summary(self, seconds: float, gpus: float | None) -> dict[str, Any]:
        offered = sum(self.outcomes.values())
        per_second = self.tokens_inside / seconds if seconds else 0.0
        return {
            "offered": offered,
            "started": self.started,
            "completed": self.outcomes["ok"],
            "good": self.good,
            "failed": self.outcomes["failed"],
            "unsent": self.outcomes["unsent"],
            "open": self.outcomes["open"],
            "reasons": dict(sorted(self.reasons.items())),
            "attainment": self.good / offered if offered else None,
            "goodput": self.good / seconds if seconds else 0.0,
            "rate": self.inside / seconds if seconds else 0.0,
            "output_tokens_per_second": per_second,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "tokens_per_gpu_hour": per_second * 3600 / gpus if gpus else None,
            "tokens_per_chunk": self.stream_tokens / self.chunks if self.chunks else None,
            "latency": {name: told(exact) for name, exact in self.latency.items()},
            "lag": told(self.lag),
        }


class _Summing:
    def __init__(self, slo: Objectives, began: float, stopped: float, lag_limit: float) -> None:
        self._slo, self._began, self._stopped, self._lag_limit = slo, began, stopped, lag_limit
        self.seconds = stopped - began
        self.warmup = self.late = self.too_slow = 0
        self.groups: dict[str, defaultdict[str, Group]] = {
            kind: defaultdict(Group) for kind in ("profiles", "intents", "pools", "replicas")
        }
        self._all: Group | None = None

    def add(self, record: Record) -> None:
        names = (
            ("profiles", record.profile),
            ("intents", record.intent),
            ("pools", record.pool),
            ("replicas", record.replica),
        )
        groups = [self.groups[kind][name] for kind, name in names if name is not None]
        if record.outcome == "ok":
            for group in groups:
                group.add_inside(record, self._began, self._stopped)
        if record.phase != "measured":
            self.warmup += 1
            return
        if record.due is not None and record.sent is not None and record.sent - record.due > self._lag_limit:
            self.late += 1
        self.too_slow += record.outcome == "unsent" and record.reason == TOO_SLOW
        good = self._slo.judge(record)
        for group in groups:
            group.add(record, good)

    def all(self) -> Group:
        """Every profile together; each request has one."""
        if self._all is None:
            self._all = Group()
            for group in self.groups["profiles"].values():
                self._all.merge(group)
        return self._all


def told(exact: Exact) -> dict[str, Any]:
    """Count, mean, min, max and quantiles; null where there is no value."""
    values = exact.quantiles(tuple(QUANTILES.values()))
    return {
        "count": exact.count,
        "mean": exact.mean,
        "min": exact.min,
        "max": exact.max,
        **dict(zip(QUANTILES, values, strict=True)),
    }
