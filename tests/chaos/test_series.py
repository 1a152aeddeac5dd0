"""A run's series: the catalogue's and no others, found by Prometheus, and marks in Grafana."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chaos.run import grafana
from chaos.run.series import Page
from exporters.catalog.chaos import METRICS


def read(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for f in text_string_to_metric_families(text)
        for s in f.samples
    }


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    yield made
    made.close()


def fill(page: Page) -> None:
    page.begin("crash", "run-1", {"reroute": 2.0, "lost_requests": 0.0}, 0.5)
    for name in ("fault_active", "fault_injected_timestamp_seconds", "detection_seconds", "reroute_seconds"):
        page.put(name, 1.5, "replica_crash", "replica-0")
    for name in ("slo_recovery_seconds", "capacity_recovery_seconds"):
        page.put(name, 0.0, "replica_crash", "replica-0")
    page.put("recomputed_tokens_total", 7)


def test_every_declared_series_is_there_with_its_labels_and_no_other(page: Page, tmp_path: Path) -> None:
    fill(page)
    found = read(page.serve(0, tmp_path))
    declared = {m.name: set(m.labels) for m in METRICS}
    assert {name for name, _ in found} == set(declared)
    for name, labels in found:
        assert {key for key, _ in labels} == declared[name]
    run = (("experiment", "crash"), ("run", "run-1"))
    assert found["exaserve_chaos_goal_seconds", (run[0], ("figure", "reroute"), run[1])] == 2.0
    assert found["exaserve_chaos_recomputed_tokens_total", run] == 7


def test_what_is_not_known_is_absent_and_a_new_run_takes_the_place_of_the_old(page: Page) -> None:
    fill(page)
    page.put("reroute_seconds", None, "replica_crash", "replica-0")
    url = page.serve(0, None)
    assert not any(name == "exaserve_chaos_reroute_seconds" for name, _ in read(url))
    page.begin("freeze", "run-2", {}, 0.5)
    page.state("passed")
    found = read(url)
    assert {dict(labels)["run"] for _, labels in found} == {"run-2"}
    states = {dict(labels)["state"]: v for (name, labels), v in found.items() if name.endswith("run_state")}
    assert states == {"running": 0, "passed": 1, "failed": 0, "void": 0}


def test_prometheus_is_told_where_the_page_is_for_as_long_as_it_is_there(page: Page, tmp_path: Path) -> None:
    (tmp_path / "999999999.json").write_text("[]")  # of a run that was killed
    fill(page)
    url = page.serve(0, tmp_path)
    (file,) = tmp_path.glob("*.json")
    assert f"http://{json.loads(file.read_text())[0]['targets'][0]}/metrics" == url
    page.close()
    assert not list(tmp_path.glob("*.json"))


def test_a_run_is_marked_in_grafana_from_its_beginning_to_its_end() -> None:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            got.append((self.path, self.headers["authorization"], body))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"id": 1}')

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        host = f"127.0.0.1:{server.server_port}"
        assert grafana.mark(f"http://admin:secret@{host}", "", "crash", 10.0, 12.5, ["passed"]) is None
        assert grafana.mark(f"http://{host}", "token", "crash", 10.0, 12.5, []) is None
    finally:
        server.shutdown()
        server.server_close()
    assert got[0][0] == "/api/annotations"
    assert got[0][1].startswith("Basic ")
    assert got[1][1] == "Bearer token"
    sent = {key: got[0][2][key] for key in ("time", "timeEnd", "text", "tags")}
    assert sent == {"time": 10000, "timeEnd": 12500, "text": "crash", "tags": ["exaserve", "chaos", "passed"]}


def test_a_grafana_that_is_not_there_is_told_and_ends_nothing() -> None:
    why = grafana.mark("http://admin:secret@127.0.0.1:9", "", "crash", 1.0, 2.0, [])
    assert why is not None
    assert why.startswith("Grafana at 127.0.0.1 takes no annotation: ")
    assert "secret" not in why
    assert grafana.problem("127.0.0.1:3000") is not None
    assert grafana.problem("http://127.0.0.1:3000") is None
