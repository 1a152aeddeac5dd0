"""Rules and boards on a real Prometheus that scrapes a made-up fleet: every query answers, none with NaN."""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from dashboards import build
from exporters.catalog import CATALOG, Metric

sys.path.insert(0, str(Path(__file__).parent))

from queries import board_queries

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not shutil.which("prometheus"), reason="prometheus is not installed (Debian: prometheus)"
    ),
]

#: Two replicas; a label that is not named here has the value "x".
LABELS = {
    "replica": ("replica-0", "replica-1"),
    "model": ("m",),
    "route": ("chat",),
    "code": ("200",),
    "outcome": ("ok",),
    "state": ("starting", "ready", "degraded", "down", "frozen"),
}
#: Counters that are not there before something happens.
ABSENT = {"exaserve_router_retries_total", "exaserve_router_rejected_requests_total"}


def page(count: float) -> str:
    """One page with every metric of the catalogue but ABSENT; counters stand at ``count``."""
    lines: list[str] = []
    for m in CATALOG.values():
        if m.name not in ABSENT:
            for values in product(*(LABELS.get(label, ("x",)) for label in m.labels)):
                lines += samples(m, dict(zip(m.labels, values, strict=True)), count)
    return "\n".join(lines) + "\n"


def samples(m: Metric, labels: dict[str, str], count: float) -> list[str]:
    def line(suffix: str, value: float, **more: str) -> str:
        pairs = ",".join(f'{k}="{v}"' for k, v in (labels | more).items())
        return f"{m.name}{suffix}{{{pairs}}} {value}"

    if m.kind == "counter":
        return [line("", count)]
    if m.kind == "histogram":
        buckets = [line("_bucket", count if b >= 1 else 0, le=str(b)) for b in m.buckets]
        return [*buckets, line("_bucket", count, le="+Inf"), line("_count", count), line("_sum", count)]
    value = {"exaserve_kv_blocks": 1000, "exaserve_kv_blocks_used": 200}.get(m.name, 1)
    return [line("", float(labels["state"] == "ready") if "state" in labels else value)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(params=["traffic", "no traffic"])
def prometheus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, bool]]:
    """(address, whether there is traffic) of a Prometheus that has scraped the fleet for some seconds."""
    began, traffic = time.monotonic(), request.param == "traffic"

    class Fleet(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page(1000 + (10 * (time.monotonic() - began) if traffic else 0)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Fleet)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": [str(build.GENERATED / "rules" / "*.yaml")],
        "scrape_configs": [
            {"job_name": "fleet", "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.dump(config))
    port = free_port()
    argv = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen([*argv, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}", traffic
    finally:
        process.terminate()
        process.wait(30)
        server.shutdown()
        server.server_close()


def ask(url: str, promql: str) -> list[Any]:
    """Series of the answer; none while Prometheus still starts."""
    try:
        answer = httpx.get(f"{url}/api/v1/query", params={"query": promql})
    except httpx.HTTPError:
        return []
    if answer.status_code == 503:
        return []
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"]["result"])


def wait_until(condition: Callable[[], Any]) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.5)
    return False


def test_every_query_of_every_board_answers_and_none_with_nan(prometheus: tuple[str, bool]) -> None:
    url, traffic = prometheus
    for recorded in ("fleet:exaserve_router_requests:rate5m", "model:exaserve_kv_blocks_used:threshold"):
        assert wait_until(lambda recorded=recorded: ask(url, recorded)), recorded  # type: ignore[misc]
    silent = set()
    for name, promql in board_queries(build.GENERATED):
        found = wait_until(lambda promql=promql: ask(url, promql)) if traffic else True  # type: ignore[misc]
        series = ask(url, promql)
        assert not any(math.isnan(float(s["value"][1])) for s in series), name
        if not (found and series):
            silent.add(name)
    without_traffic = {f"fleet: {title}" for title in ("Errors A", "TTFT p99 A")}
    without_traffic |= {
        f"fleet: {title} {q}" for title in ("Time to first token", "Request duration") for q in "ABC"
    }
    assert silent == (set() if traffic else without_traffic)
