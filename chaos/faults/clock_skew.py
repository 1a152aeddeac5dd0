"""The clock of one process is wrong: its timestamps, timeouts and certificates, while all others agree.

Only a process that was started with libfaketime (Debian package libfaketime) can be told another time while it runs::

    LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 FAKETIME_TIMESTAMP_FILE=/run/skew \\
      FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 exaserve …      # with "+0" in /run/skew

A time namespace shifts monotonic and boot time only, and setting the machine's clock would be everybody's fault. Go
programs (Prometheus) do not ask libc for the time, so that nothing of this reaches them.
"""

from __future__ import annotations

import email.utils
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from pydantic import Field

from chaos import steps
from chaos.engines.signals import processes
from chaos.fault import Engine, Fault, Parameters, Plan, Proof, Refused, Target


class SkewParameters(Parameters):
    seconds: float = Field(
        300.0, ge=-86_400, le=86_400, description="how far its clock is ahead (s; negative: behind)"
    )


class Faketime(Engine):
    """The file that libfaketime reads in the process."""

    name = "faketime"
    how = "writes another time into the file that the process's libfaketime reads"
    prove_within = 15.0

    def refusal(self, target: Target, p: Any) -> str | None:
        if abs(p.seconds) < 2:
            return "a skew under 2 s can't be measured (HTTP dates have whole seconds)"
        if target.remote:
            return "only for processes on this machine"
        try:
            _file(target)
            _clock(target)
        except Refused as error:
            return str(error)
        return None

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        path, new = _file(target), f"{p.seconds:+g}"
        old = path.read_text() if path.exists() else "+0"
        undo = steps.write(str(path), old, only_if=new)
        return Plan([steps.write(str(path), new)], [undo], claims=(f"file:{path}",))

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        skew = _clock(target) - time.time()
        return Proof(abs(skew - p.seconds) < 2.0, f"its clock is {skew:+.0f} s off", skew)


def _file(target: Target) -> Path:
    """The file of FAKETIME_TIMESTAMP_FILE. Raises Refused."""
    who = processes(target)[0]
    try:
        environ = psutil.Process(who["pid"]).environ()
    except psutil.Error:
        environ = {}
    path = environ.get("FAKETIME_TIMESTAMP_FILE", "")
    if "libfaketime" not in environ.get("LD_PRELOAD", "") or not path:
        raise Refused(
            f"{target.name} (process {who['pid']}) was not started with libfaketime (LD_PRELOAD and "
            "FAKETIME_TIMESTAMP_FILE), and the clock of one running process can't be changed otherwise: a time "
            "namespace shifts monotonic and boot time only"
        )
    return Path(path)


def _clock(target: Target) -> float:
    """Unix time as the process tells it, from the Date of an answer, in whole seconds. Raises Refused."""
    url = target.replica.url if target.replica is not None else target.place.addresses.get("admin", "")
    try:
        answer = httpx.get(
            f"{url}/{'health' if target.replica is not None else 'livez'}", timeout=3.0, trust_env=False
        )
        return email.utils.parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5
    except KeyError:
        raise Refused(
            f"{target.name} tells no Date in its answers, so the skew could not be proven"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Refused(f"{url} can't be read: {error or type(error).__name__}") from None


FAULT = Fault(
    name="clock_skew",
    kind="control",
    summary="the clock of one process (router or a replica) is wrong",
    engines=(Faketime(),),
    parameters=SkewParameters,
    targets=("router", "replica"),
)
