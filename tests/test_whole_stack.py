"""What a user of the whole stack sees: real vLLM replicas, Prometheus, Alertmanager, locust, Chaos Toolkit.

One running stack serves all tests of this file, in their order: the later ones break it and see it heal.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import yaml

from chaos import probes

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
QUESTION = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 24,
}
#: Series exist only while a replica's request has failed within the last minute.
RECENT_ERRORS = 'increase(exaserve_router_requests_total{code=~"5.."}[1m]) > 0'


def wait_for(what: str, probe: Callable[[], Any], seconds: float, every: float = 0.25) -> Any:
    """The first true value of ``probe``, or a failure that says what was waited for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = probe()
        if value:
            return value
        time.sleep(every)
    pytest.fail(f"waited {seconds:.0f} s for {what}")


def fleet(stack: Any) -> dict[str, dict[str, Any]]:
    return {r["name"]: r for r in httpx.get(f"{stack.admin}/fleet").json()["replicas"]}


def all_ready(stack: Any) -> bool:
    return all(r["state"] == "ready" for r in fleet(stack).values())


def query(stack: Any, promql: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{stack.prometheus}/api/v1/query", params={"query": promql}).json()
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])


def replica_process(stack: Any, name: str) -> psutil.Process:
    """The process that listens on the replica's port."""
    port = int(fleet(stack)[name]["url"].rsplit(":", 1)[1])
    for c in psutil.net_connections("tcp"):
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid:
            return psutil.Process(c.pid)
    pytest.fail(f"nobody listens on port {port} of {name}")


def active_alerts(stack: Any) -> list[str]:
    """Names of what warns or pages; the watchdog always fires."""
    alerts = httpx.get(f"{stack.alertmanager}/api/v2/alerts", params={"active": "true"}).json()
    return [a["labels"]["alertname"] for a in alerts if a["labels"]["severity"] != "info"]


class Load:
    """Streaming questions from a few users until stopped; remembers how each ended and where."""

    def __init__(self, router: str, users: int = 4) -> None:
        self.router = router
        self.results: list[dict[str, Any]] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._user, args=(i,)) for i in range(users)]

    def __enter__(self) -> Load:
        for t in self._threads:
            t.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for t in self._threads:
            t.join(60)

    def _user(self, number: int) -> None:
        with httpx.Client(timeout=60) as client:
            n = 0
            while not self._stop.is_set():
                n += 1
                self.results.append(self._one(client, f"Story {number}-{n}: tell me about the sea."))

    def _one(self, client: httpx.Client, prompt: str) -> dict[str, Any]:
        r: dict[str, Any] = {"replica": None, "tokens": 0, "ok": False, "sent": time.monotonic(), "why": ""}
        body = {"messages": [{"role": "user", "content": prompt}], "stream": True, "max_tokens": 48}
        try:
            with client.stream("POST", f"{self.router}/v1/chat/completions", json=body) as answer:
                r["replica"] = answer.headers.get("x-exaserve-replica")
                for line in answer.iter_lines():
                    if line == "data: [DONE]":
                        r["ok"] = answer.status_code == 200
                    elif line.startswith("data: "):
                        r["tokens"] += 1
                        r["why"] = line if '"error"' in line else r["why"]
                r["why"] = r["why"] or f"status {answer.status_code}"
        except httpx.HTTPError as e:
            r["why"] = repr(e)
        r["seconds"] = time.monotonic() - r["sent"]
        return r


# --- asking it -------------------------------------------------------------------------------------------


def test_curl_gets_a_plain_and_a_streamed_answer(real_stack: Any) -> None:
    wait_for("both replicas", lambda: all_ready(real_stack), 60)
    url = f"{real_stack.router}/v1/chat/completions"
    call = ["curl", "-sS", "--max-time", "60", url, "-H", "content-type: application/json", "-d"]
    plain = subprocess.run([*call, json.dumps(QUESTION)], capture_output=True, text=True, check=True)
    assert "Paris" in json.loads(plain.stdout)["choices"][0]["message"]["content"]
    streamed = subprocess.run(
        [*call, json.dumps({**QUESTION, "stream": True})], capture_output=True, text=True, check=True
    )
    events = [e for e in streamed.stdout.split("\n\n") if e]
    assert events[-1] == "data: [DONE]"
    text = "".join(json.loads(e[6:])["choices"][0]["delta"].get("content") or "" for e in events[:-1])
    assert "Paris" in text


