"""``exaserve dashboards push`` against a stand-in for Grafana's HTTP API: nothing twice, nothing lost, no token shown."""

from __future__ import annotations

import copy
import json
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner

from dashboards import build, push_cli
from dashboards.board_diff import differences
from dashboards.cli import app
from tests.conftest import closed_port

sys.path.insert(0, str(Path(__file__).parent))

from fake_grafana import FakeGrafana

BOARDS = {name: json.loads((build.GENERATED / f"{name}.json").read_text()) for name in ("fleet", "replica")}


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    server = FakeGrafana()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def two_boards(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two committed boards in place of building all of them each time; tests may change them."""
    boards = copy.deepcopy(BOARDS)
    monkeypatch.setattr(push_cli, "_boards", lambda source, runbooks: boards)
    monkeypatch.delenv("GRAFANA_TOKEN", raising=False)
    return boards


def push(grafana: FakeGrafana | str, *args: str, token: str | None = "good-token") -> tuple[int, str]:
    url = grafana if isinstance(grafana, str) else grafana.url
    env = {"GRAFANA_TOKEN": token} if token else {}
    result = CliRunner().invoke(app, ["push", "--url", url, *args], env=env)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert token is None or token not in result.output
    return result.exit_code, result.output


def test_a_first_push_makes_the_folder_and_every_board_in_it(grafana: FakeGrafana) -> None:
    code, output = push(grafana)
    assert code == 0, output
    assert grafana.folders["exaserve"]["title"] == "ExaServe"
    assert {uid: b["meta"]["folderUid"] for uid, b in grafana.boards.items()} == {
        "exaserve-fleet": "exaserve",
        "exaserve-replica": "exaserve",
    }
    kept = grafana.boards["exaserve-fleet"]["dashboard"]
    assert {**kept, "id": None, "version": None} == {**BOARDS["fleet"], "id": None, "version": None}
    assert output.splitlines() == [
        "created       folder ExaServe",
        "created       fleet",
        "created       replica",
        "2 created, 0 updated, 0 as they should be",
        f"{grafana.url}/dashboards/f/exaserve",
    ]


def test_a_second_push_writes_nothing_though_grafana_has_added_its_defaults(grafana: FakeGrafana) -> None:
    push(grafana)
    grafana.writes.clear()
    code, output = push(grafana)
    assert (code, grafana.writes) == (0, [])
    assert "0 created, 0 updated, 2 as they should be" in output
    assert grafana.boards["exaserve-fleet"]["dashboard"]["version"] == 1


def test_what_differs_is_written_over_as_the_next_version_and_named(
    grafana: FakeGrafana, two_boards: dict[str, Any]
) -> None:
    push(grafana)
    panel = next(p for p in two_boards["fleet"]["panels"] if p.get("targets"))
    panel["targets"][0]["expr"] = "up"
    two_boards["fleet"]["title"] = "ExaServe / All"
    grafana.writes.clear()
    code, output = push(grafana)
    assert (code, grafana.writes) == (0, ["/dashboards/db"])
    board = grafana.boards["exaserve-fleet"]["dashboard"]
    assert (board["title"], board["version"]) == ("ExaServe / All", 2)
    assert "    title: ExaServe / Fleet -> ExaServe / All" in output
    assert f'    panels["{panel["title"]}"].targets["A"].expr: ' in output
    assert "0 created, 1 updated, 1 as they should be" in output


def test_a_dry_run_shows_the_same_and_writes_nothing(
    grafana: FakeGrafana, two_boards: dict[str, Any]
) -> None:
    code, output = push(grafana, "--dry-run")
    assert (code, grafana.writes, grafana.folders, grafana.boards) == (0, [], {}, {})
    assert output.splitlines()[-1] == "2 to create, 0 to update, 0 as they should be"
    push(grafana)
    grafana.writes.clear()
    for panel in two_boards["replica"]["panels"]:
        panel["description"] = "other"
    code, output = push(grafana, "--dry-run")
    assert (code, grafana.writes) == (0, [])
    assert "would update  replica" in output
    assert "more (--all shows them)" in output
    assert "more (--all" not in push(grafana, "--dry-run", "--all")[1]


def test_a_board_in_another_folder_comes_into_ours(grafana: FakeGrafana) -> None:
    grafana.add_folder("elsewhere", "Elsewhere")
    grafana.save({"dashboard": copy.deepcopy(BOARDS["fleet"]), "folderUid": "elsewhere"})
    code, output = push(grafana)
    assert code == 0
    assert "    folder: Elsewhere -> the one above" in output
    assert grafana.boards["exaserve-fleet"]["meta"]["folderUid"] == "exaserve"


def test_a_folder_of_that_title_is_used_whatever_its_uid(grafana: FakeGrafana) -> None:
    grafana.add_folder("x7Qp", "Serving / LLM")
    code, output = push(grafana, "--folder", "Serving / LLM")
    assert (code, list(grafana.folders)) == (0, ["x7Qp"])
    assert output.splitlines()[-1] == f"{grafana.url}/dashboards/f/x7Qp"
    assert grafana.boards["exaserve-fleet"]["meta"]["folderUid"] == "x7Qp"


def test_a_board_that_somebody_saved_meanwhile_is_not_lost(
    grafana: FakeGrafana, two_boards: dict[str, Any]
) -> None:
    push(grafana)
    two_boards["replica"]["title"] = "ours"

    def somebody_saves(uid: str) -> None:
        if uid == "exaserve-replica":
            grafana.boards[uid]["dashboard"] |= {"title": "theirs", "version": 7}

    grafana.after_read = somebody_saves
    code, output = push(grafana)
    assert code == 1
    assert "can't save exaserve-replica: 412, somebody saved it meanwhile" in output
    assert grafana.boards["exaserve-replica"]["dashboard"]["title"] == "theirs"
    assert push(grafana, "--force")[0] == 0
    assert grafana.boards["exaserve-replica"]["dashboard"]["title"] == "ours"


def test_another_board_of_the_same_title_is_named_as_the_reason(grafana: FakeGrafana) -> None:
    grafana.one_title_a_folder = True
    grafana.add_folder("exaserve", "ExaServe")
    grafana.save(
        {"dashboard": {"uid": "hand-made", "title": BOARDS["fleet"]["title"]}, "folderUid": "exaserve"}
    )
    code, output = push(grafana)
    assert (code, "412, another board has that title in this folder" in output) == (1, True)
    assert "hand-made" in grafana.boards


def test_a_board_that_comes_from_a_file_is_left_to_its_file(
    grafana: FakeGrafana, two_boards: dict[str, Any]
) -> None:
    push(grafana)
    grafana.boards["exaserve-fleet"]["meta"] |= {"provisioned": True, "provisionedExternalId": "fleet.json"}
    assert push(grafana)[0] == 0  # as it should be
    two_boards["fleet"]["title"] = "other"
    code, output = push(grafana)
    assert (code, "fleet (exaserve-fleet) comes from a file of that Grafana (fleet.json)" in output) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("wrong-token", "can't read the folder: 401, it doesn't know the token"),
        (None, "can't read the folder: 401, it doesn't know the token"),
        ("viewer-token", "can't create the folder: 403, the token may not do that (You'll need additional"),
    ],
)
def test_a_token_that_is_refused_ends_with_1_and_the_cure(
    grafana: FakeGrafana, token: str | None, problem: str
) -> None:
    code, output = push(grafana, token=token)
    assert (code, output.startswith(problem)) == (1, True), output
    assert grafana.boards == {}


def test_a_token_comes_from_a_file_or_from_standard_input(grafana: FakeGrafana, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("good-token\n")
    assert push(grafana, "--token-file", str(tmp_path / "token"), token=None)[0] == 0
    result = CliRunner().invoke(
        app, ["push", "--url", grafana.url, "--token-file", "-"], input="good-token\n"
    )
    assert result.exit_code == 0
    assert "good-token" not in result.output


def test_a_certificate_of_an_unknown_authority_is_refused_and_ca_file_names_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = FakeGrafana(tls=context)
    try:
        code, output = push(server)
        assert (code, f"no trust in the certificate of {server.url}" in output) == (1, True), output
        assert "--ca-file" in output
        assert server.boards == {}
        assert push(server, "--ca-file", str(tmp_path / "ca.pem"))[0] == 0
        assert len(server.boards) == 2
    finally:
        server.close()


def test_below_a_path_it_is_found_and_without_the_path_it_says_what_is_wrong() -> None:
    server = FakeGrafana(prefix="/grafana")
    try:
        assert push(f"{server.url}/")[0] == 0
        assert len(server.boards) == 2
        code, output = push(server.url.removesuffix("/grafana"))
        assert (code, "is --url Grafana's address, with its path?" in output) == (1, True), output
    finally:
        server.close()


def test_a_login_page_in_front_is_no_grafana(grafana: FakeGrafana) -> None:
    grafana.login_page = True
    code, output = push(grafana)
    assert (code, "does not answer like Grafana (no JSON)" in output) == (1, True)


def test_a_grafana_that_hangs_or_is_gone_ends_with_1_in_time(grafana: FakeGrafana) -> None:
    grafana.delay = 60.0
    code, output = push(grafana, "--timeout", "0.2")
    assert (code, f"{grafana.url} did not answer in time; --timeout gives it more" in output) == (1, True)
    with closed_port() as port:
        code, output = push(f"http://127.0.0.1:{port}")
    assert (
        code,
        f"no connection to http://127.0.0.1:{port}: [Errno 111] Connection refused\n" in output,
    ) == (1, True)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--url", "grafana.example"], "--url: give an address like https://grafana.example"),
        (["--url", "https://admin:pw@grafana.example"], "--url: no user or password in the address"),
        (["--url", "https://grafana.example/?orgId=2"], "--url: the address of Grafana itself"),
        (["--url", "http://grafana.example:port"], "--url: "),
        (["--url", "http://h", "--source", "slurm"], "--source: 'slurm' is none of exaserve, vllm, ray"),
        (["--url", "http://h", "--folder", " "], "--folder: give it a title"),
        (
            ["--url", "http://h", "--token-file", "/nowhere/token"],
            "--token-file: /nowhere/token: No such file",
        ),
        (["--url", "http://h", "--ca-file", "/nowhere/ca"], "--ca-file: /nowhere/ca is not a file"),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_sent(args: list[str], problem: str) -> None:
    result = CliRunner().invoke(app, ["push", *args])
    assert (result.exit_code, result.output.startswith(problem)) == (2, True), result.output
    assert "pw" not in result.output.replace("--", "")


@pytest.mark.parametrize("text", ["", "two tokens", "tökén"])
def test_a_file_that_holds_no_token_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    given = ["push", "--url", "http://h", "--token-file", str(tmp_path / "token")]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert not text or text not in result.output


def test_differences_are_found_by_name_whatever_the_order_and_only_where_ours_says_something() -> None:
    ours = {"panels": [{"title": "a", "n": 1}, {"title": "b", "n": 2}], "tags": ["x"], "links": [], "id": 4}
    theirs = {"panels": [{"title": "b", "n": 2, "extra": 1}, {"title": "c"}], "tags": ["x", "y"], "id": 9}
    assert list(differences(ours, theirs)) == [
        'panels["a"]: new',
        'panels["c"]: goes',
        "tags: 1 entries -> 1" if len(theirs["tags"]) == 1 else "tags: 2 entries -> 1",
    ]
    assert list(differences(ours, {**ours, "id": 1, "schemaVersion": 42, "version": 3})) == []
    moved = {**ours, "panels": ours["panels"][::-1]}
    assert list(differences(ours, moved)) == ["panels: in another order"]
    assert list(differences({"a": {"b": 1}}, {"a": {"b": "1"}})) == ["a.b: 1 -> 1"]


def test_no_board_differs_from_itself() -> None:
    for path in build.GENERATED.glob("*.json"):
        board = json.loads(path.read_text())
        assert list(differences(board, copy.deepcopy(board))) == []
