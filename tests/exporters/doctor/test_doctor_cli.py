"""``exaserve doctor`` as a user runs it, on this very machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from doctor_trees import Machine, fake_ssh, write
from typer.testing import CliRunner

from exporters.doctor import config as configuration
from exporters.doctor.check import Finding
from exporters.doctor.cli import app
from exporters.doctor.result import NodeResult
from exporters.doctor.table import Table


def doctor(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path / "home"))


def test_this_machine_is_looked_at_whole_and_within_the_time(tmp_path: Path) -> None:
    begin = time.monotonic()
    # On a busy machine a check may need more than its usual few seconds; the longest has 12, times the factor.
    code, output = doctor("--json", "--numa-map", "numa.json", "--skip", "ports", "--time-factor", "5")
    assert time.monotonic() - begin < 12 * 5 + 30

    found = json.loads(output)
    assert found["exaserve_doctor"] == 1
    assert found["node"] == os.uname().nodename
    assert code == (1 if found["verdicts"]["fail"] else 0)
    checks = {f["check"] for f in found["findings"]}
    assert len(checks) == 18
    assert not [f for f in found["findings"] if f["what"] == "check"]
    told = {(f["check"], f["what"]): f["value"] for f in found["findings"]}
    assert told["kernel", "release"] == os.uname().release
    assert all(f["cure"] for f in found["findings"] if f["verdict"] in ("warn", "fail"))
    nodes = json.loads((tmp_path / "numa.json").read_text())["nodes"]
    assert nodes or not Path("/sys/devices/system/node").exists()


def test_only_and_skip_and_list() -> None:
    code, output = doctor("--only", "kernel", "--only", "python", "--skip", "python")
    assert (code, len(output.splitlines())) == (0, 3)
    assert output.startswith("ok        kernel release  ")

    code, output = doctor("--list")
    assert code == 0
    assert "storage     folders and network mounts" in output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--only", "kernal"], "there is no check 'kernal'; there are: clock, cpu, "),
        (["--only", "mtu", "--skip", "mtu"], "no check is left"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: can't be read: No such file or directory"),
        (["--config", "list.yaml"], "list.yaml: not a configuration of ExaServe"),
        (["--config", "broken.yaml"], "broken.yaml: not YAML"),
        (["--nodes", "none"], "none: No such file or directory"),
        (["--nodes", "x", "--from-json", "y"], "--nodes and --from-json don't go together"),
        (["--nodes", "x", "--numa-map", "y"], "--numa-map is written by the node itself, not with --nodes"),
        (["--from-json", "list.yaml"], "list.yaml: no JSON of the doctor but: - 1"),
        (["--from-exporters", "http://"], "is not the address of a server"),
        (["--numa-map", "/nonexistent/x", "--only", "kernel"], "--numa-map: /nonexistent/x: No such file"),
    ],
)
def test_wrong_usage_says_what_to_do(tmp_path: Path, arguments: list[str], problem: str) -> None:
    write(tmp_path / "list.yaml", "- 1")
    write(tmp_path / "broken.yaml", "{")

    code, output = doctor(*arguments)

    assert code == 2
    assert problem in output
    assert "see `exaserve doctor --help`" in output


def test_a_failure_on_a_machine_of_the_configuration_ends_with_1(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "m").gpu_node()
    machine.port("mlx5_0", rate="25 Gb/sec (1X EDR)")
    config = f"exporter: {{sysfs: {machine.sysfs}, procfs: {machine.procfs}}}\nnetwork: {{nccl_ib_hca: mlx5}}"
    write(tmp_path / "exaserve.yaml", config)

    code, output = doctor("--only", "infiniband", "--quiet")
    assert code == 1
    assert "fail      infiniband rate mlx5_0/1  25 Gb/s (1X EDR); expected: at least 35 Gb/s" in output

    assert doctor("--only", "infiniband", "--min-link-gbps", "20")[0] == 0


def test_a_fleet_through_ssh_ends_with_1_where_a_node_differs_or_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {}
    for name, driver, mtu in (("a", "570.86.15", 9000), ("b", "570.86.15", 9000), ("c", "550.54.14", 1500)):
        machine = Machine(tmp_path / name).gpu_node(driver, mtu)
        monkeypatch.setenv("PYTHONPATH", machine.environ["PYTHONPATH"])
        paths = (f"--path.sysfs={machine.sysfs}", f"--path.procfs={machine.procfs}")
        code, results[name] = doctor("--json", "--only=gpu", "--only=mtu", "--only=kernel", *paths)
        assert code == 0
    monkeypatch.delenv("PYTHONPATH")
    environ = os.environ | fake_ssh(tmp_path, results)
    write(tmp_path / "nodes", "a\nb\nc\nrefused")
    argv = [sys.executable, "-c", "from exporters.doctor.cli import app; app()", "--nodes=nodes"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "Compared across 3 nodes"
    assert any(line.startswith("fail      gpu driver") and "1 node: 550.54.14 (c)" in line for line in lines)
    assert any(
        line.startswith("fail      mtu interface ib0") and "1 node: 1500 (c)" in line for line in lines
    )
    assert "            → bring c to 9000: ip link set ib0 mtu 9000, on its switch port, too" in lines
    assert "fail      1 node (refused): ssh: connect to host refused port 22: Connection refused" in lines
    assert lines[-1].startswith("4 nodes, 1 with failures; compared: 2 fail, ")

    write(tmp_path / "ab/a.json", results["a"])
    write(tmp_path / "ab/b.json", results["b"].replace(os.uname().nodename, "other"))
    code, output = doctor("--from-json", "ab", "--json")
    assert code == 0
    assert {c["verdict"] for c in json.loads(output)["compared"]} <= {"ok", "unknown"}


def test_a_terminal_that_knows_only_ascii_shows_the_table() -> None:
    argv = [
        sys.executable,
        "-c",
        "from exporters.doctor.cli import app; app()",
        "--only=ptrace",
        "--only=shm",
    ]
    environ = os.environ | {"PYTHONIOENCODING": "ascii", "PATH": "/nonexistent"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)

    assert done.returncode in (0, 1)
    assert done.stderr == ""
    assert "shm space" in done.stdout


def test_results_of_files_are_cut_to_the_checks_that_are_asked_for(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _, output = doctor("--json", "--only", "kernel", "--only", "python")
        write(tmp_path / f"r/{name}.json", json.dumps(json.loads(output) | {"node": name}))

    _, output = doctor("--from-json", "r", "--only", "kernel")

    assert [line.split()[1:3] for line in output.splitlines() if line.startswith("ok ")] == [
        ["kernel", "release"]
    ]


def test_an_empty_list_of_exporters_is_not_this_node() -> None:
    code, output = doctor("--from-exporters", "")
    assert (code, output.splitlines()[0]) == (2, ": no address of an exporter in it")
    code, output = doctor("--from-exporters", "/missing/list")
    assert (code, output.splitlines()[0]) == (2, "/missing/list: No such file or directory")


def test_a_user_without_a_home_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXASERVE_HOME")
    monkeypatch.delenv("EXASERVE_RUN", raising=False)
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}["no such user"])
    assert configuration.run_folder(os.environ).parts[-3:] == ("~", ".exaserve", "run") or (
        configuration.run_folder(os.environ).parts[-2:] == (".exaserve", "run")
    )
    assert doctor("--only", "kernel")[0] == 0


def test_a_second_stack_has_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configuration.run_folder(os.environ) == tmp_path / "home/run"
    monkeypatch.setenv("EXASERVE_RUN", str(tmp_path / "second"))
    assert configuration.run_folder(os.environ) == tmp_path / "second"


def test_a_folder_of_somebody_elses_has_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    assert configuration.read(None) == {}


def test_names_of_mounts_move_no_cursor() -> None:
    odd = Finding("read", "1\x1b[2J", "fail", "x", "umount \x1b[2J", "/a\x1b]0;evil\x07\nb", check="storage")
    text = Table(width=150).node(NodeResult("n", (odd,)))
    assert "fail      storage read /a ]0;evil  b  1 [2J; expected: x" in text.splitlines()
    assert "\x1b" not in text
    assert "\x07" not in text
