"""Steps carried out and taken back from any state, and records that are kept when something can't be."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos import identity, perform, recover, steps, undo


def do(step: dict[str, Any], undoing: bool = False) -> None:
    perform.execute(perform.Context("/nowhere/record", {}, undoing), step)


def a_record(home: Path, name: str = "a", **given: Any) -> Path:
    path = home / "chaos" / "undo" / f"{name}.json"
    record = {
        "version": 1, "id": name, "fault": "f", "engine": "e", "target": "t", "place": "here", "claims": [],
        "created": 0.0, "duration": 1.0, "until": None, "controller": None, "deadman": None, "state": "in",
        "do": [], "undo": [], "spawned": {}, "problems": [], "remote": None,
    }  # fmt: skip
    undo.write(str(path), record | given)
    return path


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def whose(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    found = identity.of(process.pid)
    assert found is not None
    return found


def state(process: subprocess.Popen[bytes]) -> str:
    found = identity.stat(process.pid)
    return found[0] if found else ""


# --- processes


def test_a_process_whose_pid_was_given_to_another_is_not_touched(sleeper: subprocess.Popen[bytes]) -> None:
    """Same pid, another start time: in an undo nothing is to do, in an injection it is an error."""
    other = {**whose(sleeper), "ticks": whose(sleeper)["ticks"] - 1}
    do(steps.end(other, grace=0.1), undoing=True)
    do(steps.signal(other, "SIGSTOP"), undoing=True)
    with pytest.raises(perform.StepError, match=f"process {sleeper.pid}, which was to get SIGKILL, is gone"):
        do(steps.signal(other, "SIGKILL"))
    do(steps.end({**whose(sleeper), "boot": "another boot"}, grace=0.1), undoing=True)
    assert sleeper.poll() is None
    assert identity.until(lambda: state(sleeper) == "S", 60)


def test_a_stopped_process_is_ended_too(sleeper: subprocess.Popen[bytes]) -> None:
    who = whose(sleeper)
    do(steps.signal(who, "SIGSTOP"))
    assert identity.until(lambda: state(sleeper) == "T", 60)
    do(steps.end(who, grace=60.0))
    assert sleeper.wait(30) == -signal.SIGTERM


def test_steps_inside_a_node_that_is_gone_do_nothing_in_an_undo(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Its pid stands in the prefix: another process's namespaces must never be entered."""
    gone = {**whose(sleeper), "ticks": 1}
    step = {**steps.run(["touch", str(tmp_path / "x")]), "inside": gone}
    do(step, undoing=True)
    assert not (tmp_path / "x").exists()
    with pytest.raises(perform.StepError, match="which holds the node together, is gone"):
        do(step)


# --- programs


def test_a_program_that_fails_says_why_and_absent_counts_in_an_undo_only() -> None:
    step = steps.run(["sh", "-c", "echo it is not there >&2; exit 3"], absent=["is not there"])
    with pytest.raises(perform.StepError, match="exit 3: it is not there"):
        do(step)
    do(step, undoing=True)
    with pytest.raises(perform.StepError, match="exit 3"):
        do({**step, "absent": ["something else"]}, undoing=True)
    with pytest.raises(perform.StepError, match="no-such-program: No such file"):
        do(steps.run(["no-such-program"]))


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(perform.StepError, match="no end"):
        do(steps.run(["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"], timeout=4.0))
    assert identity.until(lambda: identity.of(int(pid.read_text())) is None, 60)


def test_a_helper_that_ends_or_never_is_ready_is_an_error(tmp_path: Path) -> None:
    context = perform.Context(str(tmp_path / "record"), {}, undoing=False)
    with pytest.raises(perform.StepError, match="ended with exit 3: no luck"):
        perform.execute(context, steps.spawn("h", ["sh", "-c", "echo no luck; exit 3"], ready="ready"))
    step = steps.spawn("h", ["sh", "-c", "echo half a word; sleep 60"], ready="ready", timeout=4.0)
    with pytest.raises(perform.StepError, match="was not ready: half a word"):
        perform.execute(context, step)
    perform.execute(context, steps.stop("h"))
    assert not identity.alive(context.spawned["h"])


# --- files


