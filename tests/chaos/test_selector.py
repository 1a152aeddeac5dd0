"""Targets chosen, and blast radius."""

from __future__ import annotations

from typing import Any

import pytest

from chaos import selector
from chaos.fault import Fault, Refused, Target
from chaos.place import Node, Part, Place, Replica


class Cluster(Place):
    """Four nodes with a replica each; ``down``: those out of rotation."""

    name = "cluster"

    def __init__(self, *down: str, mounts: tuple[str, ...] = ("local", "shared")) -> None:
        super().__init__()
        self.down, self.mounts = down, mounts

    def nodes(self) -> list[Node]:
        paths = {m: f"/mnt/{m}" for m in self.mounts}
        return [Node("control", control=True)] + [
            Node(f"node-{i}", mounts=paths, replicas=[f"replica-{i}"]) for i in range(4)
        ]

    def replicas(self) -> list[Replica]:
        return [
            Replica(
                f"replica-{i}",
                f"http://10.0.0.{i}:8100",
                f"node-{i}",
                None,
                8100,
                f"replica-{i}" not in self.down,
                "down",
            )
            for i in range(4)
        ]

    def parts(self) -> dict[str, Part]:
        return {"router": Part("router", "http://127.0.0.1:8000")}


def a_fault(kind: Any, targets: tuple[str, ...] = ()) -> Fault:
    return Fault("f", kind, "", (), targets=targets)


def chosen(
    text: str, kind: Any = "replica", *down: str, targets: tuple[str, ...] = (), **options: Any
) -> list[str]:
    return [t.name for t in selector.choose(Cluster(*down), a_fault(kind, targets), text, **options)]


@pytest.mark.parametrize(
    ("text", "kind", "max_affected", "names"),
    [
        ("replica-2", "replica", 1, ["replica-2"]),
        ("replica-3, replica-1", "replica", 2, ["replica-1", "replica-3"]),
        ("node-1,node-1", "node", 1, ["node-1"]),
        ("node-1/shared", "storage", 1, ["node-1/shared"]),
        ("fleet", "traffic", 1, ["fleet"]),
        ("any", "traffic", 1, ["fleet"]),
        ("control", "gpu", 1, ["control"]),
    ],
)
def test_names_and_lists(text: str, kind: Any, max_affected: int, names: list[str]) -> None:
    assert chosen(text, kind, max_affected=max_affected) == names


@pytest.mark.parametrize(("share", "count"), [("1%", 1), ("25%", 1), ("26%", 2), ("50%", 2), ("75%", 3)])
def test_shares_are_of_those_that_serve_and_rounded_up(share: str, count: int) -> None:
    assert len(chosen(share, max_affected=3)) == count
    assert len(chosen(share, "link", max_affected=3)) == count


def test_any_takes_one_that_serves() -> None:
    for _ in range(20):
        assert chosen("any", "replica", "replica-0", max_affected=2)[0] != "replica-0"


def test_a_target_knows_its_node_its_mount_and_its_part() -> None:
    one: Target = selector.choose(Cluster(), a_fault("storage"), "node-1/shared")[0]
    assert one.node is not None
    assert (one.node.name, one.mount, one.mount_name) == ("node-1", "/mnt/shared", "shared")
    one = selector.choose(Cluster(mounts=("only",)), a_fault("storage"), "node-1")[0]
    assert one.name == "node-1/only"
    one = selector.choose(Cluster(), a_fault("replica"), "replica-1")[0]
    assert one.node is not None
    assert one.node.name == "node-1"
    one = selector.choose(Cluster(), a_fault("control", ("router", "prometheus")), "router")[0]
    assert one.part is not None


