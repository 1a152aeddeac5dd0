"""``exaserve exporter`` as a user starts it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest
import typer
from typer.testing import CliRunner

from exporters.cli import app

RUN = [sys.executable, "-m", "exporters"]


def test_it_serves_until_sigterm_and_then_ends_with_0(
    serve: Callable[..., str], page: Callable[[str], bytes], hung: str
) -> None:
    """Even while a scrape waits on a hung replica."""
    good = serve(page("vllm-0.6-metrics.txt"))
    argv = [*RUN, "--port", "0", "--replica", f"replica-0={good}", "--replica", f"replica-1={hung}"]
    with subprocess.Popen([*argv, "--timeout", "1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            url = process.stdout.readline().split()[1]
            assert (
                'exaserve_kv_blocks{model="facebook/opt-125m",replica="replica-0"} 27898.0'
                in httpx.get(url, timeout=30).text
            )
            host, _, port = url.removeprefix("http://").removesuffix("/metrics").partition(":")
            with socket.create_connection((host, int(port))) as scraping:
                scraping.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--replica", "ftp://x"], "is not the address of a server"),
        (["--replica", "a=x:1", "--replica", "a=x:2"], "a is named twice"),
        (["--discover", "ftp://x"], "--discover"),
        (["--port", "70000"], "65535"),
        (["--nonsense"], "nonsense"),
    ],
)
def test_bad_usage_ends_with_2_and_says_what_to_write(args: list[str], says: str) -> None:
    ended = subprocess.run([*RUN, *args], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, says in ended.stderr, "Traceback" in ended.stderr) == (2, True, False)


def test_a_port_in_use_ends_with_1_and_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run([*RUN, "--port", str(port)], capture_output=True, text=True, timeout=60)
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