def test_the_openai_client_works_plain_streaming_and_async(real_stack: Any) -> None:
    ask: dict[str, Any] = {**QUESTION, "model": "smollm2-135m"}
    streaming = {**ask, "stream": True, "stream_options": {"include_usage": True}}
    client = openai.OpenAI(base_url=f"{real_stack.router}/v1", api_key="unused", max_retries=0)
    assert [m.id for m in client.models.list()] == ["smollm2-135m"]
    assert "Paris" in client.chat.completions.create(**ask).choices[0].message.content
    chunks = list(client.chat.completions.create(**streaming))
    assert "Paris" in "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].usage.completion_tokens > 0

    async def both() -> tuple[str, int]:
        async with openai.AsyncOpenAI(base_url=f"{real_stack.router}/v1", api_key="x", max_retries=0) as a:
            plain = await a.chat.completions.create(**ask)
            usage = 0
            async for chunk in await a.chat.completions.create(**streaming):
                usage = chunk.usage.completion_tokens if chunk.usage else usage
            return plain.choices[0].message.content or "", usage

    text, usage = asyncio.run(both())
    assert "Paris" in text
    assert usage > 0


def test_a_stream_through_the_router_is_byte_for_byte_the_engines(real_stack: Any) -> None:
    body = {**QUESTION, "stream": True, "stream_options": {"include_usage": True}, "seed": 1}
    replica = next(iter(fleet(real_stack).values()))["url"]

    def stream(base: str) -> bytes:
        answer = httpx.post(
            f"{base}/v1/chat/completions", json=body, headers={"x-request-id": "same-id"}, timeout=60
        )
        assert answer.status_code == 200
        # The engine's clock is the only thing that may differ between two runs of one request.
        return re.sub(rb'"created":\d+', b'"created":0', answer.content)

    assert stream(real_stack.router) == stream(replica)


# --- seeing it -------------------------------------------------------------------------------------------


def test_prometheus_has_every_part_up(real_stack: Any) -> None:
    jobs = {"exaserve-router", "exaserve-replica", "exaserve-exporter", "prometheus", "alertmanager"}

    def targets() -> list[dict[str, Any]]:
        return list(httpx.get(f"{real_stack.prometheus}/api/v1/targets").json()["data"]["activeTargets"])

    wait_for(
        "all targets up",
        lambda: (
            {t["labels"]["job"] for t in targets()} == jobs and all(t["health"] == "up" for t in targets())
        ),
        30,
    )
    assert len(targets()) == 6  # two replicas, one of each other


def test_numa_finds_the_processes_and_the_memory_of_real_replicas(real_stack: Any) -> None:
    """The exporter's own page, on this machine's /proc and /sys; the engine is a process of its own, and in it."""
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("a kernel without NUMA")

    def measured() -> dict[str, float]:
        page = httpx.get(f"{real_stack.exporter}/metrics").text
        found = re.findall(r'^exaserve_numa_replica_memory_bytes\{(.*kind="own".*)\} (\S+)$', page, re.M)
        sizes: dict[str, float] = {}
        for labels, value in found:
            replica = labels.split('replica="')[1].partition('"')[0]
            sizes[replica] = sizes.get(replica, 0) + float(value)
        return sizes if len(sizes) == 2 else {}

    # A process is read once it is half a minute old, and handed over at the scrape after that.
    sizes = wait_for("memory of both replicas by node", measured, 60, every=1)
    assert set(sizes) == {"replica-0", "replica-1"}
    for name, size in sizes.items():
        replica = replica_process(real_stack, name)
        resident = sum(p.memory_info().rss for p in (replica, *replica.children(recursive=True)))
        assert 0.6 * resident < size < 1.2 * resident
    page = httpx.get(f"{real_stack.exporter}/metrics").text
    for name in sizes:
        assert f'exaserve_numa_replica_processes{{replica="{name}",found_by="run_folder"}} ' in page
        assert re.search(rf'exaserve_numa_replica_cpu_node\{{replica="{name}",node="\d+"\}} 1', page)


