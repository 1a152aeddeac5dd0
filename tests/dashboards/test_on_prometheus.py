"""Rules and boards of every source on a real Prometheus that scrapes a made-up fleet: values, and no NaN.

ExaServe's fleet is every metric of the catalogue, from two routers and two exporters that see the same four
replicas. The plain servers and Ray's page are what a real vLLM said, with counters that move on.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from dashboards.rules import kv, slo, slo_budget, thresholds, users
from dashboards.signals import (
    GENERATION_TOKENS,
    KV_TOTAL,
    KV_USED,
    REPLICA_TTFT,
    RUNNING,
    SHORT,
    UP,
    buckets,
    failed,
    requests,
)
from exporters.catalog import CATALOG, Metric
from tests.conftest import free_ports

sys.path.insert(0, str(Path(__file__).parent))

from queries import FOLDERS, board_queries, label_values, metrics_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not shutil.which("prometheus"), reason="prometheus is not installed (Debian: prometheus)"
    ),
]

ENGINE_PAGE = (Path(__file__).parents[1] / "fixtures" / "vllm-0.32.0-metrics.txt").read_text()
REPLICAS = tuple(f"replica-{i}" for i in range(4))
#: Labels whose values matter here. The others have those that boards ask for by name, and "x".
LABELS = {
    "replica": REPLICAS,
    "model": ("m",),
    "pool": ("p",),
    "code": ("200",),
    "outcome": ("ok",),
    "cache": ("local", "external"),
    "state": ("starting", "ready", "degraded", "down", "frozen"),
}
ASKED_FOR = {label: ("x", *sorted(found)) for label, found in label_values(FOLDERS["exaserve"]).items()}
#: Counters that are not there before something happens.
ABSENT = {
    "exaserve_router_retries_total",
    "exaserve_router_rejected_requests_total",
    "exaserve_router_cut_answers_total",
}
GAUGES = {"exaserve_kv_blocks": 1000, "exaserve_kv_blocks_used": 200, "exaserve_kv_block_size_tokens": 16}
#: Pieces of catalogue names that the router says, the exporter says the rest.
ROUTERS = ("exaserve_router_", "exaserve_replica_", "exaserve_intent_classified")

#: Queries of ExaServe's boards that have no answer in this fleet, by why. The Fabric board is about hardware, which
#: the exporter's own tests have.
SILENT = {
    "more history": {
        "capacity: Full at this rate in A",
        "capacity: Requests: now and a week ago B",
        "capacity: Tokens a replica makes in an hour A",
    },
    "nothing is wrong here": {
        "chaos: What was lost A",
        "fleet: Failures and refusals A",
        "fleet: Replicas that don't serve A",
        "tenants: Refused by the router, by reason A",
    },
}
#: Recorded series that need an hour of history, or an objective that is not kept.
NEED_MORE = re.compile(r".*:band_(lower|median|upper)|" + re.escape(slo_budget.EXHAUSTED_IN))


def everything(router: bool) -> Callable[[float], str]:
    """Every metric of the catalogue that the router says, or the exporter; counters stand at 1,000 and 10 a second."""
    lines: list[str] = []
    for m in CATALOG.values():
        if m.name not in ABSENT and m.name.startswith(ROUTERS) == router:
            for of in product(*((ASKED_FOR | LABELS).get(label, ("x",)) for label in m.labels)):
                lines += samples(m, dict(zip(m.labels, of, strict=True)))
    text = "\n".join(lines) + "\n"
    return lambda seconds: text.replace(COUNT, str(1000 + 10 * seconds))


#: Stands for what counters are at.
COUNT = "@count@"


def samples(m: Metric, labels: dict[str, str]) -> list[str]:
    def line(suffix: str, value: object, **more: str) -> str:
        pairs = ",".join(f'{k}="{v}"' for k, v in (labels | more).items())
        return f"{m.name}{suffix}{{{pairs}}} {value}"

    if m.kind == "counter":
        return [line("", COUNT)]
    if m.kind == "histogram":
        edges = [line("_bucket", COUNT if b >= 1 else 0, le=str(b)) for b in m.buckets]
        return [*edges, line("_bucket", COUNT, le="+Inf"), line("_count", COUNT), line("_sum", COUNT)]
    return [line("", float(labels["state"] == "ready") if "state" in labels else GAUGES.get(m.name, 1))]


def engine(factor: float) -> str:
    """The captured page; counters and histograms times ``factor``."""
    out, kind = [], ""
    for line in ENGINE_PAGE.splitlines():
        if line.startswith("# TYPE "):
            kind = line.split()[3]
        elif line[:1] != "#" and kind in ("counter", "histogram"):
            name, _, value = line.rpartition(" ")
            line = f"{name} {float(value) * factor}"
        out.append(line)
    return "\n".join(out) + "\n"


def under_ray(page: str, replica: str) -> str:
    """The page's engine metrics as Ray's agent writes them for one replica."""
    lines = [line for line in page.splitlines() if line.startswith("vllm:")]
    named = f'Component="core_worker",ReplicaId="{replica}",WorkerId="{replica}-w",model_name='
    return "\n".join(f"ray_vllm_{line[5:]}".replace("model_name=", named, 1) for line in lines) + "\n"


@dataclass(frozen=True)
class Target:
    """What one target says after so many seconds of traffic; its job, and the replica that discovery names."""

    job: str
    page: Callable[[float], str]
    replica: str = ""


#: Engines: the captured numbers once more every 10 s.
PAGES = {
    "exaserve": (
        Target("exaserve-router", everything(router=True)),
        Target("exaserve-router", everything(router=True)),
        Target("exaserve-exporter", everything(router=False)),
        Target("exaserve-exporter", everything(router=False)),
        *(
            Target("exaserve-replica", lambda s: engine(1 + s / 10).replace("smollm2-135m", "m"), replica)
            for replica in REPLICAS
        ),
    ),
    "vllm": (
        Target("vllm", lambda s: engine(1 + s / 10)),
        Target("vllm", lambda s: engine(2 + s / 5)),
    ),
    "ray": (Target("ray", lambda s: under_ray(engine(1 + s / 10), "a") + under_ray(engine(2 + s / 5), "b")),),
}


#: (source, whether there is traffic). Without traffic Ray's rules are the plain servers' under other names.
FLEETS = (("exaserve", True), ("exaserve", False), ("vllm", True), ("vllm", False), ("ray", True))


def serve(target: Target, traffic: bool) -> ThreadingHTTPServer:
    began = time.monotonic()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = target.page(time.monotonic() - began if traffic else 0).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def start(folder: Path, source: str, targets: list[tuple[Target, str]], port: int) -> subprocess.Popen[bytes]:
    """A Prometheus with the source's rules, every group evaluated every 2 s, a minute's rates taken over 10 s."""
    rules = folder / "rules"
    rules.mkdir(parents=True)
    for path in (FOLDERS[source] / "rules").glob("*.yaml"):
        text = re.sub(r"(?m)^  interval: \w+$", "  interval: 2s", path.read_text())
        (rules / path.name).write_text(text.replace("[1m]", "[10s]"))
    jobs: dict[str, list[dict[str, Any]]] = {}
    for target, address in targets:
        named = {"labels": {"replica": target.replica, "model": "m"}} if target.replica else {}
        jobs.setdefault(target.job, []).append({"targets": [address], **named})
    config = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
        "rule_files": [f"{rules}/*.yaml"],
        "scrape_configs": [{"job_name": job, "static_configs": at} for job, at in jobs.items()],
    }
    (folder / "prometheus.yml").write_text(yaml.dump(config))
    argv = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    log = (folder / "log").open("wb")
    return subprocess.Popen([*argv, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, bool], str]]:
    """Address of the Prometheus by source and whether its fleet has traffic; all have run for some seconds."""
    urls, servers, processes = {}, [], []
    for source, traffic in FLEETS:
        pages = [(target, serve(target, traffic)) for target in PAGES[source]]
        servers += [server for _, server in pages]
        port = free_ports()
        folder = tmp_path_factory.mktemp(f"{source}-{traffic}")
        addresses = [(target, f"127.0.0.1:{server.server_port}") for target, server in pages]
        processes.append(start(folder, source, addresses, port))
        urls[source, traffic] = f"http://127.0.0.1:{port}"
    try:
        for url in urls.values():
            assert wait_until(
                lambda url=url: ask(url, slo.error("1h")) or ask(url, f"{requests(SHORT)} == 0")
            ), url  # type: ignore[misc]
        time.sleep(8)
        yield urls
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)
        for server in servers:
            server.shutdown()
            server.server_close()


#: One for all; making a client costs more than a query.
CLIENT = httpx.Client(timeout=60)


def ask(url: str, promql: str) -> list[Any]:
    """Series of the answer; none while Prometheus still starts."""
    try:
        answer = CLIENT.get(f"{url}/api/v1/query", params={"query": promql})
    except httpx.HTTPError:
        return []
    if answer.status_code == 503:
        return []
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"]["result"])


def values(url: str, promql: str, label: str = "replica") -> dict[str, float]:
    """Value by one label, "" where a series has none."""
    return {s["metric"].get(label, ""): float(s["value"][1]) for s in ask(url, promql)}


def wait_until(condition: Callable[[], Any], seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.5)
    return False


def comes_to(right: Any, look: Callable[[], Any]) -> None:
    """Wait for it: a scrape that was late or left out, on a busy machine, is in the rates for as long as their window."""
    end = time.monotonic() + 60
    while (found := look()) != right and time.monotonic() < end:
        time.sleep(0.5)
    assert found == right


@pytest.mark.parametrize(("source", "traffic"), FLEETS)
def test_no_query_of_a_board_and_no_recorded_series_is_nan(
    fleets: dict[tuple[str, bool], str], source: str, traffic: bool
) -> None:
    url = fleets[source, traffic]
    asked = [*board_queries(FOLDERS[source]), ("recorded", '{__name__=~"(fleet|pool|model|replica|slo):.+"}')]
    wrong = {name for name, promql in asked for s in ask(url, promql) if math.isnan(float(s["value"][1]))}
    assert wrong == set()


@pytest.mark.parametrize(("source", "traffic"), FLEETS)
def test_every_rule_is_evaluated_without_an_error(
    fleets: dict[tuple[str, bool], str], source: str, traffic: bool
) -> None:
    """Many-to-many matches and the like show only with data."""

    def groups_now() -> list[Any]:
        return list(CLIENT.get(f"{fleets[source, traffic]}/api/v1/rules").json()["data"]["groups"])

    # Until each has been evaluated a first time.
    assert wait_until(lambda: not any(r["health"] == "unknown" for g in groups_now() for r in g["rules"]))
    groups = groups_now()
    wrong = {r["name"]: r["lastError"] for g in groups for r in g["rules"] if r["health"] != "ok"}
    assert wrong == {}
    assert len(groups) == len(list((FOLDERS[source] / "rules").glob("*.yaml")))


def test_two_routers_add_up_and_two_exporters_count_once(fleets: dict[tuple[str, bool], str]) -> None:
    url = fleets["exaserve", True]
    about = {"rel": 0.1}
    # Every label value of requests_total is one series; each router counts 10 a second of its own.
    comes_to(pytest.approx({"p": 20}, **about), lambda: values(url, requests(SHORT), "pool"))
    comes_to({"p": 0}, lambda: values(url, failed(SHORT), "pool"))
    comes_to(dict.fromkeys(REPLICAS, 1), lambda: values(url, RUNNING))
    comes_to(pytest.approx(dict.fromkeys(REPLICAS, 10), **about), lambda: values(url, GENERATION_TOKENS))
    comes_to({"m": 800}, lambda: values(url, KV_USED, "model"))
    comes_to({"m": 4000}, lambda: values(url, KV_TOTAL, "model"))
    comes_to({"m": 2850}, lambda: values(url, kv.THRESHOLD, "model"))
    comes_to(dict.fromkeys(REPLICAS, 1), lambda: values(url, UP))
    # All observations are between 0.5 s and 1 s.
    comes_to({"": pytest.approx(0.75)}, lambda: values(url, users.fleet_quantile("ttft", 0.5), ""))
    errors = {"availability": 0, "ttft": 0, "inter_token": 1, "e2e": 0}
    comes_to(pytest.approx(errors, rel=0.01, abs=0.01), lambda: values(url, slo.error("1h"), "slo"))
    comes_to({"m": 9}, lambda: values(url, thresholds.outlier("waiting"), "model"))
    means = dict.fromkeys(REPLICAS, page_mean("time_to_first_token"))
    comes_to(pytest.approx(means), lambda: values(url, REPLICA_TTFT))


@pytest.mark.parametrize("source", ["vllm", "ray"])
def test_engines_own_pages_give_every_signal(fleets: dict[tuple[str, bool], str], source: str) -> None:
    """Two replicas, the second with twice the first one's counters; what is expected is read off the page."""
    url, about = fleets[source, True], {"rel": 0.1}
    done = sum(page_values("request_success_total").values())
    rates = pytest.approx({"smollm2-135m": 0.3 * done}, **about)
    comes_to(rates, lambda: values(url, requests(SHORT), "model"))
    comes_to({"smollm2-135m": 0}, lambda: values(url, failed(SHORT), "model"))
    (tokens,) = page_values("generation_tokens_total").values()
    both = pytest.approx([0.1 * tokens, 0.2 * tokens], **about)
    comes_to(both, lambda: sorted(values(url, GENERATION_TOKENS).values()))
    comes_to([14, 14], lambda: list(values(url, RUNNING).values()))
    comes_to([1, 1], lambda: list(values(url, UP).values()))
    assert set(values(url, RUNNING)) == set(values(url, UP))
    used = {"smollm2-135m": pytest.approx(2 * 0.6363636363636364)}
    comes_to(used, lambda: values(url, KV_USED, "model"))
    comes_to({"smollm2-135m": 0.95}, lambda: values(url, kv.THRESHOLD, "model"))
    means = pytest.approx([page_mean("time_to_first_token")] * 2)
    comes_to(means, lambda: list(values(url, REPLICA_TTFT).values()))
    for latency, name in (("ttft", "time_to_first_token"), ("e2e", "e2e_request_latency")):
        for q in (0.5, 0.95):
            right = {"": pytest.approx(page_quantile(name, q), rel=0.001)}
            comes_to(right, lambda of=(latency, q): values(url, users.fleet_quantile(*of), ""))  # type: ignore[misc]
    within = (
        page_values("time_to_first_token_seconds_bucket")["2.5"]
        / page_values("time_to_first_token_seconds_bucket")["+Inf"]
    )
    missed = {"ttft": pytest.approx(1 - within, abs=0.001)}
    comes_to(missed, lambda: values(url, slo.error("5m") + '{slo="ttft"}', "slo"))
    assert {s["metric"]["le"] for s in ask(url, buckets("ttft", SHORT))} >= {"2.5", "+Inf"}


