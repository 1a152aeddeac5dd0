"""A Prometheus of a benchmark's own, which takes samples by remote write and is asked as Grafana would."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.conftest import free_ports

#: Seconds between two points of a panel, and between two scrapes.
STEP = 15.0


class TooSlow(Exception):
    """A query was given up."""


class Prometheus:
    """A running one, with the receiver of remote write."""

    def __init__(self, folder: Path) -> None:
        port = free_ports()
        self.url = f"http://127.0.0.1:{port}"
        self._config = folder / "prometheus.yml"
        self.use([])
        argv = ["prometheus", f"--config.file={self._config}", f"--storage.tsdb.path={folder / 'data'}"]
        argv += [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver"]
        argv += ["--web.enable-lifecycle", "--query.timeout=5m", "--log.level=warn"]
        self._process = subprocess.Popen(argv, stdout=(folder / "log").open("wb"), stderr=subprocess.STDOUT)
        self.process = psutil.Process(self._process.pid)
        self._client = httpx.Client(base_url=self.url, timeout=400)
        for _ in range(900):
            with contextlib.suppress(httpx.HTTPError):
                if self._client.get("/-/ready").status_code == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError("Prometheus did not start")

    def use(self, rule_files: list[str]) -> None:
        config: dict[str, Any] = {"global": {"evaluation_interval": "15s"}, "rule_files": rule_files}
        self._config.write_text(yaml.dump(config))

    def reload(self) -> None:
        self._client.post("/-/reload").raise_for_status()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def ask(
        self, promql: str, at: float, shown: float | None = None, limit: float = 300
    ) -> list[dict[str, Any]]:
        """The answer's series, at one time or over the ``shown`` seconds before it.

        Raises TooSlow after ``limit`` seconds, RuntimeError if the query is refused.
        """
        data = {"query": promql, "timeout": f"{limit:g}s"}
        if shown is None:
            answer = self._client.post("/api/v1/query", data={**data, "time": f"{at:.3f}"})
        else:
            times = {"start": f"{at - shown:.3f}", "end": f"{at:.3f}", "step": f"{STEP:g}"}
            answer = self._client.post("/api/v1/query_range", data={**data, **times})
        said = answer.json()
        if said.get("errorType") == "timeout":
            raise TooSlow
        if said["status"] != "success":
            raise RuntimeError(f"{said.get('error')}: {promql}")
        return list(said["data"]["result"])

    def cpu(self) -> float:
        return float(sum(self.process.cpu_times()[:2]))

    def metric(self, name: str) -> dict[str, float]:
        """Samples of Prometheus' own page by their rule group, "" without one."""
        found = {}
        for line in self._client.get("/metrics").text.splitlines():
            if line.startswith((f"{name} ", f"{name}{{")):
                group = re.search(r"exaserve-[a-z0-9_]+", line)
                found[group[0] if group else ""] = float(line.rpartition(" ")[2])
        return found
