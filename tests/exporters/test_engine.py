"""The engine collector over a fleet: every make is read, what is broken costs nobody else, nothing outlives its replica."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from exporters.collectors import engine
from exporters.collectors.engine import EngineCollector
from exporters.registry import NoData
from exporters.settings import Replica, Settings

Page = Callable[[str], bytes]
Serve = Callable[..., str]
#: routes(path -> (status, body)) -> (address, paths asked, without their query).
Routes = Callable[[dict[str, tuple[int, bytes]]], tuple[str, list[str]]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version has its time, however late this machine is with it."""
    monkeypatch.setattr(engine, "VERSION_SECONDS", 60.0)


@pytest.fixture
def routes() -> Iterator[Routes]:
    """A server with some paths, 404 for the rest; a path may be given with ``?`` for those with a query only."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: dict[str, tuple[int, bytes]]) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0] + ("?" if "?" in self.path else "")
                asked.append(path)
                status, body = answers.get(path, (404, b""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def fleet(named: tuple[Replica, ...], timeout: float = 60.0) -> Settings:
    """Settings with a timeout that no replica reaches but one that hangs, however slow this machine is."""
    return Settings(named, timeout=timeout)


def run(collector: EngineCollector, seconds: float = 60) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels): s.value for s in collector.collect(time.monotonic() + seconds)}


def collect(settings: Settings, seconds: float = 60) -> dict[tuple[str, str], float]:
    samples = EngineCollector(settings).collect(time.monotonic() + seconds)
    return {(s.name, s.labels[0] if s.labels else ""): s.value for s in samples}


def replicas(**urls: str) -> tuple[Replica, ...]:
    return tuple(Replica(name, f"{url}/metrics") for name, url in urls.items())


# --- the ways to a page ----------------------------------------------------------------------------------


def test_vllm_is_asked_for_the_wanted_names_only_and_its_version_once(page: Page, routes: Routes) -> None:
    text = page("vllm-0.32.0-metrics.txt")
    url, asked = routes({"/metrics/?": (200, text), "/version": (200, b'{"version": "0.32.0"}')})
    collector = EngineCollector(fleet(replicas(r=url)))
    for _ in range(2):
        found = run(collector)
        assert found["exaserve_kv_blocks_used", "r", "smollm2-135m"] == 28
        assert found["exaserve_engine_info", "r", "vllm", "0.32.0"] == 1
    assert asked == ["/metrics/?", "/version", "/metrics/?"]


@pytest.mark.parametrize("short", [(404, b""), (307, b""), (400, b""), (200, b""), (200, b"# HELP x y\n")])
def test_a_server_without_the_short_way_is_asked_the_plain_way_at_once_and_from_then_on(
    page: Page, routes: Routes, short: tuple[int, bytes]
) -> None:
    """prometheus_client in its multi-process mode (SGLang, several API servers) answers the names with nothing."""
    text = page("sglang-0.5.6-metrics.txt")
    info = b'{"version": "0.5.6", "model_path": "m"}'
    url, asked = routes({"/metrics/?": short, "/metrics": (200, text), "/server_info": (200, info)})
    collector = EngineCollector(fleet(replicas(r=url)))
    for _ in range(2):
        found = run(collector)
        assert found["exaserve_engine_up", "r"] == 1
        assert found["exaserve_kv_blocks", "r", "m"] == 156
        assert found["exaserve_engine_info", "r", "sglang", "0.5.6"] == 1
    assert asked == ["/metrics/?", "/metrics", "/server_info", "/metrics"]


def test_tensorrt_llm_is_found_at_its_own_address(page: Page, routes: Routes) -> None:
    """Its /metrics is JSON that reading takes away: it is asked there once, never again."""
    text = page("tensorrt-llm-1.3-metrics.txt")
    url, asked = routes(
        {
            "/metrics": (200, b'[{"kvCacheStats": {}}]'),
            "/prometheus/metrics": (200, text),
            "/version": (200, b'{"version": "1.3.0rc1"}'),
        }
    )
    collector = EngineCollector(fleet(replicas(r=url)))
    for _ in range(2):
        found = run(collector)
        assert found["exaserve_kv_blocks_used", "r", "m"] == 100
        assert found["exaserve_engine_info", "r", "tensorrt_llm", "1.3.0rc1"] == 1
    assert asked == ["/metrics/?", "/metrics", "/prometheus/metrics", "/version", "/prometheus/metrics"]


def test_a_replica_with_a_path_of_its_own_is_asked_there_only(page: Page, routes: Routes) -> None:
    url, asked = routes({"/ray/metrics": (200, page("ray-vllm-metrics.txt"))})
    found = run(EngineCollector(fleet((Replica("r", f"{url}/ray/metrics"),))))
    assert found["exaserve_kv_blocks", "r", "m"] == 200
    assert found["exaserve_engine_info", "r", "vllm", ""] == 1
    assert asked == ["/ray/metrics"]


@pytest.mark.parametrize("answer", [(404, b""), (200, b"0.1"), (200, b"{}"), (200, b'{"version": "a b"}')])
def test_a_version_that_is_not_told_is_empty_and_not_asked_again(
    page: Page, routes: Routes, answer: tuple[int, bytes]
) -> None:
    url, asked = routes({"/metrics/?": (200, page("vllm-0.32.0-metrics.txt")), "/version": answer})
    collector = EngineCollector(fleet(replicas(r=url)))
    for _ in range(2):
        assert run(collector)["exaserve_engine_info", "r", "vllm", ""] == 1
    assert asked.count("/version") == 1


def test_a_replica_that_comes_back_as_another_engine_is_read_as_that(page: Page, routes: Routes) -> None:
    answers = {
        "/metrics": (200, page("sglang-0.5.6-metrics.txt")),
        "/server_info": (200, b'{"version": "0.5.6"}'),
    }
    url, _ = routes(answers)
    collector = EngineCollector(fleet(replicas(r=url)))
    assert run(collector)["exaserve_engine_info", "r", "sglang", "0.5.6"] == 1
    answers.clear()
    assert run(collector) == {("exaserve_engine_up", "r"): 0}
    answers["/metrics/?"] = (200, page("vllm-0.32.0-metrics.txt"))
    answers["/version"] = (200, b'{"version": "0.32.0"}')
    found = run(collector)
    assert found["exaserve_engine_info", "r", "vllm", "0.32.0"] == 1
    assert ("exaserve_engine_info", "r", "sglang", "0.5.6") not in found


def test_versions_of_a_large_fleet_are_asked_for_over_several_scrapes(
    page: Page, routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "VERSIONS_PER_SCRAPE", 2)
    url, asked = routes({"/metrics/?": (200, page("vllm-0.32.0-metrics.txt")), "/version": (200, b"{}")})
    collector = EngineCollector(fleet(replicas(a=url, b=url, c=url)))
    known = [sum(1 for key in run(collector) if key[0] == "exaserve_engine_info") for _ in range(3)]
    assert known == [2, 3, 3]
    assert asked.count("/version") == 3


# --- progress --------------------------------------------------------------------------------------------


def test_an_engine_with_requests_and_no_progress_is_stalled_and_an_idle_one_is_not(
    page: Page, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page("vllm-0.32.0-metrics.txt")
    idle = text.replace(b"} 14.0", b"} 0.0").replace(
        b'waiting{engine="0",model_name="smollm2-135m"} 4.0', b""
    )
    now = [1000.0]
    monkeypatch.setattr(engine, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    tokens = iter(range(10))

    def busy() -> bytes:
        return text.replace(b"} 1021.0", b"} %d" % next(tokens))

    collector = EngineCollector(fleet(replicas(stuck=serve(text), idle=serve(idle), busy=serve(busy))))
    assert not [
        s for s in collector.collect(time.monotonic() + 60) if s.name == "exaserve_engine_stalled_seconds"
    ]
    now[0] += 45
    found = collector.collect(time.monotonic() + 60)
    assert {s.labels[0]: s.value for s in found if s.name == "exaserve_engine_stalled_seconds"} == {
        "stuck": 45,
        "idle": 0,
        "busy": 0,
    }


# --- reading a fleet -------------------------------------------------------------------------------------


def test_replicas_that_cannot_be_read_are_down_and_have_no_other_series(
    page: Page, serve: Serve, hung: str, dripping: str, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hung, dripping, refused, 500, too long, not vLLM: the good one is read all the same, within the limit."""
    monkeypatch.setattr(engine, "MAX_BODY_BYTES", 100_000)
    urls = {
        "good": serve(page("vllm-0.6-metrics.txt")),
        "hung": hung,
        "dripping": dripping,
        "refused": closed,
        "broken": serve(b"oops", status=500),
        "long": serve(b"# x\n" * 50_000),
        "other": serve(b"<html>hello</html>"),
    }
    began = time.monotonic()
    # Those that hang take all of the timeout, the good one has as much.
    found = collect(fleet(replicas(**urls), timeout=4.0))
    assert time.monotonic() - began < 30
    up = {replica: value for (name, replica), value in found.items() if name == "exaserve_engine_up"}
    assert up == {name: float(name == "good") for name in urls}
    assert {replica for _, replica in found} == set(urls)
    assert [name for name, replica in found if replica != "good"] == ["exaserve_engine_up"] * 6
    assert found["exaserve_kv_blocks", "good"] == 27898


