"""The load beside an experiment: ``locust -f loadtest/…`` in an open loop, as a process of its own, and its records.

Requests come at their times whatever the fleet does, so that a fleet that answers late is not asked less. What is sent
and how it is measured belongs to ``loadtest/``; only the command line and the lines of ``requests.jsonl`` are known here
(``loadtest/_lib/_record.py`` says what the keys mean).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaoslib.exceptions import ActivityFailed

from chaos import perform

MAX_RATE, MAX_SECONDS = 2000.0, 3600.0
#: Seconds that open requests get to end once nothing new is sent.
GRACE = 15
_START = 60.0  # seconds for locust to be up

Record = Mapping[str, Any]


class Load:
    """One run of locust. folder: where its records lie; None: a temporary one that goes with ``close``.

    rate: requests a second. seconds: it ends then by itself; also with this process, and with ``stop``.
    """

    def __init__(
        self,
        router: str,
        rate: float,
        seconds: float,
        max_tokens: int = 16,
        profile: str = "chat",
        arrivals: str = "constant",
        options: list[str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.rate, self.began = rate, time.time()
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="exaserve-chaos-load-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._records: list[dict[str, Any]] = []
        self._read = 0
        self._lock = threading.Lock()
        self._log = (self.folder / "locust.log").open("wb")
        argv = [sys.executable, "-m", "locust", "-f", str(_file(profile)), "--headless", "--only-summary"]
        argv += ["-H", router.rstrip("/").removesuffix("/v1"), "--arrivals", arrivals, "--rate", f"{rate:g}"]
        argv += [
            "--max-tokens",
            str(max_tokens),
            "--warmup",
            "0",
            "-t",
            f"{max(1, round(seconds))}",
            "-s",
            str(GRACE),
        ]
        argv += ["--run-folder", str(self.folder), *(options or [])]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=perform.dies_with_us(signal.SIGTERM),  # it must not outlive whoever watches it
            process_group=0,
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for_first(self, seconds: float = _START) -> None:
        """Until a request has ended. Raises ActivityFailed with locust's last words."""
        end = time.monotonic() + seconds
        while True:
            # Asked before its records are read: it writes the last ones as it ends.
            going_on = self.running and time.monotonic() < end
            if self.records():
                return
            if not going_on:
                raise ActivityFailed(f"the load sent nothing: {self.last_words()}")
            time.sleep(0.1)

    def records(self) -> list[dict[str, Any]]:
        """Every request that has ended so far, a second late, in the order in which they ended."""
        with self._lock, contextlib.suppress(OSError), (self.folder / "requests.jsonl").open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                with contextlib.suppress(ValueError):
                    self._records.append(json.loads(line))
        return list(self._records)

    def last_words(self) -> str:
        """The last things that locust logged, without its tables."""
        try:
            lines = (self.folder / "locust.log").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line.partition(": ")[2] or line for line in lines if line.startswith("[")]
        told = [line for line in said if not line.startswith(("Shutting down", "Ramping", "All users"))]
        return "; ".join(told[-2:]) or " / ".join(lines[-2:]) or "it said nothing"

    def stop(self) -> dict[str, Any]:
        """Send nothing more, let the open requests end, wait for it; the summary of all."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(GRACE + 15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        summary = self.summary()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)
        return summary

    def summary(self) -> dict[str, Any]:
        """``requests``, ``failed``, ``cut`` (failed when begun), ``reasons``, ``replicas`` (counts)."""
        records = self.records()
        bad = [r for r in records if r["outcome"] != "ok"]
        return {
            "requests": len(records),
            "failed": len(bad),
            "cut": sum(begun(r) for r in bad),
            "reasons": dict(Counter(why(r) for r in bad)),
            "replicas": dict(Counter(r.get("replica") or "none" for r in records)),
            "still_open": sum(r["outcome"] == "open" for r in records),
        }


def begun(record: Record) -> bool:
    """Something of its answer had come, so that nobody could send it again unseen."""
    return record.get("first") is not None


def why(record: Record) -> str:
    """In words, why it is not good."""
    return str(record.get("detail") or record.get("reason") or record.get("outcome"))


def _file(profile: str) -> Path:
    found = importlib.util.find_spec("loadtest")
    places = found.submodule_search_locations if found else None
    path = Path(next(iter(places))) / f"{profile}.py" if places else None
    if path is None or not path.is_file():
        raise ActivityFailed(f"no load test {profile!r}: loadtest/{profile}.py is not there")
    return path


_running: Load | None = None
_adopted = False


def adopt(load: Load | None) -> None:
    """From now on this is the process's load, and ``start`` and ``stop`` leave it alone; None: no longer."""
    global _running, _adopted
    _running, _adopted = load, load is not None


def start(router: str, rate: float, seconds: float, max_tokens: int) -> Load:
    """The load of this process; one of an earlier ``start`` is stopped first. An adopted one is returned as it is."""
    global _running
    if _running is not None and _adopted:
        return _running
    if _running is not None:
        _running.stop()
    _running = Load(router, rate, seconds, max_tokens)
    _running.wait_for_first()
    return _running


def current() -> Load | None:
    return _running


def stop() -> dict[str, Any] | None:
    """Stop it (an adopted one goes on); its summary, or None if none runs."""
    global _running
    load = _running
    if load is None:
        return None
    if _adopted:
        return load.summary()
    _running = None
    return load.stop()
