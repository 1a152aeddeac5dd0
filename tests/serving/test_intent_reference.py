"""``exaserve intent reference``: from a router's page and from a Prometheus, read back by both readers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from exporters.collectors import _reference as reader
from serving.intent import reference
from serving.intent.cli import app
from tests.conftest import closed_port, free_ports

PAGE = """# TYPE exaserve_router_classifications_total counter
exaserve_router_classifications_total{intent="general",stage="first"} 1500.0
exaserve_router_classifications_total{intent="general",stage="second"} 500.0
exaserve_router_classifications_total{intent="legal",stage="first"} 1e+03
exaserve_router_classifications_created{intent="legal",stage="first"} 1.7e9
"""


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """answering(status, body or function of path and query) -> address of a server."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, body: bytes | Callable[[str, dict[str, list[str]]], bytes]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                data = body(parts.path, parse_qs(parts.query)) if callable(body) else body
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["reference", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_what_a_router_counted_is_saved_and_both_readers_agree(
    answering: Callable[..., str], tmp_path: Path
) -> None:
    url, path = answering(200, PAGE.encode()), tmp_path / "new" / "reference.json"
    code, output = run("save", path, "--router", url, "--model", "default")
    assert (code, output) == (0, f"{path}: 3000 requests, 2 intents\n")
    ours, theirs = reference.read(path), reader.parse(path.read_bytes())
    assert ours.counts == theirs.counts == {"general": 2000, "legal": 1000}
    assert ours.end == theirs.until == pytest.approx(time.time(), abs=60)
    assert (ours.begin, ours.model, ours.source) == (None, "default", f"{url}/metrics")
    assert ours.made_by[0].isdigit()
    assert os.listdir(path.parent) == ["reference.json"]
    assert (reference.FORMAT, reference.VERSION) == (reader.FORMAT, reader.VERSION)
    assert reference.MAX_INTENTS == reader.MAX_INTENTS


def test_show_gives_source_time_and_shares(answering: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    run("save", path, "--router", answering(200, PAGE.encode()) + "/metrics")
    code, output = run("show", path)
    assert code == 0
    lines = output.splitlines()
    assert lines[1].startswith("time    the router's start to 20")
    assert lines[2] == "model   not named"
    assert [line.split() for line in lines[5:]] == [
        ["general", "2000", "66.7%"],
        ["legal", "1000", "33.3%"],
        ["all", "3000"],
    ]


def test_too_few_requests_are_saved_with_a_warning(answering: Callable[..., str], tmp_path: Path) -> None:
    page = PAGE.replace("1500.0", "1.0").replace("1e+03", "2")
    code, output = run("save", tmp_path / "r.json", "--router", answering(200, page.encode()))
    assert code == 0
    assert "503 requests" in output
    assert "less than 2000" in output


def test_a_label_with_quotes_and_bytes_that_are_no_text_is_no_traceback(
    answering: Callable[..., str], tmp_path: Path
) -> None:
    page = b'exaserve_router_classifications_total{stage="first",intent="a\\"b\\\\c\\nd"} 2500\n'
    page += b'exaserve_router_classifications_total{intent="\xff"} 1\n'
    page += b'exaserve_router_classifications_total{intent="x"} e\n'
    assert run("save", tmp_path / "r.json", "--router", answering(200, page))[0] == 0
    assert reference.read(tmp_path / "r.json").counts == {'a"b\\c\nd': 2500, "\N{REPLACEMENT CHARACTER}": 1}


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, b"up 1\n", "is not the metrics page of an ExaServe router"),
        (200, b"# TYPE exaserve_router_classifications_total counter\n", "has counted no intent"),
        (503, b"", "answered 503"),
    ],
)
def test_a_page_that_has_no_counts_is_said_and_the_old_file_stays(
    status: int, body: bytes, why: str, answering: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    code, output = run("save", path, "--router", answering(status, body))
    assert code == 1
    assert why in output
    assert path.read_text() == "old"


def test_nobody_there_and_wrong_usage_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with closed_port() as port:
        closed = f"http://127.0.0.1:{port}"
        assert run("save", path, "--router", closed)[0] == 1
    for words, why in (
        (("--router", "ftp://x"), "must be a URL"),
        (("--router", "http://a b"), "must be a URL"),
        (("--router", closed, "--prometheus", closed), "not both"),
        (("--prometheus", closed, "--from", "a week"), "how long ago"),
        (("--prometheus", closed, "--from", "-1d", "--to", "-2d"), "has to be before"),
    ):
        code, output = run("save", path, *words)
        assert (code, len(output.splitlines())) == (2, 1), output
        assert why in output
    assert not path.exists()


def test_a_place_that_can_not_be_written_is_said(answering: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code, output = run("save", tmp_path / "file" / "r.json", "--router", answering(200, PAGE.encode()))
    assert code == 1
    assert str(tmp_path / "file" / "r.json") in output


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"\xff", b"[" * 50_000, b"x" * 300_000,
        b'{"format": "exaserve intent reference", "version": 9}',
        b'{"format": "exaserve intent reference", "version": 1, "counts": {"a": NaN}, "to": 1}',
        b'{"format": "exaserve intent reference", "version": 1, "counts": {"a": 1}}',
    ],
)  # fmt: skip
def test_show_says_what_is_wrong_with_a_file(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(data)
    code, output = run("show", tmp_path / "r.json")
    assert (code, len(output.splitlines())) == (1, 1)
    assert str(tmp_path / "r.json") in output


def test_show_of_a_folder_a_fifo_and_of_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "none"):
        assert run("show", path)[0] == 1


