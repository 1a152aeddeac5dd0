"""The command line: exit statuses and one-line messages."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from serving import cli
from tests.conftest import Stack, closed_port, exaserve

pytestmark = pytest.mark.xdist_group("simulated stack")  # one worker sets up what they share


def test_help_lists_every_command() -> None:
    done = exaserve("--help")
    assert done.returncode == 0
    for command in (
        "up",
        "down",
        "status",
        "logs",
        "ask",
        "config",
        "router",
        "drain",
        "exporter",
        "dashboards",
    ):
        assert f"\n  {command} " in done.stdout
    for command in ("audit", "intent", "tenants", "simulate-replicas"):
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["upp"], ["up", "--engine", "x"], ["logs", "-n", "-1"], ["up", "--set", "port"], ["up", "x"]],
)
def test_bad_usage_is_status_2_without_a_traceback(arguments: list[str], tmp_path: Path) -> None:
    done = exaserve(*arguments, env={"EXASERVE_HOME": str(tmp_path)})
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_a_bad_configuration_is_status_2_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("router:\n  prot: 1\n")
    for arguments in (
        ["config", "check", str(path)],
        ["up", "--config", str(path)],
        ["up", "--detach", "--config", str(path)],
    ):
        done = exaserve(*arguments, env={"EXASERVE_HOME": str(tmp_path / "home")})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"{path}:2: router.prot: unknown key; did you mean port?\n"
    assert not (tmp_path / "home").exists()


def test_set_reads_its_value_as_yaml(tmp_path: Path) -> None:
    done = exaserve("up", "--set", "router.port=yes", env={"EXASERVE_HOME": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.startswith("--set router.port=yes: router.port: must be a whole number, not True")


def test_config_check_of_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("engine: {kind: simulated}\n")
    done = exaserve("config", "check", str(path))
    assert (done.returncode, done.stdout) == (0, f"{path}: fine\n")


def test_config_schema_is_json() -> None:
    assert "router" in json.loads(exaserve("config", "schema").stdout)["properties"]


def test_with_nothing_up(tmp_path: Path) -> None:
    env = {"EXASERVE_HOME": str(tmp_path)}
    status = exaserve("status", env=env)
    assert (status.returncode, status.stdout) == (
        1,
        f"the stack is not up (looked in {tmp_path / 'run'}); exaserve up starts it\n",
    )
    assert exaserve("status", "--json", env=env).stdout == "null\n"
    down = exaserve("down", env=env)
    assert (down.returncode, down.stdout) == (0, f"nothing is up (looked in {tmp_path / 'run'})\n")
    logs = exaserve("logs", env=env)
    assert (logs.returncode, logs.stderr) == (1, "there are no logs yet; exaserve up writes them\n")
    assert list(tmp_path.iterdir()) == []


def test_ask_without_a_server_says_so() -> None:
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}"
        done = exaserve("ask", "hello", "--url", url)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{url} gave no answer: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n\r\nnonsense", b"\x16\x03", b"HTTP/1.1 200 OK\r\n\r\n[]"]
)
def test_ask_survives_a_server_that_is_none(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "serving.cli", "ask", "hello", "--url", url],
            stderr=subprocess.PIPE,
            text=True,
        )
        with server.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(answer)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1


def test_ask_shows_answer_and_timing(simulated_stack: Stack) -> None:
    done = exaserve("ask", "hello", "--max-tokens", "5", env=simulated_stack.env)
    assert done.returncode == 0
    *answer, timing = done.stdout.splitlines()
    assert len(" ".join(answer).split()) >= 1
    assert timing.startswith("(TTFT ")
    assert "5 tokens in" in timing
    assert "by replica-" in timing


def test_logs_of_one_part_and_of_an_unknown_one(simulated_stack: Stack) -> None:
    env = simulated_stack.env
    assert exaserve("logs", "stack", "-n", "1000", env=env).stdout.count("everything is ready") == 1
    wrong = exaserve("logs", "replica-9", env=env)
    assert wrong.returncode == 2
    assert wrong.stderr == ("no log of replica-9; there are: exporter, replica-0, replica-1, router, stack\n")
    prefixed = exaserve("logs", env=env).stdout.splitlines()
    assert {line.split("|")[0].strip() for line in prefixed} <= {
        "exporter", "replica-0", "replica-1", "router", "stack"
    }  # fmt: skip


def test_logs_follow_shows_new_lines_even_after_the_log_was_emptied(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "router.log"
    log.write_text("old line that is long\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "logs", "router", "-f", "-n", "1"],
        env={**os.environ, "EXASERVE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT and hands that on; Ctrl-C comes to a foreground job.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "old line that is long\n"
            log.write_text("new\n")
            assert process.stdout.readline() == "new\n"
            with log.open("a") as f:
                f.write("half")
                f.flush()
                time.sleep(0.5)
                f.write(" whole\n")
            assert process.stdout.readline() == "half whole\n"
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            assert process.returncode == 130
        finally:
            process.kill()


def test_a_reader_that_goes_away_is_no_error(simulated_stack: Stack) -> None:
    command = f"{sys.executable} -m serving.cli logs stack -n 1000 | true; echo ${{PIPESTATUS[0]}}"
    env = {**os.environ, **simulated_stack.env}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_broken_command_of_another_folder_breaks_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "nowhere.cli:app", "exaserve.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [broken])
    monkeypatch.setattr(sys, "argv", ["exaserve"])
    app = cli.build_app()
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert "status" in shown.output
    used = CliRunner().invoke(app, ["broken", "--port", "1"])
    assert used.exit_code == 1
    assert (
        "exaserve broken is not usable here (ModuleNotFoundError: No module named 'nowhere')" in used.output
    )


def test_the_effective_configuration_is_what_the_router_gets(simulated_stack: Stack) -> None:
    home = Path(simulated_stack.env["EXASERVE_HOME"])
    effective = yaml.safe_load((home / "run" / "exaserve.yaml").read_text())
    assert effective["monitoring"]["enabled"] is False
    assert simulated_stack.router.endswith(f":{effective['router']['port']}")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[", "http://a b", "ftp://x"]
)
def test_ask_at_an_address_that_is_none(url: str) -> None:
    done = exaserve("ask", "hello", "--url", url)
    assert (done.returncode, done.stderr) == (1, f"{url} is no http://HOST:PORT address\n")


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (b'data: {"choices":[{"delta":{"content":"Par"}}]}\n\n', "the answer was cut"),
        (b'data: {"choices":[{"delta":null}]}\n\n', "gave no answer"),
        (b'data: {"error":"boom"}\n\n', "gave no answer"),
        (b'data: {"usage":{"completion_tokens":1e999}}\n\n', "gave no answer"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "gave no answer"),
    ],
)
def test_ask_says_what_is_wrong_with_an_answer(events: bytes, words: str) -> None:
    models = b'{"data":[{"id":"m"}]}'
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "serving.cli", "ask", "hello", "--url", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with server.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(models), models))
            connection.recv(4096)
            chunk = b"%x\r\n%s\r\n" % (len(events), events)
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk)
            # With something of the request unread a close is a reset, which may overtake the answer.
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert words in error
    assert len(error.splitlines()) == 1, error


@pytest.mark.parametrize("command", ["up", "down"])
def test_a_home_that_can_t_be_used_is_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = exaserve(command, env={"EXASERVE_HOME": str(tmp_path / "file")})
    assert done.returncode == 1
    assert done.stderr.startswith(f"exaserve: {tmp_path}/file/run")
    assert len(done.stderr.splitlines()) == 1
