"""Results of other nodes: through an ssh of the test, and from files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from doctor_trees import fake_ssh, write

from exporters.doctor.check import Finding
from exporters.doctor.gather import by_ssh, from_files, remote_command
from exporters.doctor.hosts import Host
from exporters.doctor.result import NodeResult, parse, to_json

FINDING = Finding("driver", "570", "ok", "the same", "", "x", "fail", "gpu")


def printed(node: str, at: float = 1.0) -> str:
    return json.dumps(to_json(NodeResult(node, (FINDING,), time=at)))


def test_hosts_that_answer_hang_refuse_and_print_nonsense(tmp_path: Path) -> None:
    environ = fake_ssh(tmp_path, {"good": printed("g"), "chatty": printed("c"), "lingers": printed("l")})
    names = ("good", "chatty", "lingers", "hangs", "refused", "bare", "wrong")
    seen: list[str] = []

    begin = time.monotonic()
    # What hangs takes all of the time; those that answer have as much.
    results = by_ssh(
        [Host(n) for n in names], "exaserve doctor --json", 8, 8, environ, lambda r: seen.append(r.node)
    )
    took = time.monotonic() - begin

    assert [r.node for r in results] == list(names)
    assert [r.findings for r in results[:3]] == [(FINDING,)] * 3
    assert {r.node: r.problem for r in results} == {
        "good": "",
        "chatty": "",
        "lingers": "",
        "hangs": "ssh: no answer within 8 s",
        "refused": "ssh: connect to host refused port 22: Connection refused",
        "bare": "exaserve is not on its PATH; --remote-command '/path/to/exaserve doctor --json'",
        "wrong": "no JSON of the doctor but: {]",
    }
    assert sorted(seen) == sorted(names)
    assert took < 40


def test_ssh_asks_nothing_and_gets_the_hosts_own_options_first(tmp_path: Path) -> None:
    environ = fake_ssh(tmp_path, {"good": printed("g")})

    by_ssh([Host("good", ("-p", "2222"))], "exaserve doctor --json", 20, 1, environ)

    assert Path(environ["SSH_LOG"]).read_text().rstrip("\n").split("\t") == [
        "-p", "2222", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ClearAllForwardings=yes",
        "-o", "ControlMaster=no", "-T", "-x", "--", "good", "exaserve doctor --json",
    ]  # fmt: skip


def test_no_more_hosts_than_allowed_are_asked_at_once(tmp_path: Path) -> None:
    hosts = [Host(f"h{i}") for i in range(6)]
    program = write(
        tmp_path / "ssh", f"#!/bin/sh\nmkdir {tmp_path}/lock || echo two at once >&2\nrmdir {tmp_path}/lock"
    )
    program.chmod(0o755)

    results = by_ssh(hosts, "x", 60, 1, {"PATH": f"{tmp_path}:/usr/bin:/bin"})

    assert [r.problem for r in results] == ["ended with 0: printed nothing"] * 6


def test_without_ssh_every_host_says_so() -> None:
    (result,) = by_ssh([Host("a")], "x", 5, 1, {"PATH": "/nonexistent"})

    assert result.problem == "ssh: can't start ssh: No such file or directory"


def test_options_travel_to_the_other_side_quoted() -> None:
    assert remote_command(["--only=mtu", "--mount=/data/my models"]) == (
        "exaserve doctor --json --only=mtu '--mount=/data/my models'"
    )


def test_files_and_folders_of_results(tmp_path: Path) -> None:
    write(tmp_path / "r/a.json", printed("a"))
    write(tmp_path / "r/b.json", "a banner {\n" + printed("b"))
    write(tmp_path / "r/older.json", printed("a", at=0.5).replace("570", "550"))
    write(tmp_path / "c.json", printed("c"))

    found = from_files([tmp_path / "r", tmp_path / "c.json"])

    assert sorted((r.node, r.findings[0].value) for r in found) == [("a", "570"), ("b", "570"), ("c", "570")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no JSON of the doctor but: nothing"),
        ("hello\n", "no JSON of the doctor but: hello"),
        ("{" * 100000, "no JSON of the doctor but: {{{"),
        ('{"exaserve_doctor": 2, "findings": []}', "or of another version of it"),
        ('{"exaserve_doctor": 1, "findings": {}}', "not the result of"),
        ('{"exaserve_doctor": 1, "findings": [3]}', "a finding of it has no name"),
        ('{"exaserve_doctor": 1, "findings": [{"what": "x", "verdict": "good"}]}', "'good' is no verdict"),
    ],
)
def test_a_file_that_holds_no_result_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)

    with pytest.raises(ValueError, match=r"x\.json") as error:
        from_files([file])
    assert problem in str(error.value)


def test_a_node_that_died_while_it_wrote_costs_the_others_nothing(tmp_path: Path) -> None:
    write(tmp_path / "r/gpu-1.json", printed("gpu-1"))
    write(tmp_path / "r/gpu-2.json", "")
    write(tmp_path / "r/gpu-3.json", json.dumps({"exaserve_doctor": 1, "findings": [], "time": 10**400}))
    (tmp_path / "r/gpu-4.json").mkdir()

    found = {r.node: r.problem for r in from_files([tmp_path / "r"])}

    assert found == {
        "gpu-1": "",
        "?": "",
        "gpu-2": "no JSON of the doctor but: nothing",
        "gpu-4": "Is a directory",
    }


def test_what_another_node_says_moves_no_cursor() -> None:
    raw = json.loads(printed("a\x1b[2J"))
    raw["findings"][0]["value"] = "570\x1b[31m\nfail"

    found = parse(json.dumps(raw))

    assert found.node == "a [2J"
    assert found.findings[0].value == "570 [31m fail"