# ------------------------------------------------------------------ Prometheus


def test_a_range_is_asked_of_prometheus_and_what_it_has_is_what_is_said(
    answering: Callable[..., str], tmp_path: Path
) -> None:
    asked: list[dict[str, list[str]]] = []
    began = time.time() - 3 * 86_400  # it keeps three days

    def prometheus(path: str, query: dict[str, list[str]]) -> bytes:
        assert path == "/api/v1/query"
        asked.append(query)
        rows = [({"intent": "general"}, "2999.7"), ({"intent": "legal"}, "1000.2"), ({"intent": "no"}, "0")]
        if "timestamp" in query["query"][0]:
            rows = [({}, str(began))]
        return json.dumps(
            {"status": "success", "data": {"result": [{"metric": m, "value": [1, v]} for m, v in rows]}}
        ).encode()

    url = answering(200, prometheus).replace("//", "//me:geheim@")
    code, output = run("save", tmp_path / "r.json", "--prometheus", url, "--from", "-7d", "--to", "-1d")
    assert (code, output.count("\n")) == (0, 1)
    found = reference.read(tmp_path / "r.json")
    assert found.counts == {"general": 3000, "legal": 1000}
    assert found.begin == pytest.approx(began)
    assert found.end == pytest.approx(time.time() - 86_400, abs=60)
    assert "geheim" not in (tmp_path / "r.json").read_text()
    assert asked[0]["query"] == ["sum by (intent) (increase(exaserve_router_classifications_total[518400s]))"]
    assert float(asked[0]["time"][0]) == pytest.approx(time.time() - 86_400, abs=60)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data": {"result": [1]}}', b'{"data": {"result": 5}}'])
def test_something_that_is_no_prometheus_is_said(
    body: bytes, answering: Callable[..., str], tmp_path: Path
) -> None:
    code, output = run("save", tmp_path / "r.json", "--prometheus", answering(200, body))
    assert (code, len(output.splitlines())) == (1, 1)
    assert "is not a Prometheus" in output


def test_prometheus_own_words_are_passed_on(answering: Callable[..., str], tmp_path: Path) -> None:
    body = b'{"status": "error", "error": "query processing would load too many samples"}'
    code, output = run("save", tmp_path / "r.json", "--prometheus", answering(422, body))
    assert code == 1
    assert output.endswith("answered 422: query processing would load too many samples\n")


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")
def test_a_real_prometheus_takes_both_queries(answering: Callable[..., str], tmp_path: Path) -> None:
    count = [0]

    def page(*_: object) -> bytes:
        count[0] += 1
        return f'exaserve_router_classifications_total{{intent="a",stage="first"}} {count[0]}000\n'.encode()

    target = answering(200, page).removeprefix("http://")
    jobs = [{"job_name": "r", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}]
    (tmp_path / "p.yml").write_text(json.dumps({"scrape_configs": jobs}))
    port = free_ports()
    server = subprocess.Popen(
        ["prometheus", f"--config.file={tmp_path}/p.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
    )  # fmt: skip
    try:
        end, code, output = time.monotonic() + 120, 1, ""
        while code and time.monotonic() < end:
            time.sleep(0.5)
            code, output = run(
                "save", tmp_path / "r.json", "--prometheus", f"http://127.0.0.1:{port}", "--from", "1h"
            )
        assert code == 0, output
    finally:
        server.terminate()
        server.wait(60)
    found = reference.read(tmp_path / "r.json")
    assert found.counts["a"] >= 1000
    assert found.begin is not None
    assert time.time() - 3700 < found.begin < found.end <= time.time()


def test_a_dripping_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        status_code = 200

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None: ...

        def iter_bytes(self) -> Iterator[bytes]:
            while True:
                yield b"x"

    monkeypatch.setattr(httpx, "stream", lambda *_, **__: Slow())
    monkeypatch.setattr(reference, "_SECONDS", 0.05)
    with pytest.raises(reference.NoReference, match="too long an answer"):
        reference.from_router("http://r")
