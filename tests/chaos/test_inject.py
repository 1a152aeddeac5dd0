"""Putting faults in: the order of things, proofs, claims, and what is refused with nothing done."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from chaoslib.exceptions import ActivityFailed
from pydantic import Field

from chaos import fault as faults
from chaos import inject, recover, steps
from chaos.fault import Engine, Fault, NotProven, Parameters, Plan, Refused, Target
from chaos.place import Node
from tests.chaos.framework import BRIEF, Here, Steps, eventually, fault, records, the_record


def simple(tmp_path: Path, **given: Any) -> dict[str, Any]:
    mark = str(tmp_path / "mark")
    return {"do": [steps.write(mark, "x")], "undo": [steps.remove(mark)], "proof": mark} | given


def test_a_fault_is_in_proven_and_out_again(tmp_path: Path, own_home: Path) -> None:
    before = time.time()
    with inject.held(fault(**simple(tmp_path)), "fleet", Here(), 30) as (one,):
        assert (tmp_path / "mark").exists()
        assert one.proof is not None
        assert (one.proof.proven, one.proof.value) == (True, 1.0)
        assert before <= one.injected_at <= (one.proven_at or 0) <= time.time()
        record = the_record(own_home)
        assert record is not None
        assert (record["state"], record["fault"], record["target"]) == ("in", "of_test", "fleet")
        # From when the dead-man got the word, which was before it was proven.
        assert one.until <= record["until"] <= (one.proven_at or 0) + 30
    assert not (tmp_path / "mark").exists()
    assert records(own_home) == []
    one.undo()


def test_the_record_is_on_the_disk_before_the_first_step(tmp_path: Path, own_home: Path) -> None:
    listing = tmp_path / "listing"
    do = [steps.run(["sh", "-c", f"cat {own_home}/chaos/undo/*.json > {listing}"])]
    with inject.held(fault(do=do, undo=[steps.remove(str(listing))]), "fleet", Here(), 30):
        assert '"deadman": {' in listing.read_text()


def test_a_fault_that_silently_did_nothing_fails_and_is_undone(tmp_path: Path, own_home: Path) -> None:
    given = simple(tmp_path, proof="/no/such/mark", within=0.3)
    with pytest.raises(
        NotProven, match=r"not proven within 0\.3 s: /no/such/mark is not there; it was undone"
    ):
        inject.start(fault(**given), "fleet", Here(), 30)
    assert not (tmp_path / "mark").exists()
    assert records(own_home) == []


def test_a_fault_that_ended_before_its_proof_fails(tmp_path: Path, own_home: Path) -> None:
    given = simple(tmp_path, proof="/no/such/mark", within=20.0)
    why = rf"not proven within {BRIEF:g} s|it was over before it was proven"
    with pytest.raises(NotProven, match=why):
        inject.start(fault(**given), "fleet", Here(), BRIEF)
    assert records(own_home) == []


def test_a_step_that_fails_undoes_those_before_it(tmp_path: Path, own_home: Path) -> None:
    given = simple(tmp_path)
    given["do"] = [*given["do"], steps.run(["sh", "-c", "echo no such device >&2; exit 1"])]
    with pytest.raises(NotProven, match=r"was not put in: .*no such device; it was undone"):
        inject.start(fault(**given), "fleet", Here(), 30)
    assert not (tmp_path / "mark").exists()
    assert records(own_home) == []


def test_what_can_not_be_undone_is_said_and_its_record_kept(
    tmp_path: Path, own_home: Path, monkeypatch: Any
) -> None:
    blocked = tmp_path / "folder"
    blocked.mkdir()
    given = fault(do=[], undo=[steps.remove(str(blocked))])
    injection = inject.start(given, "fleet", Here(), 30)[0]
    (blocked / "file").write_text("")
    with pytest.raises(faults.Left, match="Directory not empty"):
        injection.undo()
    assert the_record(own_home) is not None
    (blocked / "file").unlink()
    assert len(recover.recover().undone) == 1
    assert records(own_home) == []


def test_without_a_record_there_is_no_fault(tmp_path: Path, own_home: Path) -> None:
    own_home.write_text("a file where the folder should be")
    with pytest.raises(Refused, match="no undo record, so no fault"):
        inject.start(fault(**simple(tmp_path)), "fleet", Here(), 30)
    assert not (tmp_path / "mark").exists()


def test_without_a_deadman_there_is_no_fault(tmp_path: Path, own_home: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("chaos.agent._BOOT", "raise SystemExit('no python here')")
    with pytest.raises(
        Refused, match="the dead-man on this machine did not start: no python here; nothing was done"
    ):
        inject.start(fault(**simple(tmp_path)), "fleet", Here(), 30)
    assert not (tmp_path / "mark").exists()
    assert records(own_home) == []


@pytest.mark.parametrize("duration", [0, -1, 601, float("nan"), float("inf")])
def test_durations_are_bounded(duration: float, tmp_path: Path, own_home: Path) -> None:
    with pytest.raises(Refused, match="duration must be over 0 and at most 600 s"):
        inject.start(fault(**simple(tmp_path)), "fleet", Here(), duration)
    assert records(own_home) == []


def test_the_same_fault_or_one_that_claims_the_same_is_refused_while_one_is_in(
    tmp_path: Path, own_home: Path
) -> None:
    first = fault(**simple(tmp_path, claims=("qdisc:x", "table:y")))
    other = fault("another", do=[], undo=[], claims=("qdisc:x",))
    free = fault("third", do=[], undo=[], claims=("qdisc:z",))
    with inject.held(first, "fleet", Here(), 30):
        with pytest.raises(Refused, match="of_test on fleet has qdisc:x, table:y; nothing was done"):
            inject.start(first, "fleet", Here(), 30)
        with pytest.raises(Refused, match="of_test on fleet has qdisc:x; nothing was done"):
            inject.start(other, "fleet", Here(), 30)
        with inject.held(free, "fleet", Here(), 30):
            pass
    with inject.held(other, "fleet", Here(), 30):
        pass


class _Can(Steps):
    def __init__(self, name: str, missing: str | None, refusal: str | None) -> None:
        super().__init__(do=[], undo=[])
        self.name, self._missing, self._refusal = name, missing, refusal

    def missing(self, place: Any) -> str | None:
        return self._missing

    def refusal(self, target: Any, p: Any) -> str | None:
        return self._refusal


def test_the_first_engine_that_can_is_taken_and_all_reasons_are_told_where_none_can(own_home: Path) -> None:
    one, two = _Can("one", "no such kernel module", None), _Can("two", None, "not on this target")
    three = _Can("three", None, None)
    engines: tuple[Engine, ...] = (one, two, three)
    with inject.held(Fault("f", "traffic", "", engines), "fleet", Here(), 5) as (injection,):
        assert injection.engine is three
    with pytest.raises(
        Refused, match=r"nothing was done. one: no such kernel module; two: not on this target"
    ):
        inject.start(Fault("f", "traffic", "", engines[:2]), "fleet", Here(), 5)


def frozen(folder: Path, name: str = "replica_freeze") -> Fault:
    """A fault of kind replica whose steps touch a file."""
    mark = str(folder / "mark")
    return Fault(name, "replica", "", (Steps([steps.write(mark, "")], [steps.remove(mark)], mark),))


def test_of_two_at_once_the_second_one_sees_the_first(tmp_path: Path, own_home: Path) -> None:
    """Both are refused what one may do, though the router notices neither: max_affected counts what is being put in."""
    place = Here({f"replica-{i}": ("http://127.0.0.1:9", os.getpid()) for i in range(4)})
    ends: list[Any] = []

    def one(number: int) -> None:
        try:
            ends.append(inject.start(frozen(tmp_path, f"f{number}"), f"replica-{number}", place, 30))
        except Refused as error:
            ends.append(str(error))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    held = [end for end in ends if isinstance(end, list)]
    assert len(held) == 1
    assert all("2 replicas were broken or out of rotation" in end for end in ends if isinstance(end, str))
    held[0][0].undo()
    assert records(own_home) == []


def test_the_last_replica_counts_as_taken_before_the_router_notices(tmp_path: Path, own_home: Path) -> None:
    place = Here({f"replica-{i}": ("http://127.0.0.1:9", os.getpid()) for i in range(2)})
    with (
        inject.held(frozen(tmp_path), "replica-0", place, 30),
        pytest.raises(Refused, match="replica-1 is the last replica in rotation"),
    ):
        inject.start(frozen(tmp_path, "other"), "replica-1", place, 30, max_affected=2)


def test_a_refusal_after_the_first_target_says_that_it_was_in(tmp_path: Path, own_home: Path) -> None:
    class Second(Steps):
        def before(self, target: Any, p: Any) -> Any:
            if target.name == "replica-1":
                raise FileNotFoundError("its memory can't be read")

    mark = str(tmp_path / "mark")
    given = Fault("f", "replica", "", (Second([steps.write(mark, "")], [steps.remove(mark)], mark),))
    place = Here({f"replica-{i}": ("http://127.0.0.1:9", os.getpid()) for i in range(3)})
    with pytest.raises(
        NotProven, match=r"replica-1 could not be measured before: its memory .* replica-0, where it was in"
    ):
        inject.start(given, "replica-0,replica-1", place, 30, max_affected=2)
    assert records(own_home) == []
    with pytest.raises(Refused, match="could not be measured before"):
        inject.start(given, "replica-1", place, 30)
    assert records(own_home) == []


def test_targets_that_were_over_before_the_last_was_in_are_no_success(tmp_path: Path, own_home: Path) -> None:
    class Late(Steps):
        def before(self, target: Any, p: Any) -> Any:
            if target.name == "replica-1":
                assert eventually(lambda: not (tmp_path / "mark").exists())

    mark = str(tmp_path / "mark")
    given = Fault("f", "replica", "", (Late([steps.write(mark, "")], [steps.remove(mark)], mark),))
    place = Here({f"replica-{i}": ("http://127.0.0.1:9", os.getpid()) for i in range(3)})
    why = f"f on replica-0 was over before all 2 were in: {BRIEF:g} s are too short"
    with pytest.raises(NotProven, match=why):
        inject.start(given, "replica-0,replica-1", place, BRIEF, max_affected=2)
    assert records(own_home) == []


def test_the_same_interface_of_two_machines_is_two(tmp_path: Path) -> None:
    nodes = [Node(f"node-{i}", prefix=["sh", "-c"], remote=True, device="eth0") for i in range(2)]
    targets = [Target(node.name, Here(), node) for node in nodes]
    assert [inject._claims(t, Plan([], claims=("qdisc:eth0",))) for t in targets] == [
        ["node-0:qdisc:eth0"],
        ["node-1:qdisc:eth0"],
    ]


def test_a_region_and_its_lab_are_one_place_and_a_cluster_is_its_file() -> None:
    assert inject._scope("lab:a/region-2") == inject._scope("lab:a") == "lab:a"
    assert inject._scope("/etc/cluster.yaml") == "/etc/cluster.yaml"


def test_a_crash_is_proven_though_its_time_was_over_first(tmp_path: Path, own_home: Path) -> None:
    class Slow(Steps):
        def prove(self, target: Any, p: Any, before: Any) -> Any:
            time.sleep(BRIEF)
            return super().prove(target, p, before)

    given = Fault("f", "traffic", "", (Slow(**simple(tmp_path, undo=[])),), momentary=True)
    (one,) = inject.start(given, "fleet", Here(), BRIEF)
    assert (one.proven_at or 0) > one.until
    assert one.proof is not None
    assert one.proof.proven


def test_a_dry_run_shows_the_steps_and_does_nothing(tmp_path: Path, own_home: Path) -> None:
    planned = inject.dry_run(fault(**simple(tmp_path)), "fleet", Here(), 30)
    assert [(t.name, e.name, [s["op"] for s in p.do + p.undo]) for t, e, p in planned] == [
        ("fleet", "steps", ["write", "remove"])
    ]
    assert not (tmp_path / "mark").exists()
    assert not own_home.exists()


class _Numbers(Parameters):
    percent: float = Field(10, gt=0, le=100, description="percent of packets")


def test_bad_parameters_are_named_with_their_bounds() -> None:
    f = Fault("f", "traffic", "", (Steps([], []),), _Numbers)
    assert f.parse({"percent": 5}).model_dump() == {"percent": 5.0}
    for given, why in (
        ({"percent": 0}, r"f: percent: Input should be greater than 0 \(parameters: percent\)"),
        ({"percent": "many"}, "percent: Input should be a valid number"),
        ({"precent": 5}, r"precent: Extra inputs are not permitted \(parameters: percent\)"),
    ):
        with pytest.raises(Refused, match=why):
            f.parse(given)


def test_a_name_that_is_no_fault_gets_a_hint() -> None:
    with pytest.raises(Refused, match="no fault 'replica_freze'; did you mean replica_freeze"):
        faults.load("replica_freze")
    with pytest.raises(Refused, match="exaserve chaos list shows all"):
        faults.load("../../etc/passwd")


@pytest.mark.parametrize("name", faults.names())
def test_every_fault_is_named_as_its_file_and_explains_itself(name: str) -> None:
    f = faults.load(name)
    assert (f.name, f.kind in faults.KINDS, bool(f.summary), bool(f.engines)) == (name, True, True, True)
    assert 0 < f.max_duration <= faults.MAX_DURATION
    assert len({e.name for e in f.engines}) == len(f.engines)
    for engine in f.engines:
        assert engine.name
        assert engine.how
    for key, field in f.parameters.model_fields.items():
        assert field.description, f"{name}: {key} has no description"
    assert issubclass(Refused, ActivityFailed)
