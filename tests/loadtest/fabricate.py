"""Run folders with known numbers, written without any load: what reports and gates are held to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from loadtest._lib import _run, _summary
from loadtest._lib._limits import Limits
from loadtest._lib._objectives import Objectives
from loadtest._lib._record import Record

#: Unix seconds at which fabricated runs begin.
START = 1_790_000_000.0


def record(number: int, **keys: Any) -> Record:
    """A completed chat request of the measured phase, due each 100 ms: TTFT 0.2 s, then 9 gaps of 20 ms."""
    due = keys.pop("due", START + 10 + number / 10)
    ttft = keys.pop("ttft", 0.2)
    gaps = keys.pop("gaps", [20.0] * 9)
    e2e = ttft + sum(gaps) / 1000
    told: dict[str, Any] = {
        "worker": 0,
        "number": number,
        "profile": "chat",
        "phase": "measured",
        "outcome": "ok",
        "due": due,
        "sent": due + 0.001,
        "first": due + ttft,
        "last": due + e2e,
        "ended": due + e2e,
        "ttft": ttft,
        "e2e": e2e,
        "tpot": sum(gaps) / 1000 / len(gaps) if gaps else None,
        "gaps": gaps,
        "chunks": len(gaps) + 1,
        "input_tokens": 30,
        "output_tokens": len(gaps) + 1,
        "status": 200,
        "replica": f"replica-{number % 3}",
        "finish_reason": "stop",
    }
    return Record(**{**told, **keys})


def failed(number: int, reason: str, detail: str, **keys: Any) -> Record:
    """A request that was sent and failed after 50 ms."""
    ok = record(number, **({"due": keys.pop("due")} if "due" in keys else {}))
    nothing = ("first", "last", "ttft", "e2e", "tpot", "input_tokens", "output_tokens", "finish_reason")
    told: dict[str, Any] = {**dict.fromkeys(nothing), "gaps": [], "chunks": 0, "ended": (ok.sent or 0) + 0.05}
    return replace(ok, **{**told, "outcome": "failed", "reason": reason, "detail": detail, **keys})


def folder(
    path: Path,
    records: Iterable[Record],
    *,
    seconds: float = 100.0,
    summary: bool = True,
    samples: Callable[[int], dict[str, Any]] | None = None,
    **keys: Any,
) -> Path:
    """A run of ``seconds`` after 10 s of warm-up. keys: over those of run.json. samples: client.jsonl by second."""
    path.mkdir(parents=True)
    run = _run.Run(
        name=path.name,
        profile="chat",
        host="http://127.0.0.1:8000",
        model="tiny",
        seed=7,
        started=START,
        folder=str(path),
        slo=Objectives(ttft=1.0, itl=0.1).as_dict(),
        limits=Limits().as_dict(),
        warmup={"seconds": 10.0, "rule": "--warmup 10"},
        warmup_until=START + 10,
        stopping=START + 10 + seconds,
        ended=START + 10 + seconds + 1,
        arrivals={"kind": "constant", "rate": 10.0},
        settings={"max_tokens": "10", "slo": "ttft=1s,itl=100ms"},
        versions={"exaserve": "0.1.0"},
        machine={"cpus": 2, "system": "Linux"},
    )
    content = asdict(run)
    content.pop("notes")
    (path / "run.json").write_text(json.dumps({**content, **keys}))
    with (path / "requests.jsonl").open("w") as lines:
        lines.writelines(json.dumps(asdict(one)) + "\n" for one in records)
    sample = samples or (lambda second: {"cpu": 0.2, "delays": [1.0] * 10})
    with (path / "client.jsonl").open("w") as lines:
        for second in range(1, int(seconds) + 12):
            told = {"at": START + second, "worker": "0", "pid": 1, "lag_max": 0.001, **sample(second)}
            lines.write(json.dumps(told) + "\n")
    if summary:
        _summary.write(path)
    return path


def lively(count: int, seed: int, slower: float = 1.0) -> Iterator[Record]:
    """Requests of three profiles, four replicas and some intents, with failures: for looking at."""
    draw = random.Random(seed)
    rate = count / 110
    for number in range(count):
        due = START + number / rate
        phase = "warmup" if due < START + 10 else "measured"
        profile = draw.choices(("chat", "code", "long_document"), (6, 3, 1))[0]
        median = {"chat": 0.12, "code": 0.18, "long_document": 0.9}[profile] * slower
        busy = 2.5 if START + 55 < due < START + 65 else 1.0
        ttft = round(draw.lognormvariate(0, 0.35) * median * busy, 6)
        gaps = [round(draw.lognormvariate(3.0, 0.25) * slower, 3) for _ in range(draw.randint(8, 60))]
        keys: dict[str, Any] = {
            "due": due,
            "sent": due + abs(draw.gauss(0, 0.001)),
            "phase": phase,
            "profile": profile,
            "replica": f"replica-{draw.choices(range(4), (4, 4, 4, 2))[0]}",
            "intent": draw.choice(("billing", "refund", "技术支持", None)),
            "ttft": ttft,
            "gaps": gaps,
        }
        if draw.random() < 0.012:
            kind, words = draw.choice(
                (
                    ("status_5xx", "HTTP 503: no_replica: no replica is ready"),
                    ("cut", "cut stream: ended without [DONE]"),
                    ("timeout", "no token for 120 s"),
                )
            )
            keys = {k: v for k, v in keys.items() if k not in ("ttft", "gaps", "due")}
            yield failed(number, kind, words, due=due, ended=due + 0.4, **keys)
        else:
            yield record(number, **keys)
