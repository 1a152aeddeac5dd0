"""What figures are made of: requests that are still open, who bore the fault, when it was out; from the router's audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chaos.place import Node
from chaos.run import audit, measure
from tests.chaos.framework import Here


def record(number: int, due: float, worker: int = 0) -> dict[str, Any]:
    return {"worker": worker, "number": number, "due": due}


def test_a_request_that_is_missing_between_others_is_still_open() -> None:
    records = [
        record(0, 10.0),
        record(3, 10.3),
        record(2, 10.2),
        record(5, 10.5),
        record(0, 10.1, 1),
        record(2, 10.3, 1),
    ]
    found = measure.still_open(records, ended=10.4)
    assert found == [
        {"outcome": "open", "due": 10.0, "sent": 10.0, "first": None, "ended": None},
        {"outcome": "open", "due": 10.1, "sent": 10.1, "first": None, "ended": None},
    ]
    assert measure.still_open([*records, record(1, 10.1), record(1, 10.2, 1)], ended=10.4) == []
    assert measure.still_open([], ended=10.4) == []


def test_victims_are_the_target_or_the_replicas_of_its_node_and_none_of_storage_and_traffic() -> None:
    nodes = [Node("node-1", replicas=["a"]), Node("node-2", replicas=["b", "c"])]
    place = Here({n: (f"http://127.0.0.1:{i}", 1) for i, n in enumerate("abc", 1)}, nodes=nodes)
    assert measure.victims(place, [{"target": "b"}]) == ("b",)
    assert measure.victims(place, [{"target": "node-2"}, {"target": "a"}]) == ("a", "b", "c")
    for target in ("node-2/shared", "fleet", "router"):
        assert measure.victims(place, [{"target": target}]) == ()


def test_a_fault_was_out_when_it_was_taken_out_or_by_itself() -> None:
    def undo(end: str) -> dict[str, Any]:
        return {"activity": {"provider": {"func": "undo_fault"}}, "end": end}

    faults = [{"until": 1030.0}]
    journal = {"run": [undo("1970-01-01T00:16:50+00:00")], "rollbacks": [undo("1970-01-01T00:17:00+00:00")]}
    assert measure.undone(faults, journal, ended=1100.0) == 1010.0
    assert measure.undone(faults, {"rollbacks": [undo("1970-01-01T00:17:00")]}, ended=1100.0) == 1020.0
    assert measure.undone(faults, {}, ended=1100.0) == 1030.0
    assert measure.undone(faults, None, ended=1005.0) == 1005.0


def test_retries_are_those_of_the_audit_and_unknown_without_one(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    assert audit.folder(str(tmp_path)) is None
    assert audit.retries(None, {"x"}) is None
    folder.mkdir()
    lines = [
        {"request_id": "x", "retries": 2},
        {"request_id": "y", "retries": 0},
        {"request_id": "z", "retries": 1},
    ]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + '\n{"request_id":"x","ret'
    (folder / "audit-0.jsonl").write_text(text)
    assert audit.folder(str(tmp_path)) == folder
    assert audit.retries(folder, {"x", "y"}) == {"x": 2}
