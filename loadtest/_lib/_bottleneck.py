"""Was the client the bottleneck? What client.jsonl says of the measured time, held against the limits.

Not here: the samples (``_client_watch``), the limits and their reasons (``_limits``).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from loadtest._lib._exact import Exact
from loadtest._lib._limits import Limits

#: So few outliers are no pattern, however short the run was.
FEW = 3
_MASTER = "master"


def read(folder: Path, began: float, stopped: float, limits: Limits) -> dict[str, Any]:
    """For the summary: by process, and the worst of them in front. began, stopped: the measured time, Unix seconds.

    cpu_over: share of the seconds above the limit. delays_over: timers above it, of ``delays``. A master only collects
    and is not judged. Null where there is no sample. Raises OSError.
    """
    cpu: defaultdict[str, list[float]] = defaultdict(list)
    delays: defaultdict[str, list[float]] = defaultdict(list)
    with (folder / "client.jsonl").open("rb") as lines:
        for line in lines:
            try:
                sample = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            # A sample tells of the second that it ends.
            if began <= sample["at"] - 0.5 <= stopped and sample["worker"] != _MASTER:
                cpu[sample["worker"]].append(sample["cpu"])
                delays[sample["worker"]] += [delay / 1000 for delay in sample["delays"]]
    workers = {name: _worker(cpu[name], delays[name], limits) for name in sorted(cpu)}
    return {
        "lag_p99": None,
        **{key: _worst(workers, key) for key in ("delay_p99", "cpu_max", "cpu_mean", "cpu_over")},
        "limits": limits.as_dict(),
        "workers": workers,
    }


def _worker(cpu: list[float], delays: list[float], limits: Limits) -> dict[str, Any]:
    exact = Exact()
    exact.add_many(delays)
    over = sum(share > limits.cpu for share in cpu)
    return {
        "cpu_mean": sum(cpu) / len(cpu),
        "cpu_max": max(cpu),
        "cpu_over": over / len(cpu),
        "seconds_over": over,
        "delay_p99": exact.quantile(0.99),
        "delay_max": exact.max,
        "delays_over": sum(delay > limits.delay for delay in delays),
        "delays": len(delays),
    }


def _worst(workers: dict[str, dict[str, Any]], key: str) -> float | None:
    return max((worker[key] for worker in workers.values() if worker[key] is not None), default=None)


def reasons(client: dict[str, Any], limits: Limits, late: int, sent: int, too_slow: int = 0) -> list[str]:
    """Why the run says nothing of the server, each with a cure; empty if it does.

    late: requests over the limit; too_slow: those that this client had not begun when the time was up.
    """
    found = []
    if too_slow > FEW and too_slow > (sent + too_slow) / 100:
        found.append(
            f"unsent: {too_slow} of {sent + too_slow} requests were due and never begun by the client; take more "
            "--processes or a lower rate"
        )
    if late > FEW and late > sent / 100:
        found.append(
            f"schedule lag: {late} of {sent} requests were sent over {limits.lag * 1000:g} ms late; take more --processes "
            "or a lower rate"
        )
    for name, worker in client["workers"].items():
        if worker["delays_over"] > FEW and worker["delays_over"] > worker["delays"] / 100:
            found.append(
                f"event loop of worker {name}: {worker['delays_over']} of {worker['delays']} timers were over "
                f"{limits.delay * 1000:g} ms late; take more --processes, or a machine that does less besides"
            )
        if worker["seconds_over"] > FEW and worker["cpu_over"] > limits.cpu_share:
            found.append(
                f"CPU of worker {name}: above {limits.cpu:g} of a core in {worker['cpu_over']:.0%} of the seconds; take "
                "more --processes"
            )
    return found
