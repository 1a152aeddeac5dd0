"""A replica dies in the middle of its answers: clients have had a success code and some tokens, then nothing.

A simulated replica cuts streams for the whole duration; any other is killed while a stream of ours runs on it, which is
over at once (whoever supervises it starts it again).
"""

from __future__ import annotations

import time
from typing import Any

from pydantic import Field

from chaos import ask
from chaos.engines import sim
from chaos.engines.signals import Kill
from chaos.fault import Fault, Parameters, Proof, Refused, Target


class CutParameters(Parameters):
    after_tokens: int = Field(3, ge=1, le=100_000, description="tokens of a stream after which it is cut")
    probability: float = Field(
        1.0, gt=0, le=1, description="share of the streams (0-1); simulated replicas only"
    )


class KillInStream(Kill):
    """Killed once our own stream has had its tokens, which is also the proof: the stream broke."""

    name = "kill"
    how = "SIGKILL to its listening process while a stream of ours runs on it"

    def refusal(self, target: Target, p: Any) -> str | None:
        if p.probability < 1:
            return "a killed replica cuts all of its streams; probability needs a simulated one"
        return super().refusal(target, p)

    def before(self, target: Target, p: Any) -> Any:
        assert target.replica is not None
        url = target.replica.url
        answer = ask.in_background(url, ask.model(url), p.after_tokens + 512, 60.0)
        end = time.monotonic() + 30
        while len(answer.arrivals) < p.after_tokens:
            if answer.over or time.monotonic() >= end:
                raise Refused(
                    f"{target.name} gave {len(answer.arrivals)} tokens of {p.after_tokens} ({answer.error or 'no end'}); "
                    "nothing was done"
                )
            time.sleep(0.005)
        return super().before(target, p), answer

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        pids, answer = before
        gone = super().prove(target, p, pids)
        if not gone.proven or not answer.over:
            return Proof(False, f"{gone.measured}; its stream {'has ended' if answer.over else 'still runs'}")
        cut = not answer.done
        told = f"{gone.measured}; a stream broke after {len(answer.arrivals)} tokens"
        return Proof(cut, told if cut else "the stream had ended before", float(len(answer.arrivals)))


def _is_cut(target: Target, p: Any, before: Any) -> Proof:
    del before
    assert target.replica is not None
    url = target.replica.url
    name, cut, tokens = ask.model(url), 0, 0
    for _ in range(3):
        answer = ask.stream(url, name, p.after_tokens + 64, 3.0)
        if (
            answer.status == 200
            and answer.arrivals
            and not answer.done
            and not answer.error.startswith("more than")
        ):
            cut, tokens = cut + 1, len(answer.arrivals)
    told = f"{cut} of 3 streams broke" + (f", the last after {tokens} tokens" if cut else "")
    return Proof(cut == 3 if p.probability >= 1 else cut > 0, told, float(cut))


FAULT = Fault(
    name="replica_cut",
    kind="replica",
    summary="the replica dies in the middle of its answers: streams end without an end",
    engines=(
        sim.Simulated(
            "die_mid_stream",
            lambda p: {"after_tokens": p.after_tokens, "probability": p.probability},
            _is_cut,
            prove_within=15.0,
        ),
        KillInStream(),
    ),
    parameters=CutParameters,
)
