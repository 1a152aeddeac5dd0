"""A run watched while it lasts, as its users watch it: locust itself, its page for Prometheus, its own web page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import free_ports

ALONE = pytest.mark.alone  # timed, or of several processes

ROOT = Path(__file__).parents[2]
LOCUST = Path(sys.executable).parent / "locust"


@contextmanager
def locust(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(LOCUST), "-f", f"{ROOT}/loadtest/chat.py", *arguments]
    env = {**os.environ, "EXASERVE_HOME": str(home)}
    process = subprocess.Popen(
        command, cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=120)


def until(found: Callable[[], Any], what: str, limit: float = 90) -> Any:
    end = time.monotonic() + limit
    while not (value := found()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.1)
    return value


def target(home: Path) -> str | None:
    """The address that Prometheus' file_sd finds."""
    for file in (home / "loadtest" / "targets").glob("*.json"):
        return str(json.loads(file.read_text())[0]["targets"][0])
    return None


@ALONE
def test_prometheus_finds_the_run_and_gets_to_read_its_end(paced: Any, tmp_path: Path) -> None:
    with paced(ttft=0.02, gap=0.005, tokens=5) as server:
        options = ("--headless", "-u", "3", "-r", "3", "-t", "4s", "-H", server.url, "--metrics-port", "0")
        with locust(tmp_path, *options, "--run-name", "watched") as process:
            address = until(lambda: target(tmp_path), "a target")
            page = ""
            while process.poll() is None:
                with suppress(httpx.HTTPError):  # it has just ended
                    page = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=60).text or page
                time.sleep(0.3)
    summary = json.loads((tmp_path / "loadtest" / "watched" / "summary.json").read_text())
    completed = re.search(r'completed_requests_total\{phase="measured",.*\} (\S+)', page)
    assert completed
    assert float(completed[1]) == summary["all"]["completed"] > 10
    exact = re.search(r'latency="ttft",profile="all",q="0.99",run="watched"\} (\S+)', page)
    assert exact
    assert float(exact[1]) == summary["all"]["latency"]["ttft"]["p99"]
    assert target(tmp_path) is None


@ALONE
def test_locusts_page_has_our_tables_and_charts(paced: Any, tmp_path: Path) -> None:
    port = free_ports()
    base = f"http://127.0.0.1:{port}"
    with (
        paced(ttft=0.02, gap=0.005, tokens=5) as server,
        httpx.Client(trust_env=False, timeout=60) as browser,
    ):

        def up() -> bool:
            try:
                return browser.get(base).status_code == 200
            except httpx.HTTPError:
                return False

        web = ("--web-host", "127.0.0.1", "--web-port", str(port), "-H", server.url, "--slo", "ttft=1s")
        with locust(tmp_path, *web, "--warmup", "0"):
            until(up, "the page")
            index = browser.get(base).text
            assert '"extended_tabs": [' in index
            assert "./exaserve/web_tab.js" in index
            browser.post(f"{base}/swarm", data={"user_count": 2, "spawn_rate": 2, "host": server.url})

            def rows() -> Any:
                told = browser.get(f"{base}/stats/requests").json()["extended_stats"]
                return next(one["data"] for one in told if one["key"] == "exaserve-latency")

            first = until(rows, "rows of the table")[0]
            assert (first["profile"], first["latency"], first["limit"]) == ("all", "TTFT", "1,000.00")
            # Milliseconds: 20 of the server's, and what this machine adds to the first few requests.
            assert 15 < float(first["p50"]) < 10_000
            data = browser.get(f"{base}/exaserve/data").json()
            assert data["slo"] == {"ttft": 1.0}
            assert data["points"]
            for name in ("", "plotly.js", "web_tab.js", "web_charts.js"):
                assert browser.get(f"{base}/exaserve/{name}").status_code == 200, name
            assert browser.get(f"{base}/exaserve/other.js").status_code == 404


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--metrics-port", "99999"), "no port"),
        (("--metrics-port", "0", "--metrics-host", "203.0.113.1"), "--metrics-host 203.0.113.1"),
        (("--prometheus", "nonsense"), "--prometheus nonsense: not an address"),
    ],
)
def test_options_that_cannot_be_end_with_2_and_the_cure(
    options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with locust(tmp_path, "--headless", "-H", "http://127.0.0.1:1", "-t", "1s", *options) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert said in output
    assert "Traceback" not in output