@pytest.fixture(scope="module")
def locust_run(real_stack: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """60 s of ``locust -f loadtest/`` with 8 users, running while the first test asks for it."""
    out = tmp_path_factory.mktemp("locust")
    process = subprocess.Popen(
        [
            *(BIN / "locust", "-f", "loadtest/", "--headless", "-u", "8", "-t", "60s"),
            *("-H", real_stack.router, "--csv", str(out / "run"), "--run-folder", str(out / "kept")),
            # Two engines on this machine's cores make any client late; that is not what is asked here.
            *("--client-limits", "lag=9s,delay=9s,cpu=9"),
        ],
        cwd=ROOT,
        stdout=(out / "log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    yield process, out
    if process.poll() is None:
        process.terminate()
        process.wait(30)


def test_every_query_of_every_board_rule_and_variable_answers_under_load_or_says_why_not(
    real_stack: Any, locust_run: Any
) -> None:
    """What this machine lacks (GPUs, InfiniBand, …) is checked on fixture trees: tests/dashboards/test_fabric_live.py."""
    from tests.dashboards.live import Live, by_board, unexplained, until_answered
    from tests.dashboards.queries import FOLDERS

    live = Live(real_stack.prometheus, FOLDERS["exaserve"])
    answers = [*live.board_answers(), *live.rule_answers(), *live.variable_answers()]
    answers = until_answered(live, answers, 50)
    print(by_board(answers))
    assert not unexplained(answers), "no series and no reason:\n" + "\n".join(unexplained(answers))


def test_kv_blocks_and_bur_have_one_series_per_replica(real_stack: Any, locust_run: Any) -> None:
    for promql in ("exaserve_kv_blocks", "replica:exaserve_kv_block_utilisation:ratio"):
        assert sorted(s["metric"]["replica"] for s in query(real_stack, promql)) == ["replica-0", "replica-1"]


def test_locust_has_no_failure_and_shows_ttft(real_stack: Any, locust_run: Any) -> None:
    process, out = locust_run
    assert process.wait(120) == 0, (out / "log").read_text()[-3000:]
    rows = list(csv.DictReader((out / "run_stats.csv").open()))
    assert [r["Failure Count"] for r in rows if r["Name"] == "Aggregated"] == ["0"]
    ttft = [r for r in rows if r["Name"] == "TTFT"]
    assert sum(int(r["Request Count"]) for r in ttft) > 8
    assert all(0 < float(r["Median Response Time"]) < 30_000 for r in ttft)
    summary = json.loads((out / "kept" / "summary.json").read_text())
    assert (summary["verdict"], summary["all"]["failed"], summary["all"]["open"]) == ("passed", 0, 0)
    assert set(summary["replicas"]) == {"replica-0", "replica-1"}


# --- breaking it -----------------------------------------------------------------------------------------


def test_a_killed_replica_costs_only_streams_that_had_begun_on_it(real_stack: Any) -> None:
    wait_for("both replicas", lambda: all_ready(real_stack), 60)
    with Load(real_stack.router) as load:
        wait_for("load on both", lambda: len({r["replica"] for r in load.results}) == 2, 60)
        victim = replica_process(real_stack, "replica-1")
        killed = time.monotonic()
        victim.kill()
        wait_for("out of rotation", lambda: fleet(real_stack)["replica-1"]["state"] == "down", 5)
        wait_for("the alert in Alertmanager", lambda: "ExaServeReplicaDown" in active_alerts(real_stack), 60)
        wait_for("replica-1 back", lambda: fleet(real_stack)["replica-1"]["state"] == "ready", 120)
        back = time.monotonic()
        wait_for(
            "requests on replica-1 again",
            lambda: any(r["ok"] and r["replica"] == "replica-1" and r["sent"] > back for r in load.results),
            60,
        )
    bad = [r for r in load.results if not r["ok"]]
    begun_on_it = [r for r in bad if r["replica"] == "replica-1" and r["tokens"] and r["sent"] < killed + 1]
    assert bad == begun_on_it
    assert any(r["ok"] and r["replica"] == "replica-0" and killed < r["sent"] < back for r in load.results)


def test_a_frozen_replica_leaves_the_rotation_and_comes_back(real_stack: Any) -> None:
    wait_for("both replicas", lambda: all_ready(real_stack), 60)
    with Load(real_stack.router) as load:
        wait_for("load on both", lambda: len({r["replica"] for r in load.results}) == 2, 60)
        victim = replica_process(real_stack, "replica-0")
        frozen = time.monotonic()
        victim.send_signal(signal.SIGSTOP)
        try:
            wait_for("out of rotation", lambda: fleet(real_stack)["replica-0"]["state"] == "frozen", 10)
            out = time.monotonic()
        finally:
            victim.send_signal(signal.SIGCONT)
        wait_for("replica-0 back", lambda: fleet(real_stack)["replica-0"]["state"] == "ready", 30)
    assert out - frozen < 10  # two probe intervals
    waited = [r for r in load.results if r["sent"] < out and r["sent"] + r["seconds"] > frozen]
    # The probe timeout of 5 s, and then one whole request on the other, busy replica.
    assert max(r["seconds"] for r in waited) < 5 + 20
    assert all(r["ok"] or (r["replica"] == "replica-0" and r["tokens"]) for r in load.results)


def test_the_alerts_of_both_resolve(real_stack: Any) -> None:
    """After both: an alert takes a minute to resolve, and the second test need not wait for the first one's."""
    wait_for("the alerts to resolve", lambda: not active_alerts(real_stack), 120, 1)


def test_chaos_run_of_the_crash_experiment_completes_without_deviation(
    real_stack: Any, tmp_path: Path
) -> None:
    # What the tests before this one broke must be over: the experiment refuses to start on an unwell fleet.
    wait_for("both replicas", lambda: all_ready(real_stack), 60)
    wait_for("no error in the last minute", lambda: not query(real_stack, RECENT_ERRORS), 120, 1)
    wait_for(
        "answers in time", lambda: probes.slo_attainment(real_stack.prometheus, seconds=10) >= 0.95, 120, 1
    )
    env = os.environ | {
        "EXASERVE_ROUTER": real_stack.router,
        "EXASERVE_ADMIN": real_stack.admin,
        "EXASERVE_PROMETHEUS": real_stack.prometheus,
        "EXASERVE_RATE": "1",  # what one replica can take while the other one starts and takes a core and more
        "EXASERVE_TTFT": "10",
    }
    experiment = ROOT / "chaos" / "experiments" / "replica-crash.yaml"
    run = subprocess.run(
        [BIN / "chaos", "run", "--rollback-strategy", "always", experiment],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
    )
    journal = json.loads((tmp_path / "journal.json").read_text())
    assert (journal["status"], journal["deviated"]) == ("completed", False), run.stderr[-3000:]
    # Chaos Toolkit calls an experiment completed, too, that never began since the fleet was unwell.
    assert journal["steady_states"]["before"]["steady_state_met"], run.stderr[-3000:]
    assert len(journal["run"]) == len(yaml.safe_load(experiment.read_text())["method"])
    assert all(a["status"] == "succeeded" for a in journal["run"]), run.stderr[-3000:]


def test_the_router_has_no_request_left_over_when_all_is_quiet(real_stack: Any) -> None:
    wait_for("nothing in flight", lambda: all(r["in_flight"] == 0 for r in fleet(real_stack).values()), 30)


def test_nothing_listens_beyond_loopback(real_stack: Any) -> None:
    ports = {int(u.rsplit(":", 1)[1]) for u in (real_stack.router, real_stack.admin, real_stack.exporter)}
    ports |= {int(u.rsplit(":", 1)[1]) for u in (real_stack.prometheus, real_stack.alertmanager)}
    ports |= {int(r["url"].rsplit(":", 1)[1]) for r in fleet(real_stack).values()}
    listening = [
        c.laddr
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port in ports and c.family == socket.AF_INET
    ]
    assert {a.ip for a in listening} == {"127.0.0.1"}
