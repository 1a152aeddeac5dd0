"""The exporter's server: formats by negotiation, Prometheus's patience honoured, bad clients survived."""

from __future__ import annotations

import gzip
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from exporters import http as exporter_http
from exporters import registry
from exporters.http import ExporterServer, Token, limit_for
from exporters.registry import DEFAULT_LIMIT, Registry, Sample

Start = Callable[..., str]


class Replicas:
    """A collector that gives so many series; with a gate it waits for it first."""

    def __init__(self, count: int = 3, gate: threading.Event | None = None, name: str = "replica") -> None:
        self.count, self.gate, self.name = count, gate, name

    def collect(self, deadline: float) -> Iterable[Sample]:
        if self.gate:
            self.gate.wait(60)
        return [Sample("exaserve_engine_up", (f"{self.name}-{i}",), i % 2) for i in range(self.count)]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(collector, ..., token=None) -> address of an exporter of them."""
    servers: list[ExporterServer] = []

    def run(*collectors: Replicas, token: Token | None = None, host: str = "127.0.0.1") -> str:
        server = ExporterServer(host, 0, Registry({f"c{i}": c for i, c in enumerate(collectors)}), token)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://{f'[{host}]' if ':' in host else host}:{server.port}"

    yield run
    for server in servers:
        server.close()
        server.registry.close()


@pytest.fixture
def exporter(start: Start) -> str:
    return start(Replicas(3))


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def say(url: str, sent: bytes) -> bytes:
    """Everything that is answered to these bytes, until the server closes."""
    with socket.create_connection(address(url), timeout=15) as client:
        client.sendall(sent)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
        return answer


def test_text_or_openmetrics_as_the_client_asks(exporter: str) -> None:
    plain = httpx.get(f"{exporter}/metrics", headers={"accept": "text/plain;version=0.0.4"})
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert not plain.text.endswith("# EOF\n")
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    modern = httpx.get(f"{exporter}/metrics", headers={"accept": accept})
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert modern.text.endswith("# EOF\n")
    assert 'exaserve_engine_up{replica="replica-1"} 1.0\n' in modern.text


def test_other_paths_and_methods(exporter: str) -> None:
    assert httpx.get(f"{exporter}/healthz").text == "ok\n"
    assert "/metrics" in httpx.get(f"{exporter}/").text
    assert httpx.get(f"{exporter}/nothing").status_code == 404
    head = httpx.head(f"{exporter}/metrics")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 100
    assert httpx.get(f"{exporter}/metrics?x=1").status_code == 200
    post = httpx.post(f"{exporter}/metrics", content=b"x")
    assert (post.status_code, post.headers["allow"]) == (405, "GET, HEAD")


def test_a_long_page_is_packed_if_the_client_takes_that(start: Start) -> None:
    url = f"{start(Replicas(200))}/metrics"
    plain = httpx.get(url, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for asks in ("gzip", "deflate, gzip;q=0.5, br"):
        with httpx.stream("GET", url, headers={"accept-encoding": asks}) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            packed = b"".join(answer.iter_raw())
        body = gzip.decompress(packed).decode()
        assert len(packed) < len(body) / 4
        assert body.count("exaserve_engine_up{") == 200
    for refuses in ("gzip;q=0", "gzip; q=0.0", "br"):
        assert "content-encoding" not in httpx.get(url, headers={"accept-encoding": refuses}).headers


def test_a_connection_is_kept_and_answers_what_comes_in_one_piece(exporter: str) -> None:
    ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = say(exporter, ask * 3 + ask.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 4
    assert (answer.count(b"Connection: keep-alive"), answer.count(b"Connection: close")) == (3, 1)
    assert say(exporter, b"GET /healthz HTTP/1.0\r\n\r\n").count(b"Connection: close") == 1


def test_a_kept_connection_is_not_slowed_by_acknowledgements_that_wait(exporter: str) -> None:
    with httpx.Client() as client:
        client.get(f"{exporter}/healthz")
        took = []
        while len(took) < 20 or (min(took) >= 0.03 and len(took) < 300):
            began = time.monotonic()
            client.get(f"{exporter}/metrics")
            took.append(time.monotonic() - began)
    assert min(took) < 0.03  # with head and body in two pieces each takes 0.04


def test_an_ipv6_address(start: Start) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    assert httpx.get(f"{start(Replicas(1), host='::1')}/healthz").text == "ok\n"


def test_with_a_token_only_those_that_show_it_get_the_metrics(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\nnot this\n")
    url = start(Replicas(1), token=Token(file))

    def status(shown: str | None) -> int:
        headers = {} if shown is None else {"authorization": shown}
        return httpx.get(f"{url}/metrics", headers=headers).status_code

    assert [
        status(s)
        for s in (None, "", "Bearer", "Bearer x", "Basic first", "Bearer first\xe9".encode("latin-1"))
    ] == [401] * 6
    assert (status("Bearer first"), status("bearer  first")) == (200, 200)
    assert httpx.get(f"{url}/healthz").status_code == 200
    new = tmp_path / "new"
    new.write_text("second")
    os.replace(new, file)
    assert (status("Bearer first"), status("Bearer second")) == (401, 200)
    file.unlink()  # it still holds
    assert (status("Bearer first"), status("Bearer second")) == (401, 200)


@pytest.mark.parametrize("content", [None, "", "\n", "  \nx"])
def test_a_token_file_that_is_missing_or_empty_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises((OSError, ValueError)):
        Token(tmp_path / "token")


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
        ("0.001", 0.2),
        ("3600", 60.0),
    ],
)
def test_collectors_get_less_time_than_prometheus_waits(header: str | None, seconds: float) -> None:
    assert limit_for(header) == pytest.approx(seconds)


@pytest.mark.parametrize("waits", ["2", "0.4", "0.01"])
def test_a_collector_that_hangs_does_not_make_prometheus_wait_beyond_its_timeout(
    start: Start, waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "GRACE", 30)
    gate = threading.Event()
    url = f"{start(Replicas(3), Replicas(1, gate, 'late'))}/metrics"
    began = time.monotonic()
    text = httpx.get(url, headers={"X-Prometheus-Scrape-Timeout-Seconds": waits}, timeout=25).text
    assert time.monotonic() - began < 15
    assert 'exaserve_exporter_collector_success{collector="c1"} 0.0' in text
    gate.set()
    end = time.monotonic() + 20
    while 'success{collector="c1"} 1.0' not in text and time.monotonic() < end:
        text = httpx.get(url, headers={"X-Prometheus-Scrape-Timeout-Seconds": "10"}, timeout=15).text
    assert 'exaserve_engine_up{replica="replica-2"} 0.0' in text
    assert 'exaserve_engine_up{replica="late-0"} 0.0' in text


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x00\xff\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nspace : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"DELETE / HTTP/1.1\r\n\r\n", 405),
        (b"GET " + b"a" * 70_000, 431),
    ],
)
def test_what_is_no_request_is_told_so_and_let_go(exporter: str, sent: bytes, status: int) -> None:
    answer = say(exporter, sent)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Connection: close\r\n" in answer
    assert httpx.get(f"{exporter}/healthz").status_code == 200


def test_a_client_that_drips_its_request_is_cut_in_time(
    exporter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_http, "HEAD_SECONDS", 0.4)
    with socket.create_connection(address(exporter), timeout=15) as client:
        began = time.monotonic()
        answer = b""
        client.settimeout(0.1)
        while not answer and time.monotonic() - began < 10:
            try:
                client.sendall(b"G")
                answer = client.recv(100)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_says_nothing_is_let_go(exporter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_http, "IDLE_SECONDS", 0.2)
    assert say(exporter, b"") == b""


def test_a_client_that_takes_no_answer_is_let_go(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_http, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(exporter_http, "MAX_CONNECTIONS", 1)
    url = start(Replicas(200_000))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(address(url))
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        end = time.monotonic() + 120
        while time.monotonic() < end:  # its place, the only one, is free again
            try:
                assert httpx.get(f"{url}/healthz").status_code == 200
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        else:
            pytest.fail("the connection was held")


def test_clients_that_ask_for_nothing_keep_nobody_out(exporter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # For a thread to give its place back, however slow this machine is.
    monkeypatch.setattr(exporter_http, "_ROOM_SECONDS", 30.0)
    held = [socket.create_connection(address(exporter)) for _ in range(3 * exporter_http.MAX_CONNECTIONS)]
    try:
        for client in held[::2]:
            client.sendall(b"GET /met")
        time.sleep(0.3)
        for _ in range(3):
            assert httpx.get(f"{exporter}/healthz").status_code == 200
        # The one that waited longest has made room; the youngest still may ask.
        held[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        held[-1].settimeout(15)
        assert held[-1].recv(65536).startswith(b"HTTP/1.1 200 OK")
    except ConnectionError:
        pytest.fail("a client was kept out")
    finally:
        for client in held:
            client.close()


def test_connections_beyond_the_bound_are_closed_at_once_while_all_are_answered(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_http, "MAX_CONNECTIONS", 2)
    gate, answered, real = threading.Event(), threading.Semaphore(0), Registry.scrape

    def scrape(of: Registry, limit: float) -> registry.Values:
        answered.release()
        return real(of, limit)

    monkeypatch.setattr(Registry, "scrape", scrape)
    url = start(Replicas(1, gate))
    held = [socket.create_connection(address(url)) for _ in range(2)]
    try:
        for client in held:
            client.sendall(b"GET /metrics HTTP/1.0\r\nX-Prometheus-Scrape-Timeout-Seconds: 60\r\n\r\n")
        assert all(answered.acquire(timeout=30) for _ in held)
        assert say(url, b"") == b""
        gate.set()
        for client in held:
            client.settimeout(15)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 OK")
    finally:
        gate.set()
        for client in held:
            client.close()


def test_a_target_with_the_servers_name_before_it_is_understood(exporter: str) -> None:
    for target in ("http://node:9420/healthz?x", "HTTP://node/healthz"):
        assert say(exporter, f"GET {target} HTTP/1.0\r\n\r\n".encode()).endswith(b"\r\n\r\nok\n")
    assert b"ExaServe exporter" in say(exporter, b"GET http://node HTTP/1.0\r\n\r\n")


def test_verbose_logs_each_request_and_neither_its_secrets_nor_lines_of_its_own(
    exporter: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "exaserve.exporter"):
        say(exporter, b"GET /a\x1b[2J\n HTTP/1.0\r\nAuthorization: Bearer s3cret\r\n\r\n")
        end = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < end:
            time.sleep(0.01)
    (line,) = caplog.messages
    assert re.fullmatch(r"GET '/a\\x1b\[2J\\n': 404, \d+ bytes, \d+\.\d{3} s", line)


def test_a_token_may_have_any_bytes(start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes("schlüssel".encode())
    url = start(Replicas(1), token=Token(tmp_path / "token"))
    asks = b"GET /metrics HTTP/1.0\r\nAuthorization: Bearer %b\r\n\r\n"
    assert say(url, asks % "schlüssel".encode()).startswith(b"HTTP/1.1 200 OK")
    assert say(url, asks % b"schl\xfcssel").startswith(b"HTTP/1.1 401")
