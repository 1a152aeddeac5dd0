"""The acceptance matrix: what counts as passed, what the page says, and the client that knows two regions."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from chaos.acceptance import page, result, runner, two_addresses
from chaos.acceptance.bench import Bench
from chaos.acceptance.result import Result
from chaos.acceptance.rows import ROWS, Row
from chaos.fault import ActivityFailed
from chaos.lab import build
from chaos.lab import state as lab_state
from chaos.place import Place, Replica
from tests.conftest import exaserve

RUNBOOKS = Path(__file__).parents[2] / "runbooks"


def made(state: result.State, key: str = "node-lost") -> Result:
    return Result(key, "Node lost", state=state)


class Ready(Place):
    """Two replicas that serve."""

    name = "lab:fake"

    def __init__(self, serving: bool = True) -> None:
        super().__init__()
        self.serving = serving
        self.addresses = {"router": "http://127.0.0.1:9", "admin": "http://127.0.0.1:9"}

    def replicas(self) -> list[Replica]:
        return [Replica(f"replica-{i}", f"http://r{i}", f"node-{i}", 1, 80, self.serving) for i in range(2)]

    def nodes(self) -> list[Any]:
        return []


def bench(tmp_path: Path, place: Place | None = None) -> Bench:
    there = place or Ready()
    return Bench(there, there, tmp_path, lambda text: None)


# --- what counts ---


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["passed"], 0),
        (["passed", "not built"], 0),
        (["passed", "failed"], 1),
        (["passed", "not run"], 1),
        (["not built"], 1),
        ([], 1),
    ],
)
def test_all_rows_that_are_built_have_to_pass(states: list[result.State], code: int) -> None:
    assert result.exit_code([made(s) for s in states]) == code


def test_the_verdict_names_what_counts_neither_way() -> None:
    states: list[result.State] = ["passed", "passed", "failed", "not built", "not run"]
    assert result.verdict([made(s) for s in states]) == "2 passed, 1 failed, 1 not run, 1 not built"


def test_a_row_without_a_check_is_no_pass() -> None:
    empty = made("not run")
    empty.judge()
    assert empty.state == "failed"
    empty.check("a", "b", True)
    empty.judge()
    assert empty.state == "passed"
    empty.check("c", "d", False)
    empty.judge()
    assert empty.state == "failed"


def test_the_matrix_has_its_eight_rows_with_runbooks_that_exist() -> None:
    assert [row.key for row in ROWS] == [
        *(
            "replica-terminated",
            "node-lost",
            "weights-cache-empty",
            "upstream-429",
            "over-long-request",
            "peak",
        ),
        *("canary-regression", "region-switch"),
    ]
    assert [row.key for row in ROWS if row.act is None] == ["canary-regression"]
    assert all((RUNBOOKS / f"{row.runbook}.md").is_file() for row in ROWS)
    assert all(row.missing or row.act for row in ROWS)


# --- running rows ---


def act(fill: Any) -> Row:
    return Row("node-lost", "Node lost", "", fill, "ExaServeNodeDown")


def test_a_row_that_cannot_be_carried_out_is_not_run_and_says_why(tmp_path: Path) -> None:
    def fails(bench: Bench, into: Result) -> None:
        into.check("something", "seen", True)
        raise ActivityFailed("node-1 is down already")

    found = runner.one(act(fails), bench(tmp_path))
    assert (found.state, found.reason) == ("not run", "node-1 is down already")
    assert result.exit_code([made("passed"), found]) == 1


def test_no_row_begins_on_a_fleet_that_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "wait_ready", lambda self, seconds=0.0: None)
    begun: list[int] = []
    found = runner.one(act(lambda b, r: begun.append(1)), bench(tmp_path, Ready(False)))
    assert (found.state, begun) == ("not run", [])
    assert "not every replica was in rotation" in found.reason


def test_a_row_that_is_not_built_touches_nothing(tmp_path: Path) -> None:
    row = next(r for r in ROWS if r.act is None)
    found = runner.one(row, bench(tmp_path, Ready(False)))
    assert (found.state, found.reason, found.checks) == ("not built", row.missing, [])


def test_it_tells_each_row_as_it_ends_and_keeps_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.places.open", lambda text: Ready())
    said: list[str] = []
    kept: list[int] = []

    def passes(bench: Bench, into: Result) -> None:
        into.check("no request is lost", "0 of 12", True)

    rows = [act(passes), act(passes)]
    found = runner.run(
        rows, "lab:fake", tmp_path, said.append, False, lambda results: kept.append(len(results))
    )
    assert [r.state for r in found] == ["passed", "passed"]
    assert kept == [1, 2]
    assert any(re.fullmatch(r"\[2/2\] Node lost: PASSED after \d+ s", line) for line in said)
    assert "      ok   no request is lost: 0 of 12" in said


# --- a lab of its own ---


class Commands:
    """Stands for ``exaserve lab``, which always succeeds; what it was asked for, and who ignores Ctrl-C meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.undisturbed: list[bool] = []
        monkeypatch.setattr(runner, "_lab", self._lab)

    def _lab(self, say: Any, *words: str) -> int:
        self.asked.append(words[0])
        self.undisturbed.append(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
        return 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_its_lab_goes_however_it_is_ended(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Commands(monkeypatch)
    before = [signal.getsignal(n) for n in runner._SIGNALS]
    with pytest.raises(KeyboardInterrupt), runner.own_lab("acc", print):
        signal.raise_signal(number)
    assert (lab.asked, lab.undisturbed) == (["up", "down"], [False, True])
    assert [signal.getsignal(n) for n in runner._SIGNALS] == before


def test_what_was_told_to_outlive_its_terminal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Commands(monkeypatch)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runner.own_lab("acc", print):
            signal.raise_signal(signal.SIGHUP)
            lab.asked.append("row")
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert lab.asked == ["up", "row", "down"]


@pytest.mark.parametrize("phase", ["ready", "building"])
def test_a_lab_of_that_name_that_is_up_is_neither_used_nor_removed(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Commands(monkeypatch)
    plan = lab_state.plan("acc", 1, 1, 0, 1, "tuned", [])
    lab_state.write(plan | {"phase": phase})
    monkeypatch.setattr(build.network, "owner", lambda name: plan["folder"])
    monkeypatch.setattr(build.teardown, "processes", lambda place: [1])
    with (
        pytest.raises(runner.LabFailed, match=r"'acc' is up already.*exaserve lab down --name acc;.*--name"),
        runner.own_lab("acc", print),
    ):
        pass
    assert lab.asked == []


# --- the page ---


@pytest.fixture
def report(tmp_path: Path) -> Path:
    one = Result(
        "node-lost",
        "Node lost",
        "failed",
        done="node_killed on node-1: 0 of 6 processes are left",
        seconds=21,
    )
    one.check("no request is lost", "2 of 200 lost <b>", False)
    one.evidence = ["node-lost/load/requests.jsonl", "alert ExaServeNodeDown"]
    (tmp_path / "node-lost" / "load").mkdir(parents=True)
    (tmp_path / "node-lost" / "load" / "requests.jsonl").write_text("{}\n")
    two = Result("canary-regression", "Canary regression", "not built", reason="There is no rollout yet.")
    page.write(tmp_path, page.Run("lab:acc", 1000.0, 1090.0, "exaserve acceptance"), [one, two])
    return tmp_path


def test_the_page_needs_nothing_else_and_says_expected_seen_verdict_and_evidence(report: Path) -> None:
    text = (report / "acceptance.html").read_text()
    assert "0 passed, 1 failed, 1 not built" in text
    assert "2 of 200 lost &lt;b&gt;" in text
    assert '<a href="node-lost/load/requests.jsonl">' in text
    assert "alert ExaServeNodeDown" in text
    assert "There is no rollout yet." in text
    assert not re.search(r'(src|href)="(https?:)?//', text)
    assert "<script" not in text


def test_markdown_and_json_say_the_same(report: Path) -> None:
    assert "| Node lost | No request is lost" in (report / "acceptance.md").read_text()
    data = json.loads((report / "acceptance.json").read_text())
    assert (data["version"], data["passed"], [r["state"] for r in data["rows"]]) == (
        1,
        False,
        ["failed", "not built"],
    )
    assert data["rows"][0]["checks"] == [
        {"expected": "no request is lost", "seen": "2 of 200 lost <b>", "held": False}
    ]


# --- a client with two addresses ---


@contextmanager
def region(answer: str) -> Iterator[str]:
    """A router: ``ok``, ``503``, ``silent`` (never answers), ``cut`` (breaks off after a token)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if answer == "silent":
                over.wait(60)
                return
            self.send_response(503 if answer == "503" else 200)
            self.send_header("connection", "close")
            self.end_headers()
            if answer in ("ok", "cut"):
                self.wfile.write(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
            if answer == "ok":
                self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None:
            pass

    over = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Whoever answers at all is waited for, however busy the machine is."""
    monkeypatch.setattr(two_addresses, "FIRST", 20.0)
    return monkeypatch


def ask(*addresses: str, count: int = 3) -> list[two_addresses.Asked]:
    return two_addresses.Client(list(addresses), "m", 50.0, count / 50).start().join()


@pytest.mark.parametrize("first", ["503", "silent", "gone"])
def test_what_had_not_begun_is_asked_again_at_the_other_address(
    first: str, patience: pytest.MonkeyPatch
) -> None:
    if first == "silent":
        patience.setattr(two_addresses, "FIRST", 4.0)
    with region("503" if first == "gone" else first) as home, region("ok") as away:
        asked = ask("http://127.0.0.1:9" if first == "gone" else home, away)
    assert [a.outcome for a in asked] == ["ok"] * 3
    assert {a.addresses[-1] for a in asked} == {away}


@pytest.mark.usefixtures("patience")
def test_what_had_begun_is_cut_and_not_asked_again() -> None:
    with region("cut") as home, region("ok") as away:
        asked = ask(home, away, count=1)
    assert [(a.outcome, a.addresses) for a in asked] == [("cut", (home,))]


@pytest.mark.usefixtures("patience")
def test_without_anybody_it_is_lost_and_the_reason_is_told() -> None:
    with region("503") as home, region("503") as away:
        (one,) = ask(home, away, count=1)
    assert (one.outcome, one.addresses, one.detail) == ("lost", (home, away), f"{away}: status 503")


@pytest.mark.usefixtures("patience")
def test_the_address_that_answered_last_is_asked_first() -> None:
    with region("503") as home, region("ok") as away:
        client = two_addresses.Client([home, away], "m", 1.0, 0.0)
        for due in (1.0, 2.0):  # not by the clock: the first one has ended before the second one begins
            client._ask(two_addresses.Asked(due))
        asked = client.start().join()
    assert [a.addresses for a in asked] == [(home, away), (away,)]


# --- the command ---


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "nothing"), "no row 'nothing'; rows: replica-terminated"),
        (("--place", "cluster.yaml"), "a lab is needed"),
        (("--place", "lab:nobody"), "not up"),
    ],
)
def test_wrong_usage_says_the_cure(arguments: tuple[str, ...], said: str, own_home: Path) -> None:
    done = exaserve("acceptance", *arguments)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_its_rows_can_be_read_without_doing_anything() -> None:
    done = exaserve("acceptance", "--rows")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [row.key for row in ROWS]
    assert "not built: There is no rollout yet" in done.stdout
