"""``exaserve exporter`` as a user starts it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from exporters import available
from exporters.cli import app

RUN = [sys.executable, "-m", "exporters"]
ONLY = ["--collector.disable-defaults"]
ENGINE = [*ONLY, "--collector.engine"]


def once(*args: str) -> str:
    """The page that these options give."""
    argv = [*RUN, *args, "--textfile", "-", "--once"]
    for _ in range(3):
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        if "still at work after its limit" not in ended.stderr:  # on a machine that stood still meanwhile
            break
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_it_serves_until_sigterm_and_then_ends_with_0(
    serve: Callable[..., str], page: Callable[[str], bytes], hung: str
) -> None:
    """Even while a scrape waits on a hung replica."""
    good = serve(page("vllm-0.6-metrics.txt"))
    argv = [*RUN, *ENGINE, "--port", "0", "--replica", f"replica-0={good}", "--replica", f"replica-1={hung}"]
    with subprocess.Popen([*argv, "--timeout", "1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            url = line.split()[1]
            assert line == f"exporter: {url} (engine)\n"
            # A second is enough for the good one but on a machine that stands still meanwhile.
            until = time.monotonic() + 60
            while 'exaserve_kv_blocks{replica="replica-0",' not in (text := httpx.get(url, timeout=30).text):
                assert time.monotonic() < until, text
            host, _, port = url.removeprefix("http://").removesuffix("/metrics").partition(":")
            with socket.create_connection((host, int(port))) as scraping:
                scraping.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--replica", "ftp://x"], "--replica: 'ftp://x' is not the address of a server"),
        (["--replica", "a=x:1", "--replica", "a=x:2"], "--replica: a is named twice"),
        (["--discover", "ftp://x"], "--discover: "),
        (["--port", "70000"], "65535"),
        (["--nonsense"], "nonsense"),
        (["--collector.nonsense"], "nonsense"),
        (["--mount", "models"], "--mount: 'models' is no absolute path"),
        (["--peer", "gpu-2"], "--peer: 'gpu-2' is no peer"),
        (["--set", "timeout"], "--set timeout: give KEY=VALUE"),
        (["--set", "timeout=[1"], "is no YAML value"),
        (["--set", "collectors={zzz: true}"], "there is no collector zzz; collectors: "),
        (["--config", "/no/such/file.yaml"], "/no/such/file.yaml: can't be read"),
        (["--token-file", "/no/such/file"], "--token-file /no/such/file: No such file"),
        (["--once"], "--once: goes with --textfile"),
        (["--textfile", "-"], "--textfile -: goes with --once"),
        (["--textfile", "/no/such/folder/x.prom"], "name a file in a folder that is there"),
        (["--textfile", "/"], "name a file in a folder that is there"),
    ],
)
def test_bad_usage_ends_with_2_and_says_what_to_write(args: list[str], says: str) -> None:
    shown = CliRunner().invoke(app, [*ONLY, *args])
    assert shown.exit_code == 2
    assert says in shown.stderr
    assert "Traceback" not in shown.stderr


def test_bad_usage_of_the_program_itself_is_no_traceback() -> None:
    ended = subprocess.run([*RUN, "--replica", "ftp://x"], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)


def test_a_port_in_use_ends_with_1_and_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [*RUN, *ONLY, "--port", str(port)], capture_output=True, text=True, timeout=120
        )
    assert ended.returncode == 1
    assert ended.stderr == (
        f"can't listen on 127.0.0.1:{port}: Address already in use; choose another with --host and --port\n"
    )


def test_mounted_under_exaserve_its_options_and_help_work() -> None:
    whole = typer.Typer()
    whole.command("other")(lambda: None)
    whole.add_typer(app, name="exporter")
    shown = CliRunner().invoke(whole, ["exporter", "--help"])
    assert shown.exit_code == 0
    assert "--replica" in shown.output
    assert CliRunner().invoke(whole, ["exporter", "--replica", "ftp://x"]).exit_code == 2


def test_the_help_has_each_collector_with_what_it_does_and_whether_it_is_on() -> None:
    shown = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    for name, about in available.collectors().items():
        state = "on" if about.default else "off"
        assert f"--collector.{name} / --no-collector.{name} {about.summary} ({state} by default)" in shown


def collectors(page: str) -> set[str]:
    return set(re.findall(r'collector_duration_seconds{collector="(\w+)"}', page))


def test_collectors_are_turned_on_and_off_by_flags_and_by_the_file(tmp_path: Path) -> None:
    config = tmp_path / "exaserve.yaml"
    config.write_text("exporter: {collectors: {engine: false, storage: false, infiniband: true}}\n")
    every = {name for name, about in available.collectors().items() if about.default}
    assert collectors(once(*ONLY)) == set()
    assert collectors(once(*ENGINE, "--collector.storage")) == {"engine", "storage"}
    assert collectors(once("--config", str(config), *ENGINE)) == {"engine", "infiniband"}
    shown = once(
        "--config", str(config), "--no-collector.infiniband", "--collector.engine", "--no-collector.gpu"
    )
    assert collectors(shown) == every - {"storage", "infiniband", "gpu"}


def test_only_the_collectors_that_are_on_are_imported() -> None:
    shows = "import sys, exporters.registry as r; r.build(r.Settings(), ['storage']);"
    shows += "print('httpx' in sys.modules, 'prometheus_client' in sys.modules, 'numpy' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", shows], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout == "False False False\n"


def test_a_page_is_kept_in_a_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "exaserve.prom"
    argv = [*RUN, *ONLY, "--textfile", str(path), "--interval", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == f"exporter: {path} every 1 s (no collector)\n"
            until = time.monotonic() + 60
            while not path.exists() and time.monotonic() < until:
                time.sleep(0.02)
            assert path.read_text().splitlines()[-1].startswith("exaserve_exporter_build_info{")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert not path.exists()


def test_one_page_is_written_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "exaserve.txt"
    shown = CliRunner().invoke(app, [*ONLY, "--textfile", str(path), "--once"])
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "node_exporter reads only files that end with .prom" in shown.stderr
    assert path.read_text().startswith("# HELP exaserve_exporter_build_info ")


def test_a_hang_up_ends_it_as_well_and_leaves_no_old_page(tmp_path: Path) -> None:
    path = tmp_path / "exaserve.prom"
    argv = [*RUN, *ONLY, "--textfile", str(path), "--interval", "1"]
    # Under nohup a hang-up is ignored, and what is ignored is inherited; here it is what a terminal would send.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGHUP, before)
        assert process.stdout
        try:
            process.stdout.readline()
            until = time.monotonic() + 60
            while not path.exists() and time.monotonic() < until:
                time.sleep(0.02)
            assert path.exists()
            process.send_signal(signal.SIGHUP)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert not path.exists()


def test_null_of_set_takes_back_what_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("exporter:\n  token_file: t\n  port: 9421\n")
    argv = ["--config", str(tmp_path / "c.yaml"), *ONLY, "--textfile", "-", "--once"]
    shown = CliRunner().invoke(app, [*argv, "--set", "token_file=null"])
    assert shown.exit_code == 0
    shown = CliRunner().invoke(app, [*argv, "--set", "port="])
    assert (shown.exit_code, shown.stderr.partition(";")[0].partition("\n")[0]) == (
        2,
        "--set port=: input should be a valid integer, not 'None'",
    )
