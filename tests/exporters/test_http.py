"""The exporter's server: formats by negotiation, Prometheus's patience honoured, bad clients survived."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from exporters import http as exporter_http
from exporters import registry
from exporters.http import ExporterServer, limit_for
from exporters.registry import DEFAULT_LIMIT
from exporters.settings import Replica, Settings

GOLDEN = Path(__file__).parents[1] / "fixtures" / "exporter-scrape.txt"


@pytest.fixture
def start() -> Iterator[Callable[[Settings], str]]:
    servers: list[ExporterServer] = []

    def run(settings: Settings) -> str:
        server = ExporterServer("127.0.0.1", 0, registry.build(settings))
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def exporter(
    start: Callable[[Settings], str], serve: Callable[..., str], page: Callable[[str], bytes], closed: str
) -> str:
    """An exporter of three replicas: an old vLLM, a new one with two engines, a dead one."""
    urls = [serve(page("vllm-0.6-metrics.txt")), serve(page("vllm-v1-two-engines-metrics.txt")), closed]
    return start(Settings(tuple(Replica(f"replica-{i}", url) for i, url in enumerate(urls))))


def without_times(text: str) -> str:
    """The page with the values that differ from run to run replaced."""
    lines = []
    for line in text.splitlines():
        if line.startswith("exaserve_exporter_") and "_seconds{" in line:
            line = line.rpartition(" ")[0] + " T"
        if line.startswith("exaserve_exporter_build_info{"):
            line = 'exaserve_exporter_build_info{version="V"} 1.0'
        lines.append(line)
    return "\n".join(lines) + "\n"


def test_a_scrape_is_the_golden_one(exporter: str) -> None:
    assert without_times(httpx.get(f"{exporter}/metrics").text) == GOLDEN.read_text()


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_to_say_about_a_scrape(exporter: str) -> None:
    scrape = httpx.get(f"{exporter}/metrics").content
    check = subprocess.run(["promtool", "check", "metrics"], input=scrape, capture_output=True)
    assert (check.returncode, check.stdout + check.stderr) == (0, b"")


def test_text_or_openmetrics_as_the_client_asks(exporter: str) -> None:
    plain = httpx.get(f"{exporter}/metrics", headers={"accept": "text/plain;version=0.0.4"})
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert not plain.text.endswith("# EOF\n")
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    modern = httpx.get(f"{exporter}/metrics", headers={"accept": accept})
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert modern.text.endswith("# EOF\n")
    assert 'exaserve_kv_blocks{model="facebook/opt-125m",replica="replica-0"} 27898.0' in modern.text


def test_other_paths_and_methods(exporter: str) -> None:
    assert httpx.get(f"{exporter}/healthz").text == "ok\n"
    assert "/metrics" in httpx.get(f"{exporter}/").text
    assert httpx.get(f"{exporter}/nothing").status_code == 404
    head = httpx.head(f"{exporter}/metrics")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 100
    assert httpx.post(f"{exporter}/metrics").status_code == 501


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, DEFAULT_LIMIT),
        ("", DEFAULT_LIMIT),
        ("soon", DEFAULT_LIMIT),
        ("nan", DEFAULT_LIMIT),
        ("-1", DEFAULT_LIMIT),
        ("inf", DEFAULT_LIMIT),
        ("10", 9.25),
        ("5", 4.25),
        ("1", 0.6),
        ("3600", 60.0),
    ],
)
def test_collectors_get_less_time_than_prometheus_waits(header: str | None, seconds: float) -> None:
    assert limit_for(header) == pytest.approx(seconds)


def test_a_hung_replica_does_not_make_prometheus_wait_beyond_its_timeout(
    start: Callable[[Settings], str], serve: Callable[..., str], page: Callable[[str], bytes], hung: str
) -> None:
    good = serve(page("vllm-0.6-metrics.txt"))
    url = start(Settings((Replica("good", good), Replica("hung", hung)), timeout=60))
    text = httpx.get(f"{url}/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "2"}, timeout=15).text
    assert 'exaserve_engine_up{replica="good"} 1.0' in text
    assert 'exaserve_engine_up{replica="hung"} 0.0' in text


def test_clients_that_send_rubbish_or_nothing_leave_the_server_well(
    exporter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_http._Handler, "timeout", 0.2)
    host, port = exporter.removeprefix("http://").split(":")
    for sent in (b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 70_000, b"GET /met"):
        with socket.create_connection((host, int(port)), timeout=15) as client:
            client.sendall(sent)
            while client.recv(65536):
                pass
    assert httpx.get(f"{exporter}/healthz").status_code == 200


def test_connections_beyond_the_bound_are_closed_at_once(exporter: str) -> None:
    host, port = exporter.removeprefix("http://").split(":")
    held = [socket.create_connection((host, int(port))) for _ in range(exporter_http.MAX_CONNECTIONS)]
    try:
        time.sleep(0.3)
        with socket.create_connection((host, int(port)), timeout=10) as client:
            assert client.recv(1) == b""
    finally:
        for client in held:
            client.close()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            assert httpx.get(f"{exporter}/healthz").status_code == 200
            break
        except httpx.HTTPError:
            time.sleep(0.1)
    else:
        pytest.fail("the server never had room again")