def test_those_that_hung_are_asked_last(
    page: Page, serve: Serve, hung: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More hung ones than places: at the second scrape they can't keep the others from being read."""
    monkeypatch.setattr("exporters.collectors._fetch.MAX_OPEN", 16)
    good = {f"good{i}": serve(page("vllm-0.6-metrics.txt")) for i in range(2)}
    collector = EngineCollector(fleet(replicas(**{f"hung{i}": hung for i in range(16)}, **good)))
    # Those that hang take all of the time; the second time is what this machine may take for two that answer.
    up = [
        sum(value for key, value in run(collector, seconds).items() if key[0] == "exaserve_engine_up")
        for seconds in (1.0, 5.0)
    ]
    assert up == [0, 2]


def test_a_page_that_the_reader_breaks_on_costs_its_own_replica_only(
    page: Page, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(engine._sglang, "read", breaks)
    bad, good = serve(page("sglang-0.5.6-metrics.txt")), serve(page("vllm-0.6-metrics.txt"))
    found = collect(fleet(replicas(bad=bad, good=good)))
    assert (found["exaserve_engine_up", "bad"], found["exaserve_engine_up", "good"]) == (0, 1)


def test_a_hung_replica_is_cut_at_the_collectors_deadline(page: Page, serve: Serve, hung: str) -> None:
    settings = fleet(replicas(good=serve(page("vllm-0.6-metrics.txt")), hung=hung))
    began = time.monotonic()
    found = collect(settings, seconds=4.0)
    assert time.monotonic() - began < 30
    assert (found["exaserve_engine_up", "good"], found["exaserve_engine_up", "hung"]) == (1, 0)


def test_many_replicas_are_read_side_by_side(page: Page, serve: Serve) -> None:
    text = page("vllm-0.6-metrics.txt")

    def slow() -> bytes:
        time.sleep(1)
        return text

    url = serve(slow)
    began = time.monotonic()
    found = collect(fleet(replicas(**{f"r{i}": url for i in range(24)})))
    assert time.monotonic() - began < 15  # one after the other would take 24 s
    assert sum(value for (name, _), value in found.items() if name == "exaserve_engine_up") == 24


def test_no_replica_configured_is_no_data() -> None:
    with pytest.raises(NoData):
        EngineCollector(Settings()).collect(time.monotonic() + 1)


def test_a_page_with_more_samples_than_an_engine_has_costs_its_own_replica_only(
    page: Page, serve: Serve
) -> None:
    endless = "".join(f'vllm:num_requests_running{{model_name="m{i}"}} 1\n' for i in range(20_000))
    bad, good = serve(endless.encode()), serve(page("vllm-0.6-metrics.txt"))
    found = collect(fleet(replicas(bad=bad, good=good)))
    assert (found["exaserve_engine_up", "bad"], found["exaserve_engine_up", "good"]) == (0, 1)
