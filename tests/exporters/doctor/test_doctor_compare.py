"""Nodes side by side: a pair of fixture machines that differ, and 256 nodes in few lines."""

from __future__ import annotations

from pathlib import Path

from doctor_trees import Machine

from exporters.doctor import run
from exporters.doctor.check import Compare, Finding, Verdict
from exporters.doctor.compare import Comparison, compare, troubles
from exporters.doctor.result import NodeResult
from exporters.doctor.table import Table

CHECKS = ("infiniband", "mtu", "gpu", "kernel", "numa", "limits", "nccl", "pci")


def result(node: str, value: str, compare: Compare = "fail", verdict: Verdict = "ok") -> NodeResult:
    return NodeResult(node, (Finding("driver", value, verdict, compare=compare, check="gpu"),))


def named(rows: list[Comparison]) -> dict[str, Comparison]:
    return {row.name: row for row in rows}


def test_a_pair_with_another_driver_and_another_mtu(tmp_path: Path) -> None:
    checks = run.load()
    machines = {
        "gpu-001": Machine(tmp_path / "1").gpu_node(driver="570.86.15", mtu=9000),
        "gpu-002": Machine(tmp_path / "2").gpu_node(driver="550.54.14", mtu=1500),
    }
    results = [
        NodeResult(name, tuple(run.run([checks[c] for c in CHECKS], machine.node())))
        for name, machine in machines.items()
    ]

    found = compare(results)

    different = {row.name: (row.verdict, row.text) for row in found if len(row.values) > 1}
    assert different == {
        "gpu driver": ("fail", "1 node: 550.54.14 (gpu-002); 1 node: 570.86.15 (gpu-001)"),
        "mtu interface ib0": ("fail", "1 node: 1500 (gpu-002); 1 node: 9000 (gpu-001)"),
    }
    assert named(found)["gpu driver"].usual is None
    assert named(found)["gpu driver"].cure == "no value has the most nodes: choose one"
    equal = named(found)
    assert equal["kernel release"].text == "6.8.0-60-generic on all 2"
    assert equal["infiniband rate, 2 items"].text == "400 Gb/s (4X NDR) on all 2"
    assert equal["gpu GPUs"].text == "2 × NVIDIA H200, 140 GiB on all 2"
    assert equal["gpu CUDA of the driver"].verdict == "ok"


def test_the_odd_nodes_of_256_are_named_in_one_line() -> None:
    results = [result(f"node-{i:03d}", "570" if i in (3, 9, 10, 11) else "580") for i in range(256)]

    (row,) = compare(results)

    assert row.verdict == "fail"
    assert row.usual == "580"
    assert row.text == "252 nodes: 580; 4 nodes: 570 (node-[003,009-011])"
    assert row.cure == "bring node-[003,009-011] to 580: install that driver, reboot"


def test_a_difference_is_as_bad_as_its_check_says() -> None:
    assert compare([result("a", "1", "warn"), result("b", "2", "warn")])[0].verdict == "warn"
    assert compare([result("a", "1", "fail"), result("b", "2", "fail")])[0].verdict == "fail"
    assert compare([result("a", "1", ""), result("b", "2", "")]) == []


def test_a_node_without_the_row_and_one_without_the_hardware_differ() -> None:
    results = [
        result("a", "580"),
        result("b", "580"),
        result("c", "no GPU", verdict="not here"),
        NodeResult("d"),
    ]

    (row,) = compare(results)

    assert row.text == "2 nodes: 580; 1 node: no such row (d); 1 node: not here (c)"


def test_hardware_that_no_node_has_is_not_here() -> None:
    results = [result("a", "none", verdict="not here"), result("b", "none at all", verdict="not here")]

    (row,) = compare(results)

    assert (row.verdict, row.text) == ("not here", "not here on all 2")


def test_nodes_without_a_result_are_not_compared_and_one_node_is_not_either() -> None:
    assert compare([result("a", "1"), NodeResult("b", problem="ssh: no answer")]) == []
    assert compare([]) == []


def test_many_values_are_cut() -> None:
    (row,) = compare([result(f"n{i}", f"v{i}") for i in range(9)])

    assert row.text.endswith("; 3 nodes: 3 more values")
    assert len(row.values) == 9


def test_the_same_trouble_of_many_nodes_is_one_row() -> None:
    def slow(value: str) -> Finding:
        return Finding("read", value, "fail", "below 2 ms", "look", "/models", check="storage")

    results = [NodeResult(f"n{i}", (slow("5 ms"),)) for i in range(8)] + [NodeResult("n9", (slow("7 ms"),))]

    (row,) = troubles(results)

    assert (row.name, row.verdict, row.cure) == ("storage read", "fail", "look")
    assert row.text == "9 nodes (n[0-7,9]): /models 5 ms; /models 7 ms"


def test_the_table_of_256_nodes_fits_on_a_screen() -> None:
    results = [
        NodeResult(
            f"node-{i:03d}",
            (
                Finding("driver", "570" if i < 8 else "580", "ok", compare="fail", check="gpu"),
                Finding("release", "6.8", "ok", compare="warn", check="kernel"),
                Finding("synchronised", "no" if i == 77 else "yes", "warn" if i == 77 else "ok", check="clock",
                        cure="chronyc tracking" if i == 77 else ""),
            ),
        )
        for i in range(254)
    ] + [NodeResult(f"node-{i}", problem="ssh: no answer within 60 s") for i in (254, 255)]  # fmt: skip

    text = Table(100).fleet(results, compare(results), troubles(results))

    assert text.splitlines() == [
        "Compared across 254 nodes",
        "ok        kernel release  6.8 on all 254",
        "fail      gpu driver      246 nodes: 580; 8 nodes: 570 (node-[000-007])",
        "            → bring node-[000-007] to 580: install that driver, reboot",
        "",
        "On single nodes",
        "warn      clock synchronised: 1 node (node-077): no",
        "            → chronyc tracking",
        "",
        "No result",
        "fail      2 nodes (node-[254-255]): ssh: no answer within 60 s",
        "",
        "256 nodes, 2 with failures; compared: 1 fail, 1 ok",
    ]
    assert (
        Table(100)
        .fleet(results, compare(results), troubles(results), quiet=True)
        .splitlines()[1]
        .startswith("fail")
    )


def test_one_nodes_table_folds_equal_rows_and_shows_the_worst_last() -> None:
    def port(i: int, verdict: Verdict = "ok", value: str = "400 Gb/s") -> Finding:
        cure = "" if verdict == "ok" else "cable"
        return Finding("rate", value, verdict, "at least 35 Gb/s", cure, f"mlx5_{i}/1", check="infiniband")

    found = NodeResult("gpu-1", (port(9, "fail", "25 Gb/s"), *(port(i) for i in range(8))))

    assert Table(100).node(found).splitlines() == [
        "ok        infiniband rate mlx5_0/1, mlx5_1/1, mlx5_2/1 and 5 more  400 Gb/s",
        "fail      infiniband rate mlx5_9/1                        25 Gb/s; expected: at least 35 Gb/s",
        "            → cable",
        "",
        "gpu-1: 1 fail, 8 ok",
    ]
    assert Table(100).node(found, quiet=True).splitlines()[0].startswith("fail")
    assert "\x1b[31;1mfail\x1b[0m" in Table(100, colour=True).node(found)