def test_files_are_written_whole_and_given_back_unless_somebody_changed_them(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    do(steps.write(str(path), "broken", 0o640))
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("broken", 0o640)
    back = steps.write(str(path), "old", only_if="broken")
    path.write_text("mended by a person")
    do(back, undoing=True)
    assert path.read_text() == "mended by a person"
    path.write_text("broken")
    do(back, undoing=True)
    do(back, undoing=True)
    assert path.read_text() == "old"
    path.unlink()
    do(back, undoing=True)
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_removing_renaming_and_putting_may_be_done_twice(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("1")
    for _ in range(2):
        do(steps.rename(str(a), str(b)))
    assert b.read_text() == "1"
    a.write_text("2")
    with pytest.raises(perform.StepError, match="both there"):
        do(steps.rename(str(a), str(b)))
    for _ in range(2):
        do(steps.remove(str(a)), undoing=True)
    do(steps.mkdir(str(a)))
    do(steps.remove(str(a)))
    do(steps.put(str(tmp_path / "none" / "x"), "1"), undoing=True)
    with pytest.raises(perform.StepError, match="is not there"):
        do(steps.put(str(tmp_path / "none" / "x"), "1"))


# --- HTTP


def test_nobody_who_listens_any_more_is_fine_in_an_undo_only() -> None:
    step = steps.post("http://127.0.0.1:9/_sim/fault", {"kind": "none"})
    do(step, undoing=True)
    with pytest.raises(perform.StepError, match="refused"):
        do(step)


def test_an_answer_that_is_no_success_is_an_error_always() -> None:
    class No(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(403, "not you")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), No)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for undoing in (False, True):
            with pytest.raises(perform.StepError, match="HTTP 403"):
                do(steps.post(f"http://127.0.0.1:{server.server_port}/", {}, timeout=30.0), undoing)
    finally:
        server.shutdown()
        server.server_close()


# --- records


def test_every_step_of_an_undo_is_tried_and_what_failed_is_kept(tmp_path: Path, own_home: Path) -> None:
    first, last = tmp_path / "1", tmp_path / "2"
    first.write_text("")
    last.write_text("")
    fails = steps.run(["sh", "-c", "echo can not >&2; exit 1"])
    path = a_record(own_home, undo=[steps.remove(str(first)), fails, steps.remove(str(last))])
    problems = undo.undo(str(path), undo.read(str(path)), persist=0.1)
    assert problems == ["sh -c echo can not >&2; exit 1: exit 1: can not"]
    assert not first.exists()
    assert not last.exists()
    assert undo.read(str(path))["problems"] == problems


def test_a_step_that_fails_for_a_moment_is_tried_again(tmp_path: Path, own_home: Path) -> None:
    mark = tmp_path / "tried"
    path = a_record(
        own_home, undo=[steps.run(["sh", "-c", f"test -e {mark} || {{ touch {mark}; exit 1; }}"])]
    )
    assert undo.undo(str(path), undo.read(str(path))) == []
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no undo record"),
        ('{"version": 1, "id": "x"', "no undo record"),
        ("[]", "no undo record"),
        ('{"version": 2}', "version 2"),
        ('{"version": 1, "id": 5}', "id is no str"),
        ('{"a":' * 3000, "RecursionError"),
        (" " * (undo.MAX_BYTES + 1), "more than any record"),
        ("\x00\xff", "no undo record"),
    ],
)
def test_a_damaged_record_is_named_and_kept_and_the_others_are_undone(
    text: str, why: str, tmp_path: Path, own_home: Path
) -> None:
    mark = tmp_path / "mark"
    mark.write_text("")
    a_record(own_home, "good", undo=[steps.remove(str(mark))])
    damaged = own_home / "chaos" / "undo" / "damaged.json"
    damaged.write_text(text, encoding="latin-1")
    damaged.chmod(0o600)
    for undone in (["good"], []):
        found = recover.recover()
        assert found.undone == undone
        assert [path for path, _ in found.failed] == [damaged]
        assert why in found.failed[0][1]
    assert not mark.exists()
    assert damaged.exists()


def test_an_unknown_step_is_no_reason_to_do_half_of_a_record(tmp_path: Path, own_home: Path) -> None:
    mark = tmp_path / "mark"
    mark.write_text("")
    path = a_record(own_home)
    record = json.loads(path.read_text()) | {"undo": [steps.remove(str(mark)), {"op": "explode"}]}
    path.write_text(json.dumps(record))
    assert "unknown step 'explode'" in recover.recover().failed[0][1]
    assert mark.exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"until": "soon"}, "until is no int"),
        ({"deadman": {"pid": 1}}, "names no process"),
        ({"spawned": {"key": 3}}, "names no process"),
        ({"claims": [{}]}, "for a text"),
        (
            {"remote": {"node": "n", "path": "p", "host": "ssh"}},
            "how its node is reached",
        ),
        ({"remote": {"node": "n", "path": 3, "host": ["ssh"]}}, "where on which node"),
    ],
)
def test_a_record_with_a_field_of_another_kind_is_damaged(
    given: dict[str, Any], why: str, own_home: Path
) -> None:
    path = a_record(own_home, **given)
    with pytest.raises(undo.Damaged, match=why):
        undo.read(str(path))


