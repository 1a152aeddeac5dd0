"""`exaserve up` end to end on simulated replicas: what it shows, what it survives, what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from serving import monitoring, record
from serving import stack as stack_module
from serving.config import load
from serving.launch.local import boot_id, identity
from tests.conftest import Stack, exaserve, free_ports, stack_config, start

SIMULATED = {"kind": "simulated"}
OFF = {"enabled": False}
#: A replica that was slow for a moment is not taken for degraded or frozen: the machine may have been.
PATIENT = {
    "health_check_interval": 20.0,
    "probe_timeout": 30.0,
    "degraded_after": 20.0,
    "silence_timeout": 30.0,
}


def wait_for(what: Callable[[], Any], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)
    return found


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def of_home(home: Path) -> list[int]:
    """Every process that was started for the stack of this folder, guards too."""
    found = []
    for p in psutil.process_iter():
        try:
            if p.environ().get("EXASERVE_HOME") == str(home) and p.status() != psutil.STATUS_ZOMBIE:
                found.append(p.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """An $EXASERVE_HOME in which nothing is left running."""
    yield tmp_path
    exaserve("down", env={"EXASERVE_HOME": str(tmp_path)})
    end = time.monotonic() + 30  # guards end when they see that their part has
    while (left := of_home(tmp_path)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


def up(home: Path, *arguments: str, **sections: Any) -> Stack:
    sections = {"engine": SIMULATED, "monitoring": OFF, "router": PATIENT, **sections}
    return start(stack_config(home, **sections), {"EXASERVE_HOME": str(home)}, *arguments)


def foreground(home: Path, config: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "up", "--config", str(config)],
        env={**os.environ, "EXASERVE_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    pytest.fail(f"ended without {text!r}:\n{seen}")


def test_up_shows_progress_addresses_an_answer_and_how_to_go_on(home: Path) -> None:
    stack = up(home)
    lines = stack.output.splitlines()
    for part in ("replica-0", "replica-1", "router", "exporter"):
        states = [line.split()[3] for line in lines if line.split()[2:3] == [part] and " s  " in line]
        assert states[0] == "starting"
        assert states[-1] == "ready"
    assert "everything is ready after" in stack.output
    assert f"  router        {stack.router}" in stack.output
    assert "  Q: What is the capital of France?\n  A: " in stack.output
    assert "TTFT" in stack.output
    assert "by replica-" in stack.output
    assert f"curl {stack.router}/v1/chat/completions" in stack.output
    assert "exaserve down" in stack.output
    assert "\x1b" not in stack.output  # no terminal, no control sequences
    assert "\r" not in stack.output


def test_status_shows_every_part_and_down_leaves_nothing(home: Path) -> None:
    stack = up(home)
    found = stack.status()
    assert [p["part"] for p in found["parts"]] == [
        "supervisor",
        "replica-0",
        "replica-1",
        "router",
        "exporter",
    ]
    assert {p["state"] for p in found["parts"]} == {"ready"}
    assert all(p["rss_mib"] > 1 and p["restarts"] == 0 for p in found["parts"])
    pids = [p["pid"] for p in found["parts"]]
    again = exaserve("up", "--config", str(stack.config), env=stack.env)
    assert again.returncode == 0
    assert again.stdout.startswith("the stack is up since ")
    assert stack.router in again.stdout
    ended = exaserve("down", env=stack.env)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(map(gone, pids))
    wait_for(lambda: of_home(home) == [], 5)  # what got SIGKILL has to die yet
    assert not (home / "run" / "stack.json").exists()
    assert exaserve("status", env=stack.env).returncode == 1
    assert exaserve("down", env=stack.env).stdout.startswith("nothing is up (looked in ")


def test_a_killed_replica_is_restarted_on_its_port(home: Path) -> None:
    stack = up(home)
    before = stack.pids
    os.kill(before["replica-1"], signal.SIGKILL)

    def back() -> dict[str, Any] | None:
        part = next(p for p in stack.status()["parts"] if p["part"] == "replica-1")
        return part if part["restarts"] == 1 and part["state"] == "ready" else None

    part = wait_for(back)
    assert part["pid"] != before["replica-1"]
    port = int(part["address"].rsplit(":", 1)[1])
    listening = {c.laddr.port for c in psutil.Process(part["pid"]).net_connections() if c.status == "LISTEN"}
    assert listening == {port}
    log = exaserve("logs", "stack", env=stack.env).stdout
    assert "replica-1  restarting ended by SIGKILL" in log
    others = {name: pid for name, pid in stack.pids.items() if name != "replica-1"}
    assert others == {name: pid for name, pid in before.items() if name != "replica-1"}


def test_a_frozen_part_is_killed_and_restarted(home: Path) -> None:
    router = {
        "health_check_interval": 1.0,
        "probe_timeout": 1.0,
        "degraded_after": 0.5,
        "silence_timeout": 1.0,
    }
    stack = up(home, fleet={"restart_frozen_after": 2.0}, router=router)
    # The router too: its process lives, and nobody but the supervisor would ever look at it again.
    for name in ("replica-0", "router", "exporter"):
        os.kill(stack.pids[name], signal.SIGSTOP)

        def back(name: str = name) -> bool:
            part = next(p for p in stack.status()["parts"] if p["part"] == name)
            # More than once where this machine is so slow that the new one is taken for frozen, too.
            return part["restarts"] >= 1 and part["state"] == "ready"

        wait_for(back)
    assert "killed" in exaserve("logs", "stack", env=stack.env).stdout


def test_sigterm_in_the_foreground_ends_everything_in_order(home: Path) -> None:
    process = foreground(home, stack_config(home, engine=SIMULATED, monitoring=OFF))
    read_until(process, "exaserve down, or Ctrl-C here")
    wait_for(lambda: (found := record_of(home)) and found["phase"] == "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    order = [line.split()[1] for line in out.splitlines() if " ended " in line]
    assert order[0] == "router"
    assert order[-1] == "exporter"
    assert out.endswith("everything has ended\n")
    wait_for(lambda: of_home(home) == [], 5)


def test_ctrl_c_during_the_start_ends_what_was_started(home: Path) -> None:
    process = foreground(home, stack_config(home, engine=SIMULATED, monitoring=OFF))
    read_until(process, "starting")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    wait_for(lambda: of_home(home) == [], 5)


def test_a_killed_supervisor_leaves_nothing_and_the_next_up_cleans(home: Path) -> None:
    stack = up(home)
    pids = stack.pids
    os.kill(pids["supervisor"], signal.SIGKILL)
    wait_for(lambda: all(map(gone, pids.values())))
    wait_for(lambda: of_home(home) == [])
    assert (home / "run" / "stack.json").exists()
    assert exaserve("status", env=stack.env).returncode == 1
    again = exaserve("up", "--detach", "--config", str(stack.config), env=stack.env)
    assert again.returncode == 0, again.stdout + again.stderr
    assert set(stack.pids.values()).isdisjoint(pids.values())


def test_a_port_in_use_is_named_with_its_holder_and_key_and_nothing_starts(home: Path) -> None:
    config = stack_config(home, engine=SIMULATED, monitoring=OFF)
    port = load(config).router.admin_port
    with socket.create_server(("127.0.0.1", port)):
        done = exaserve("up", "--config", str(config), env={"EXASERVE_HOME": str(home)})
    assert done.returncode == 1
    line = done.stderr.splitlines()[0]
    assert line.startswith(f"port {port} (router.admin_port) is held by python")
    assert f"(pid {os.getpid()}, user " in line
    assert line.endswith("; end it or change router.admin_port")
    assert done.stderr.splitlines()[-1] == "nothing was started"
    assert not (home / "logs" / "router.log").exists()


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_replica_that_dies_at_start_shows_its_last_lines_and_the_cure(
    home: Path, detach: list[str]
) -> None:
    config = stack_config(home, engine=SIMULATED, monitoring=OFF)
    broken = home / "bin" / "python"  # stands for an engine that can't start
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'MemoryError: no room for the KV cache'\nexit 1\n")
    broken.chmod(0o755)
    code = (
        "import sys; from serving import engines, parts, cli\n"
        f"parts.command = lambda *_: engines.Launch([{str(broken)!r}])\n"
        "cli.main()"
    )
    if detach:  # its supervisor is a fresh interpreter, which the replacement above does not reach
        site = home / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(code.replace("cli.main()", "").replace(", cli", ""))
    done = subprocess.run(
        [sys.executable, "-c", code, "up", "--config", str(config), *detach],
        env={**os.environ, "EXASERVE_HOME": str(home), **({"PYTHONPATH": str(site)} if detach else {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "    | MemoryError: no room for the KV cache" in said
    assert "ended with status 1 at every start; often too little memory" in said
    wait_for(lambda: of_home(home) == [], 5)


def test_what_a_killed_supervisor_left_is_ended_but_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    left, stranger = (subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2))
    try:
        mine, other = identity(left.pid), identity(stranger.pid)
        assert mine is not None
        assert other is not None
        recycled = record.Identity(other.pid, other.ticks - 100, boot_id())
        stale = record.Record(recycled, time.time(), "ready")
        stale.parts = [
            record.PartRecord("a", "", identity=mine),
            record.PartRecord("b", "", identity=recycled),
        ]
        stale.write()
        assert not record.is_up()
        assert record.clean_stale() == ["a"]
        assert left.wait(60) == -signal.SIGKILL
        assert stranger.poll() is None
        assert record.read() is None
    finally:
        left.kill()
        stranger.kill()
        left.wait()
        stranger.wait()


def test_down_names_what_sigkill_does_not_end_and_keeps_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    held, killed = (subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2))
    try:
        who = [identity(p.pid) for p in (held, killed)]
        stale = record.Record(record.Identity(held.pid, -1, boot_id()), time.time(), "ready")
        stale.parts = [record.PartRecord(n, "", identity=w) for n, w in zip("ab", who, strict=True)]
        stale.write()
        send, wait = record.Identity.signal, record.wait_gone
        said: list[str] = []

        def signal_but_held(self: record.Identity, number: int, group: bool = False) -> None:
            if self.pid != held.pid:  # as if the kernel held it
                send(self, number, group)

        with monkeypatch.context() as patched:
            patched.setattr(record.Identity, "signal", signal_but_held)
            patched.setattr(record, "wait_gone", lambda processes, _: wait(processes, 1.0))
            for _ in range(2):
                with pytest.raises(
                    stack_module.StackError, match=rf"SIGKILL did not end a \(pid {held.pid}\)"
                ):
                    stack_module.down(said.append)
                found = record.read()
                assert found is not None
                assert [p.name for p in found.parts] == ["a"]
        assert (killed.wait(60), held.poll()) == (-signal.SIGKILL, None)
        stack_module.down(said.append)
        assert said == ["nothing is up; ended what was left over: a"]
        assert record.read() is None
    finally:
        for process in (held, killed):
            process.kill()
            process.wait()


def test_down_does_not_say_that_a_supervisor_has_ended_which_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    lock = record.lock()
    assert lock is not None
    me = identity(os.getpid())
    assert me is not None
    record.Record(me, time.time(), "ready").write()
    monkeypatch.setattr(record.Identity, "signal", lambda *_, **__: None)
    monkeypatch.setattr(record, "wait_gone", lambda *_: False)
    try:
        with pytest.raises(stack_module.StackError, match=rf"did not end exaserve up \(pid {me.pid}\)"):
            stack_module.down(lambda _: None)
        assert record.read() is not None
    finally:
        os.close(lock)


def test_up_ends_without_a_part_that_the_kernel_holds_and_leaves_its_record(home: Path) -> None:
    config = stack_config(home, engine=SIMULATED, monitoring=OFF, fleet={"replicas_per_node": 1})
    code = (
        "from serving import supervisor, cli\n"
        "from serving.launch.local import Process\n"
        "supervisor._KILL_SECONDS = 3.0\n"
        "for name in ('terminate', 'kill'):\n"
        "    def held(self, real=getattr(Process, name)):\n"
        "        if self.log.stem != 'replica-0': real(self)\n"
        "    setattr(Process, name, held)\n"
        "cli.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "up", "--config", str(config)],
        env={**os.environ, "EXASERVE_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        read_until(process, "exaserve down, or Ctrl-C here")
        process.send_signal(signal.SIGINT)
        read_until(process, "ending: router")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "SIGKILL did not end replica-0 (pid " in said
    assert "everything has ended" not in said
    found = record_of(home)
    assert found is not None
    assert [p["name"] for p in found["parts"]] == ["replica-0"]


def test_down_leaves_alone_what_another_up_has_just_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    gone, part = (subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2))
    old, new = identity(gone.pid), identity(part.pid)
    assert old is not None
    assert new is not None
    record.Record(old, time.time(), "ready").write()
    lock = record.lock()
    assert lock is not None

    def ended(*_: object) -> bool:
        # The first one has ended, and in that instant the next one starts.
        record.Record(old, time.time(), parts=[record.PartRecord("a", "", identity=new)]).write()
        return True

    monkeypatch.setattr(record, "wait_gone", ended)
    try:
        with pytest.raises(stack_module.StackError, match="another exaserve up has started"):
            stack_module.down(lambda _: None)
        assert part.poll() is None
        assert record.read() is not None
    finally:
        os.close(lock)
        for process in (gone, part):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "[" * 100_000, '{"parts": 3}', '{"parts": [{"identity": 1}]}', "\x00"]
)
def test_a_damaged_record_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    record.path().write_text(text)
    assert record.read() is None
    assert record.clean_stale() == []


def test_without_prometheus_the_stack_goes_on_and_says_how_to_get_it(home: Path) -> None:
    config = stack_config(home, engine=SIMULATED, monitoring={"enabled": True})
    env = {"EXASERVE_HOME": str(home), "PATH": "/nowhere"}
    stack = start(config, env)
    assert "prometheus and prometheus-alertmanager not found, going on without" in stack.output
    assert "sudo apt-get install prometheus prometheus-alertmanager" in stack.output
    assert stack.prometheus == ""


@pytest.mark.real
def test_prometheus_watches_every_part_and_knows_the_rules(home: Path) -> None:
    stack = up(home, monitoring={"enabled": True, "scrape_interval": 1.0})

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"{stack.prometheus}/api/v1/{path}", timeout=60) as answer:
            return json.load(answer)["data"]

    def jobs() -> list[str] | None:
        targets = ask("targets")["activeTargets"]
        return (
            sorted(t["labels"]["job"] for t in targets) if all(t["health"] == "up" for t in targets) else None
        )

    expected = [
        "alertmanager",
        "exaserve-exporter",
        "exaserve-replica",
        "exaserve-replica",
        "exaserve-router",
    ]
    wait_for(lambda: jobs() == [*expected, "prometheus"])
    assert {g["name"] for g in ask("rules")["groups"]}
    wait_for(lambda: ask("alertmanagers")["activeAlertmanagers"])  # it looks for them every few seconds


@pytest.mark.real
def test_generated_configurations_are_accepted_by_promtool_and_amtool(tmp_path: Path) -> None:
    config = load(None, {"monitoring.scrape_interval": (0.5, "x"), "exporter.host": ("0.0.0.0", "x")})
    for name, text, tool in (
        (
            "prometheus.yml",
            monitoring.prometheus_config(config, monitoring.rules_folder()),
            ["promtool", "check", "config"],
        ),
        ("alertmanager.yml", monitoring.alertmanager_config(), ["amtool", "check-config"]),
    ):
        assert shutil.which(tool[0]), f"{tool[0]} is missing; make tools installs it"
        (tmp_path / name).write_text(text)
        done = subprocess.run([*tool, str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "127.0.0.1:9420" in (tmp_path / "prometheus.yml").read_text()


def test_replicas_are_as_many_as_asked_for(home: Path) -> None:
    first = free_ports(3)
    stack = up(home, "--replicas", "1", "--port", str(first), "--set", f"router.admin_port={first + 1}")
    assert stack.router == f"http://127.0.0.1:{first}"
    assert [name for name in stack.pids if name.startswith("replica")] == ["replica-0"]


def record_of(home: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads((home / "run" / "stack.json").read_text()))
    except OSError:
        return None
