"""A client that is too slow is never taken for a slow server, and a slow server never for a slow client."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from loadtest._lib import _bottleneck, _verdict
from loadtest._lib._client_watch import Watch
from loadtest._lib._holder import Holder
from loadtest._lib._limits import Limits
from loadtest._lib._run import Run

LIMITS = Limits()


def watch() -> Watch:
    return Watch("0", None, None, lambda sample: None)


def sampled(folder: Path, delays: list[float]) -> dict[str, object]:
    sample = {"at": 10.0, "worker": "0", "cpu": 0.1, "delays": delays}
    (folder / "client.jsonl").write_bytes(msgspec.json.encode(sample) + b"\n")
    return _bottleneck.read(folder, 0.0, 20.0, LIMITS)


def test_a_timer_on_time_is_one_tick() -> None:
    watching = watch()
    assert watching._ticked(5.0, 5.004) == pytest.approx(5.1)
    assert watching._delays == [pytest.approx(4.0)]


def test_a_process_that_stood_still_was_late_with_every_timer_of_that_time(tmp_path: Path) -> None:
    watching = watch()
    assert watching._ticked(5.0, 7.05) == pytest.approx(7.1)
    assert len(watching._delays) == 21
    assert watching._delays[0] == pytest.approx(2050)
    client = sampled(tmp_path, watching._delays)
    assert _bottleneck.reasons(client, LIMITS, late=0, sent=100)[0].startswith(
        "event loop of worker 0: 20 of 21 timers were over 50 ms late"
    )


def test_an_endless_stall_is_told_in_bounded_memory() -> None:
    watching = watch()
    assert watching._ticked(0.0, 7200.0) > 7200.0
    assert len(watching._delays) == 36_000


def test_requests_that_the_client_never_began_make_a_run_void(tmp_path: Path) -> None:
    client = sampled(tmp_path, [1.0] * 10)
    assert _bottleneck.reasons(client, LIMITS, 0, sent=96, too_slow=3) == []
    assert _bottleneck.reasons(client, LIMITS, 0, sent=96, too_slow=4) == [
        "unsent: 4 of 100 requests were due and never begun by the client; take more --processes or a lower rate"
    ]


def test_a_run_of_warm_up_alone_says_how_to_measure() -> None:
    group: dict[str, object] = {"offered": 0, "good": 0, "attainment": None, "completed": 0, "failed": 0, "unsent": 0, "open": 0,
             "output_tokens_per_second": 0.0, "goodput": 0.0, "latency": {}}  # fmt: skip
    summary = {"all": group, "slo": {"attainment": 0.99}, "verdict": "no_requests", "exit_code": 4, "void_reasons": [],
               "measured_seconds": 0.0, "warmup": {"seconds": 500.0, "requests": 12}}  # fmt: skip
    assert _verdict.lines(summary)[-1] == (
        "all 12 requests were warm-up: give a shorter --warmup or a longer -t"
    )


def holder(workers: dict[str, str]) -> Holder:
    """Of a master. workers: node → state."""
    clients = [SimpleNamespace(id=node, state=state) for node, state in workers.items()]
    runner = SimpleNamespace(clients=SimpleNamespace(all=clients), get_worker_index=sorted(workers).index)
    return Holder(SimpleNamespace(runner=runner))


def run(folder: Path) -> Run:
    return Run("r", "chat", "http://h:1", "m", 1, 0.0, folder=str(folder))


def batch(worker: int) -> dict[str, object]:
    return {"worker": worker, "lines": b"", "sample": {}}


def test_a_worker_that_was_killed_in_the_middle_is_lost(tmp_path: Path) -> None:
    held = holder({"a": "running", "b": "running"})
    held._run = run(tmp_path)
    for worker in (-1, 0, 1):
        held.taken(batch(worker))
    held._environment.runner.clients.all[1].state = "missing"
    held._environment.runner.clients.all[0].state = "ready"
    held.wait_for_workers(0.01)
    assert held._run.lost_workers == [0, 1]  # neither has sent its last batch


def test_a_worker_that_left_with_all_its_records_is_not_lost(tmp_path: Path) -> None:
    held = holder({"b": "missing"})
    held._run = run(tmp_path)
    held.taken(batch(0))
    held.done(None, SimpleNamespace(data={"worker": 0}))
    held.wait_for_workers(0.01)
    assert held._run.lost_workers == []


def test_a_refused_run_leaves_no_folder_behind(tmp_path: Path) -> None:
    held = holder({})
    made = run(tmp_path / "r")
    held._open(made, tmp_path / "r")
    assert (tmp_path / "r" / "run.json").exists()
    held.abandon(made)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_run_spares_what_others_put_into_its_folder(tmp_path: Path) -> None:
    held = holder({})
    made = run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    held._open(made, tmp_path)
    held.abandon(made)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