def test_what_is_no_record_of_ours_is_never_carried_out_and_hides_no_other(
    tmp_path: Path, own_home: Path
) -> None:
    """A pipe would never end, a link shows where somebody else wants, another's file has another's steps."""
    good, mark = a_record(own_home, "good"), tmp_path / "mark"
    mark.write_text("")
    folder = good.parent
    os.mkfifo(folder / "pipe.json")
    (folder / "dangling.json").symlink_to("/nowhere/at/all")
    (folder / "link.json").symlink_to(a_record(own_home / "other", undo=[steps.remove(str(mark))]))
    (folder / "folder.json").mkdir()
    a_record(own_home, "open", undo=[steps.remove(str(mark))]).chmod(0o666)
    found = recover.recover()
    assert found.undone == ["good"]
    assert {path.stem: why.partition(";")[0] for path, why in found.failed} == {
        "pipe": "it is no file",
        "dangling": "it is a link",
        "link": "it is a link",
        "folder": "it is no file",
        "open": "another user could have written it (its owner or its mode)",
    }
    assert mark.exists()


@pytest.mark.parametrize(
    "step",
    [
        {"op": "run"},
        {"op": "run", "argv": []},
        {"op": "run", "argv": ["true"], "timeout": "long"},
        {"op": "signal", "who": {"pid": 10**30, "ticks": 1, "boot": ""}, "signal": "SIGTERM"},
        {"op": "signal", "who": {"pid": 1, "ticks": -1, "boot": ""}, "signal": "SIGNOTHING"},
        {"op": "post", "url": "gopher://x", "body": 1},
        {"op": "write", "path": "/nowhere/at/all", "text": "x"},
    ],
)
def test_a_step_that_makes_no_sense_is_an_error_and_nothing_worse(step: dict[str, Any]) -> None:
    with pytest.raises(perform.StepError):
        do(step, undoing=False)


def test_an_answer_that_is_no_http_is_an_error_of_the_step() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"what do you want?\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(perform.StepError, match="BadStatusLine"):
            do(steps.post(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, timeout=30.0), undoing=True)
        thread.join(60)


def test_programs_need_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is one of the faults: healing it must not need space on it."""
    monkeypatch.setattr("tempfile.tempdir", "/nowhere/at/all")
    do(steps.run(["sh", "-c", "cat >&2; [ $? = 0 ]"], input="words"))


def test_a_file_is_written_byte_by_byte_and_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    do(steps.write(str(path), "line\r\nGr\u00fc\u00dfe\udcff\n"))
    assert path.read_bytes() == b"line\r\nGr\xc3\xbc\xc3\x9fe\xff\n"
    assert path.stat().st_uid == (65534 if os.geteuid() == 0 else os.geteuid())


def test_records_are_for_their_user_alone(own_home: Path) -> None:
    path = a_record(own_home)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_two_that_recover_at_once_take_turns(tmp_path: Path, own_home: Path) -> None:
    """Each step is done once: the second one finds no record any more."""
    count = tmp_path / "count"
    a_record(own_home, undo=[steps.run(["sh", "-c", f"echo x >> {count}; sleep 0.3"])])
    argv = [sys.executable, "-m", "chaos.cli", "recover"]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].partition(":")[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert count.read_text() == "x\n"
    assert said[1] == "undone"


def test_half_written_records_of_dead_writers_are_swept_and_fresh_ones_are_not(own_home: Path) -> None:
    folder = own_home / "chaos" / "undo"
    folder.mkdir(parents=True)
    old, fresh = folder / ".x.json.abc", folder / ".y.json.def"
    old.write_text("{")
    fresh.write_text("{")
    os.utime(old, (0, 0))
    recover.recover()
    assert [p.name for p in folder.iterdir()] == [".y.json.def"]


def test_a_recorded_pid_that_another_process_has_by_now_is_spared(
    sleeper: subprocess.Popen[bytes], own_home: Path
) -> None:
    reused = {**whose(sleeper), "ticks": whose(sleeper)["ticks"] - 1}
    steps_ = [steps.signal(reused, "SIGCONT"), steps.end(reused), steps.stop("helper")]
    a_record(own_home, undo=steps_, spawned={"helper": reused}, deadman=reused)
    assert recover.recover().undone == ["a"]
    assert sleeper.poll() is None


def test_what_is_sent_to_nodes_needs_no_more_than_python_has() -> None:
    """The four files run without site-packages, and none imports another part of ours."""
    code = "import chaos.deadman, sys; print([m for m in sys.modules if m in ('psutil','pydantic','httpx','chaoslib')])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout == "[]\n", done.stderr
