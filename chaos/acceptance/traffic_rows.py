"""Rows about requests that are too long, and too many."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx

from chaos import ask
from chaos.acceptance.bench import OBJECTIVE, Bench
from chaos.acceptance.configuration import changed
from chaos.acceptance.result import Result
from chaos.fault import ActivityFailed
from chaos.run.figures import is_good, is_refused

#: Length of answers that keeps the rate of a full fleet low enough for a small machine, and how the peak is sought.
_PEAK_TOKENS, _SEEK_SECONDS, _PEAK_SECONDS = 64, 10.0, 15.0
#: A replica has 16 seats (engine.max_num_seqs); who waits is answered within a second, or refused.
ADMITTING = {"chat": {"max_in_flight": 16, "max_waiting": 16, "max_wait": 1.0}}


def overlong(bench: Bench, result: Result) -> None:
    replica = next(r for r in bench.place.replicas() if r.name == bench.replica())
    before = {r.name: r.pid for r in bench.place.replicas()}
    name, limit = _model(bench.router)
    result.done = (
        f"a prompt of {limit * 3} words and an answer of {limit + 1} tokens, to a model of {limit} tokens"
    )
    asked = []
    for what, body in (
        ("a prompt that is too long", {"messages": [{"role": "user", "content": "word " * (limit * 3)}]}),
        (
            "an answer that is too long",
            {"messages": [{"role": "user", "content": "Count."}], "max_tokens": limit + 1},
        ),
    ):
        status, message, seconds = _post(bench.router, {"model": name, **body})
        clear = (
            status == 400 and str(limit) in message and bool(re.search(r"token|max_tokens|context", message))
        )
        asked.append({"what": what, "status": status, "message": message, "seconds": seconds})
        result.check(
            f"{what}: a 400 that names the field and the limit of {limit}, within 1 s",
            f"{status} after {seconds * 1000:.0f} ms: {message[:240]}",
            clear and seconds < 1.0,
        )
    bench.keep(result, "answers.json", asked)
    bench.say("a flood of them, beside usual requests")
    found = bench.under_load(result, "traffic_long", "fleet", 8.0, {"rate": 5, "words": limit * 10})
    usual, good = int(found.number("failed_requests")), found.values["good_during"] or 0.0
    result.check(
        "usual requests beside a flood of them",
        f"{usual} failed, {good * 100:.1f} % good",
        not usual and good >= 0.99,
    )
    after = {r.name: r.pid for r in bench.place.replicas()}
    serving = all(r.in_rotation for r in bench.place.replicas())
    result.check(
        "every replica lives on and serves",
        "all do"
        if after == before and serving
        else f"{replica.name} and others: {before} before, {after} after",
        after == before and serving,
    )


def peak(bench: Bench, result: Result) -> None:
    if not bench.own:
        _peak(bench, result)
        return
    with changed(bench, result, ADMITTING):
        result.notes.append(f"pools of its exaserve.yaml: {ADMITTING}")
        _peak(bench, result)


def _peak(bench: Bench, result: Result) -> None:
    guess = _guess(bench)
    bench.say(f"how much the fleet takes: {guess:.0f} requests/s for {_SEEK_SECONDS:g} s")
    seek = _run(bench, f"{result.key}/capacity", guess, _SEEK_SECONDS)
    # The first seconds fill what is empty; the last ones drain.
    first = min(r["due"] for r in seek)
    inside = [r for r in seek if r["outcome"] == "ok" and first + 3 <= r["ended"] < first + _SEEK_SECONDS]
    capacity = len(inside) / (_SEEK_SECONDS - 3)
    if capacity < 1:
        raise ActivityFailed("the fleet answered less than a request a second")
    rate = 1.5 * capacity
    result.done = f"{rate:.1f} requests/s of {_PEAK_TOKENS} tokens for {_PEAK_SECONDS:g} s; the fleet answers {capacity:.1f}/s at most"
    bench.say(
        f"1.5 times as many as the fleet takes ({capacity:.1f}/s): {rate:.1f} requests/s for {_PEAK_SECONDS:g} s"
    )
    records = _run(bench, f"{result.key}/peak", rate, _PEAK_SECONDS)
    refused = [r for r in records if is_refused(r)]
    admitted = [r for r in records if not is_refused(r) and r["outcome"] != "unsent"]
    good = sum(is_good(r, OBJECTIVE) for r in admitted)
    unsent = sum(r["outcome"] == "unsent" for r in records)
    share = good / len(admitted) if admitted else 0.0
    result.evidence += [f"{result.key}/{part}/requests.jsonl" for part in ("capacity", "peak")]
    result.figures |= {
        "capacity": capacity,
        "rate": rate,
        "requests": len(records),
        "admitted": len(admitted),
        "good_admitted": share,
        "refused": len(refused),
        "unsent": unsent,
    }
    result.check(
        f"at least 99 % of the admitted requests are answered, first token within {OBJECTIVE.ttft:g} s",
        f"{share * 100:.2f} % of {len(admitted)}; slowest first token {_slowest(admitted)}",
        share >= 0.99,
    )
    without = sum(r.get("retry_after") is None for r in refused)
    result.check(
        "the others are refused with Retry-After",
        f"{len(refused)} of {len(records)} refused, {without} of them without",
        bool(refused) and not without,
    )
    result.check("all were sent when they were due", f"{unsent} were not sent", not unsent)
    ready = bench.wait_ready()
    result.check(
        "every replica is in rotation",
        "all are" if ready is not None else "not within 90 s",
        ready is not None,
    )
    if share < 0.99:
        result.notes.append(
            "Of a pool, max_in_flight (per replica, at most engine.max_num_seqs), max_waiting and max_wait say how many "
            "requests are admitted: lower them until the slowest of those is inside the SLO."
        )


def _run(bench: Bench, key: str, rate: float, seconds: float) -> list[dict[str, Any]]:
    with bench.load(key, seconds, rate=rate, max_tokens=_PEAK_TOKENS) as load:
        end = time.monotonic() + seconds + 20
        while load.running and time.monotonic() < end:
            time.sleep(0.2)
        load.stop()
        records = [r for r in load.records() if r.get("due") is not None]
    if not records:
        raise ActivityFailed(f"the load sent nothing: {load.last_words()}")
    return records


def _guess(bench: Bench) -> float:
    """More than the fleet takes: what its replicas answer of single requests, times 16 seats each, and half again."""
    urls = [r.url for r in bench.place.replicas() if r.in_rotation]
    answer = ask.stream(urls[0], ask.model(urls[0]), 16, 20.0)
    gap = answer.seconds_per_token(time.monotonic())
    return min(150.0, 1.5 * 16 * len(urls) / max(0.05, gap * _PEAK_TOKENS))


def _slowest(records: list[dict[str, Any]]) -> str:
    times = [r["ttft"] for r in records if r.get("ttft") is not None]
    return f"{max(times):.2f} s" if times else "unknown"


def _model(router: str) -> tuple[str, int]:
    """Name and context in tokens of the model that the router offers. Raises ActivityFailed."""
    try:
        entry = (
            httpx.get(f"{router}/v1/models", timeout=5.0, trust_env=False)
            .raise_for_status()
            .json()["data"][0]
        )
        return str(entry["id"]), int(entry["max_model_len"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ActivityFailed(
            f"{router}/v1/models does not tell a model and its max_model_len: {error!r}"
        ) from None


def _post(router: str, body: dict[str, Any]) -> tuple[int, str, float]:
    began = time.monotonic()
    try:
        answer = httpx.post(f"{router}/v1/chat/completions", json=body, timeout=20.0, trust_env=False)
        try:
            message = str(answer.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = answer.text
        return answer.status_code, message, time.monotonic() - began
    except httpx.HTTPError as error:
        return 0, repr(error), time.monotonic() - began
