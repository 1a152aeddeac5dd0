"""Engines that are up and serve badly: stalled, answering with errors, queues that don't empty, preemption storms.

Made of the signals, so that every source has them; where the exporter watches (ExaServe's fleets) its judgement of a
stall counts, since it sees more signs of life than tokens. Outliers among replicas are ``thresholds.py``'s, a full KV
cache ``kv.py``'s.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record
from dashboards.rules.totals import MODEL_RUNNING, MODEL_WAITING
from dashboards.signals import (
    FIRST_TOKENS,
    GENERATION_TOKENS,
    LONG,
    PREEMPTIONS,
    PROMPT_TOKENS,
    QUEUE_TIME,
    RUNNING,
    Source,
    ratio,
)
from dashboards.sources import ray, vllm

FAILED = f"replica:exaserve_engine_errors:rate{LONG}"
FAILED_RATIO = f"replica:exaserve_engine_errors:ratio_rate{LONG}"
MODEL_QUEUE_TIME = f"model:exaserve_queue_seconds:mean{LONG}"
PREEMPTED_RATIO = f"replica:exaserve_preemptions:per_request{LONG}"

STALLED = "ExaServeEngineStalled"
ERRORS = "ExaServeEngineErrors"
QUEUE = "ExaServeQueueGrowing"
STORM = "ExaServePreemptionStorm"

#: Mean seconds of waiting in engines that users notice.
LONG_QUEUE = 2
#: Requests that began in 5 minutes, at least, for that mean to be worth a word.
LEAST_QUEUED = 20
#: Preemptions for each request that begins, above which engines mostly do work again.
MANY_PREEMPTIONS = 0.2

_REPLICA = "cluster, model, replica"
_ENGINES = {"vllm": vllm.NAMES, "ray": ray.NAMES}
_LINK = {"model": "{{ $labels.model }}", "replica": "{{ $labels.replica }}"}
_WHICH = "{{ $labels.replica }} ({{ $labels.model }})"


def _finished(source: Source, reasons: str) -> str:
    """Requests a second that ended with ``reasons``, a matcher's end: ``="error"``."""
    if source.name in _ENGINES:
        names = _ENGINES[source.name]
        rate = names.rate("request_success_total", LONG, f"{{finished_reason{reasons}}}")
        return f"sum by ({_REPLICA}) ({names.by_replica(rate)})"
    rate = f"rate(exaserve_engine_requests_finished_total{{reason{reasons}}}[{LONG}])"
    return f"sum by ({_REPLICA}) (max by ({_REPLICA}, rank, reason) ({rate}))"


def _stalled(source: Source) -> Alert:
    watched = source.name not in _ENGINES
    seconds = f"max by ({_REPLICA}) (exaserve_engine_stalled_seconds) > 60"
    silent = f"{RUNNING} > 0 and {GENERATION_TOKENS} == 0 and {PROMPT_TOKENS} == 0"
    since = "{{ $value | humanizeDuration }}" if watched else "a minute ({{ $value }} in its batch)"
    return Alert(
        STALLED,
        seconds if watched else silent,
        "warning",
        summary=f"{_WHICH} has requests and has done nothing for {since}",
        description="""
            Its page answers, its engine does not move: a collective that waits for a lost GPU or node, or a deadlock.
            Take a stack dump (`exaserve inspect`), then restart it; its requests are lost.
            """,
        wait="0s" if watched else "1m",
        keep_firing="30s",
        board="replica",
        variables=_LINK,
    )


def group(source: Source) -> Group:
    return Group(
        "engine_alerts",
        (
            Record(FAILED, _finished(source, '="error"')),
            Record(FAILED_RATIO, ratio(FAILED, _finished(source, '!="abort"'))),
            Record(
                MODEL_QUEUE_TIME,
                ratio(
                    f"sum by (cluster, model) ({QUEUE_TIME} * {FIRST_TOKENS})",
                    f"sum by (cluster, model) ({FIRST_TOKENS} and {QUEUE_TIME})",
                ),
            ),
            Record(PREEMPTED_RATIO, ratio(f"avg_over_time({PREEMPTIONS}[{LONG}])", FIRST_TOKENS)),
            _stalled(source),
            Alert(
                ERRORS,
                f"{FAILED_RATIO} > 0.05 and {FAILED} * 300 >= 5",
                "warning",
                summary=f"{_WHICH}: {{{{ $value | humanizePercentage }}}} of its requests end with an error",
                description="""
                    The engine itself gives up on them. Its log names the error; the first one counts. If it began with
                    an upgrade, take the upgrade back; if only this replica has it, restart it.
                    """,
                wait="1m",
                keep_firing="2m",
                board="replica",
                variables=_LINK,
            ),
            *_queue(),
            Alert(
                STORM,
                # 0.05 a second are 15 in the 5 minutes.
                f"{PREEMPTED_RATIO} > {MANY_PREEMPTIONS} and avg_over_time({PREEMPTIONS}[{LONG}]) >= 0.05",
                "warning",
                summary=f'{_WHICH} puts back {{{{ printf "%.2f" $value }}}} requests for each that begins',
                description="""
                    Its KV cache is too small for its batch: work is thrown away and done again, and streams pause. Lower
                    `engine.max_num_seqs`, give it more KV cache, or send long requests elsewhere.
                    """,
                wait="2m",
                keep_firing="2m",
                board="replica",
                variables=_LINK,
            ),
        ),
    )


def _queue() -> tuple[Alert, ...]:
    description = """
        The model's replicas get more than they can do, or do less than they could. See whether all of them are in
        rotation and none is slow; then add replicas or take load away.
        """
    return (
        Alert(
            QUEUE,
            # A mean over a handful says nothing: one long wait at night is nobody's queue.
            f"{MODEL_QUEUE_TIME} > {LONG_QUEUE}\n"
            f"and sum by (cluster, model) ({FIRST_TOKENS}) * 300 >= {LEAST_QUEUED}",
            "warning",
            summary="{{ $labels.model }}: requests wait {{ $value | humanizeDuration }} in the engines before they begin",
            description=description,
            wait="3m",
            keep_firing="2m",
            board="capacity",
            variables={"model": "{{ $labels.model }}"},
            labels={"condition": "queue_time"},
        ),
        Alert(
            QUEUE,
            f"{MODEL_WAITING} > {MODEL_RUNNING} and {MODEL_WAITING} > 10",
            "warning",
            summary="{{ $labels.model }}: {{ $value }} requests wait in the engines, more than run",
            description=description,
            wait="5m",
            keep_firing="2m",
            board="capacity",
            variables={"model": "{{ $labels.model }}"},
            labels={"condition": "waiting"},
        ),
    )
