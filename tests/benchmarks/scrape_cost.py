"""CPU of the exporter per scrape, at 2 and at 64 replicas with a page of 50 KB each.

    .venv/bin/python tests/benchmarks/scrape_cost.py

The fake replicas run in this process, the exporter in its own; what is printed is the exporter's alone.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

PAGE = (Path(__file__).parents[1] / "fixtures" / "vllm-0.6-metrics.txt").read_bytes()
PAGE = (
    b'vllm:some_latency_seconds_bucket{engine="0",le="0.005",model_name="facebook/opt-125m"} 1\n' * 540 + PAGE
)


class Engine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None: ...


def cost(replicas: int, url: str, scrapes: int = 20) -> tuple[float, float]:
    """CPU and wall milliseconds of one scrape."""
    argv = [sys.executable, "-m", "exporters", "--port", "0"]
    argv += [word for i in range(replicas) for word in ("--replica", f"replica-{i}={url}")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as exporter:
        try:
            assert exporter.stdout
            metrics = exporter.stdout.readline().split()[1]
            process = psutil.Process(exporter.pid)
            for _ in range(3):
                urllib.request.urlopen(metrics).read()
            before, began = sum(process.cpu_times()[:2]), time.monotonic()
            for _ in range(scrapes):
                urllib.request.urlopen(metrics).read()
            wall = time.monotonic() - began
            return 1000 * (sum(process.cpu_times()[:2]) - before) / scrapes, 1000 * wall / scrapes
        finally:
            exporter.terminate()


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.request_queue_size = 128
    server.socket.listen(128)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    print(f"page of {len(PAGE)} bytes")
    for replicas in (2, 64):
        cpu, wall = cost(replicas, url)
        print(f"{replicas:3} replicas: {cpu:6.1f} ms CPU, {wall:6.1f} ms wall per scrape")


if __name__ == "__main__":
    main()