def page_values(metric: str) -> dict[str, float]:
    """Samples of the captured page, by their reason or edge."""
    found = {}
    for line in ENGINE_PAGE.splitlines():
        if line.startswith(f"vllm:{metric}{{") and 'reason="abort"' not in line:
            label = re.search(r'(?:le|finished_reason)="([^"]+)"', line)
            found[label[1] if label else ""] = float(line.rpartition(" ")[2])
    return found


def page_mean(metric: str) -> float:
    (total,), (count,) = (page_values(f"{metric}_seconds_{s}").values() for s in ("sum", "count"))
    return total / count


def page_quantile(metric: str, q: float) -> float:
    """By hand: straight within the bucket that holds the rank."""
    counts = page_values(f"{metric}_seconds_bucket")
    rank, below, start = q * counts["+Inf"], 0.0, 0.0
    for edge, count in counts.items():
        if count >= rank:
            return start + (float(edge) - start) * (rank - below) / (count - below)
        below, start = count, float(edge)
    raise AssertionError("no rank beyond the last bucket")


def test_every_query_of_every_board_answers_under_traffic(fleets: dict[tuple[str, bool], str]) -> None:
    """But for those that need more than this fleet has: history, failures, hardware."""
    url, known = fleets["exaserve", True], set[str]().union(*SILENT.values())
    left = {
        name: promql
        for name, promql in board_queries(FOLDERS["exaserve"])
        if name not in known
        and not name.startswith("fabric: ")
        and not any(m in ABSENT or NEED_MORE.fullmatch(m) for m in metrics_of(promql))
    }
    end = time.monotonic() + 90
    while left and time.monotonic() < end:
        left = {name: promql for name, promql in left.items() if not ask(url, promql)}
        time.sleep(0.5)
    assert left == {}