@pytest.mark.parametrize(
    ("text", "kind", "down", "options", "why"),
    [
        ("nobody", "replica", (), {}, r"no replica 'nobody' \(there: replica-0, replica-1, replica-2, replica-3\)"),
        ("", "replica", (), {}, "no replica ''"),
        ("0%", "replica", (), {}, "a share is over 0 % and at most 100 %"),
        ("x%", "node", (), {}, "a share is over 0 % and at most 100 %"),
        ("replica-0,replica-1", "replica", (), {}, "with replica-0, replica-1 2 replicas were broken or out of rotation, at most 1"),
        ("50%", "replica", (), {}, "2 replicas were broken or out of rotation, at most 1 may"),
        ("replica-0", "replica", ("replica-0",), {}, "replica-0 is down, not in rotation"),
        ("replica-1", "replica", ("replica-0",), {}, r"2 replicas were broken or out of rotation \(replica-0 already is\)"),
        ("node-1", "node", ("replica-0",), {}, r"2 nodes were broken or out of rotation \(node-0 already is\)"),
        ("100%", "replica", (), {"max_affected": 4}, "are the last replicas in rotation; nothing was done"),
        ("100%", "node", (), {"max_affected": 4}, "are the last replicas in rotation"),
        (
            "replica-3", "replica", ("replica-0", "replica-1", "replica-2"), {"max_affected": 4},
            "replica-3 is the last replica in rotation",
        ),
        ("any", "replica", ("replica-0", "replica-1", "replica-2", "replica-3"), {}, "no replica serves"),
        ("control", "link", (), {}, "control is the control node .* never the target of a link fault"),
        ("control/shared", "storage", (), {}, "never the target of a storage fault"),
        ("node-1/scratch", "storage", (), {}, r"no mount scratch on node-1; there: node-1/local, node-1/shared"),
        ("node-1", "storage", (), {}, r"no mount \(none named\) on node-1"),
        ("node-1/local", "link", (), {}, "f is done to a node; node-1/local names a mount"),
        ("replica-1", "traffic", (), {}, "f is done to fleet, not to 'replica-1'"),
        ("replica-1", "replica", (), {"max_affected": 0}, "max_affected must be at least 1"),
    ],
)  # fmt: skip
def test_what_is_refused(
    text: str, kind: Any, down: tuple[str, ...], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        chosen(text, kind, *down, **options)


def test_what_the_router_has_not_noticed_yet_counts_too() -> None:
    """broken: targets with a fault in, which their router may take for well for some seconds."""
    with pytest.raises(Refused, match=r"2 replicas were broken or out of rotation \(replica-0 already is\)"):
        chosen("replica-1", broken=["replica-0"])
    with pytest.raises(Refused, match=r"2 replicas .* \(replica-0 already is\)"):
        chosen("replica-1", broken=["node-0"])
    with pytest.raises(Refused, match=r"2 nodes .* \(node-0 already is\)"):
        chosen("node-1", "link", broken=["replica-0"])
    with pytest.raises(Refused, match="replica-3 is the last replica in rotation"):
        chosen("replica-3", max_affected=4, broken=["node-0", "replica-1", "replica-2"])
    assert chosen("node-0/shared", "storage", broken=["node-0"]) == ["node-0/shared"]
    assert chosen("node-0", "node", broken=["node-0"]) == ["node-0"], "two faults of one node are one node"
    for _ in range(20):
        assert chosen("any", max_affected=2, broken=["replica-0"]) != ["replica-0"]


def test_the_last_one_may_be_taken_when_asked_for() -> None:
    assert len(chosen("100%", max_affected=4, allow_last=True)) == 4
    assert len(chosen("100%", "node", max_affected=4, allow_last=True)) == 4


def test_parts_of_the_control_node() -> None:
    targets = ("router", "prometheus", "replica")
    assert chosen("router", "control", targets=targets) == ["router"]
    assert chosen("replica-1", "control", targets=targets) == ["replica-1"]
    with pytest.raises(Refused, match="cluster has no prometheus, or its process can't be seen from here"):
        chosen("prometheus", "control", targets=targets)
    with pytest.raises(
        Refused, match="f is done to router or prometheus or the name of a replica, not to 'node-1'"
    ):
        chosen("node-1", "control", targets=targets)
