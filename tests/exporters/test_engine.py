"""The engine collector: vLLM pages old and new become the catalogue's series; what is broken costs nobody else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exporters.collectors import engine
from exporters.collectors._vllm import samples_of
from exporters.collectors.engine import EngineCollector
from exporters.registry import NoData, Sample
from exporters.settings import Replica, Settings

Page = Callable[[str], bytes]
Serve = Callable[..., str]
CAPTURED = Path(__file__).parents[1] / "fixtures" / "vllm-0.32.0-metrics.txt"


def values(samples: list[Sample]) -> dict[str, float]:
    """Values by name, for one replica and one model."""
    assert len({s.name for s in samples}) == len(samples)
    return {s.name: s.value for s in samples}


def collect(settings: Settings, seconds: float = 10) -> dict[tuple[str, str], float]:
    samples = EngineCollector(settings).collect(time.monotonic() + seconds)
    return {(s.name, s.labels[0]): s.value for s in samples}


def replicas(**urls: str) -> tuple[Replica, ...]:
    return tuple(Replica(name, f"{url}/metrics") for name, url in urls.items())


# --- reading a page --------------------------------------------------------------------------------------


def test_an_old_page_gives_every_series(page: Page) -> None:
    samples = samples_of(page("vllm-0.6-metrics.txt"), "r0")
    assert {s.labels for s in samples} == {("r0", "facebook/opt-125m")}
    assert values(samples) == {
        "exaserve_engine_requests_running": 3,
        "exaserve_engine_requests_waiting": 1,
        "exaserve_engine_preemptions_total": 7,
        "exaserve_kv_block_size_tokens": 16,
        "exaserve_kv_blocks": 27898,
        "exaserve_kv_blocks_used": 27898 / 4,
    }


def test_several_engines_on_one_page_are_added_up(page: Page) -> None:
    samples = samples_of(page("vllm-v1-two-engines-metrics.txt"), "r0")
    assert {s.labels for s in samples} == {("r0", "smollm2-135m")}
    assert values(samples) == {
        "exaserve_engine_requests_running": 5,
        "exaserve_engine_requests_waiting": 4,
        "exaserve_engine_preemptions_total": 2,
        "exaserve_kv_block_size_tokens": 128,
        "exaserve_kv_blocks": 1536,
        "exaserve_kv_blocks_used": 0.5 * 1024 + 0.125 * 512,
    }


@pytest.mark.skipif(not CAPTURED.exists(), reason="no page captured from vLLM 0.32.0")
def test_a_page_captured_from_the_real_engine_gives_every_series() -> None:
    samples = samples_of(CAPTURED.read_bytes(), "r0")
    found = values(samples)
    assert set(found) == {
        "exaserve_engine_requests_running",
        "exaserve_engine_requests_waiting",
        "exaserve_engine_preemptions_total",
        "exaserve_kv_block_size_tokens",
        "exaserve_kv_blocks",
        "exaserve_kv_blocks_used",
    }
    text = CAPTURED.read_text()
    usage = float(
        next(line for line in text.splitlines() if line.startswith("vllm:kv_cache_usage_perc")).split()[-1]
    )
    assert f'num_gpu_blocks="{found["exaserve_kv_blocks"]:.0f}"' in text
    assert found["exaserve_kv_blocks_used"] == pytest.approx(usage * found["exaserve_kv_blocks"])
    assert usage > 0


RUNNING = b'vllm:num_requests_running{model_name="m"} 1\n'
INFO = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        (RUNNING, {"exaserve_kv_blocks", "exaserve_kv_blocks_used", "exaserve_kv_block_size_tokens"}),
        (RUNNING + INFO, {"exaserve_kv_blocks_used"}),
        (RUNNING + INFO + b'vllm:kv_cache_usage_perc{model_name="m"} NaN\n', {"exaserve_kv_blocks_used"}),
        (RUNNING + INFO + b'vllm:kv_cache_usage_perc{model_name="m"} 42\n', {"exaserve_kv_blocks_used"}),
        (RUNNING + INFO.replace(b'"100"', b'"None"'), {"exaserve_kv_blocks", "exaserve_kv_blocks_used"}),
        (RUNNING + INFO.replace(b'"100"', b'"-1"'), {"exaserve_kv_blocks"}),
        (INFO + b'vllm:num_requests_running{model_name="m"} x\n', {"exaserve_engine_requests_running"}),
        (b'vllm:num_requests_running{model_name="m', {"exaserve_engine_requests_running"}),
        (b"\xff\x00}}}{{{\nvllm:\nvllm:num_requests_running", {"exaserve_engine_requests_running"}),
    ],
)
def test_what_the_page_lacks_is_absent_and_not_0(text: bytes, absent: set[str]) -> None:
    found = {s.name for s in samples_of(text, "r0")}
    assert not found & absent
    assert ("exaserve_engine_requests_running" in found) == (RUNNING in text)


def test_used_blocks_are_absent_if_one_of_two_engines_has_no_usage(page: Page) -> None:
    text = page("vllm-v1-two-engines-metrics.txt").replace(b'_usage_perc{engine="1"', b'_usage_x{engine="1"')
    assert "exaserve_kv_blocks_used" not in values(samples_of(text, "r0"))


def test_a_model_name_with_quotes_and_braces_stays_whole() -> None:
    text = rb'vllm:num_requests_running{model_name="a\"}b\\,c=\"d",x="} 9"} 2 1700000000000'
    assert samples_of(text, "r") == [Sample("exaserve_engine_requests_running", ("r", 'a"}b\\,c="d'), 2.0)]


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
    found = collect(Settings(replicas(**urls), timeout=1.0))
    assert time.monotonic() - began < 8
    up = {replica: value for (name, replica), value in found.items() if name == "exaserve_engine_up"}
    assert up == {name: float(name == "good") for name in urls}
    assert {replica for _, replica in found} == set(urls)
    assert [name for name, replica in found if replica != "good"] == ["exaserve_engine_up"] * 6
    assert found["exaserve_kv_blocks", "good"] == 27898


def test_a_hung_replica_is_cut_at_the_collectors_deadline(page: Page, serve: Serve, hung: str) -> None:
    settings = Settings(replicas(good=serve(page("vllm-0.6-metrics.txt")), hung=hung), timeout=60)
    began = time.monotonic()
    found = collect(settings, seconds=1.5)
    assert time.monotonic() - began < 10
    assert (found["exaserve_engine_up", "good"], found["exaserve_engine_up", "hung"]) == (1, 0)


def test_many_replicas_are_read_side_by_side(page: Page, serve: Serve) -> None:
    text = page("vllm-0.6-metrics.txt")

    def slow() -> bytes:
        time.sleep(0.5)
        return text

    url = serve(slow)
    began = time.monotonic()
    found = collect(Settings(replicas(**{f"r{i}": url for i in range(24)}), timeout=10))
    assert time.monotonic() - began < 6  # one after the other would take 12 s
    assert sum(value for (name, _), value in found.items() if name == "exaserve_engine_up") == 24


def test_no_replica_configured_is_no_data() -> None:
    with pytest.raises(NoData):
        EngineCollector(Settings()).collect(time.monotonic() + 1)


# --- service discovery -----------------------------------------------------------------------------------


def sd(**urls: str) -> bytes:
    return json.dumps(
        [
            {"targets": [url.removeprefix("http://")], "labels": {"replica": name}}
            for name, url in urls.items()
        ]
    ).encode()


def test_replicas_are_found_by_http_service_discovery(page: Page, serve: Serve, closed: str) -> None:
    discovery = serve(sd(a=serve(page("vllm-0.6-metrics.txt")), b=closed))
    found = collect(Settings(discover=discovery))
    assert (found["exaserve_engine_up", "a"], found["exaserve_engine_up", "b"]) == (1, 0)


@pytest.mark.parametrize("answer", [b"not json", b'{"a": 1}', b'[{"targets": 3}]', b"[" * 100_000])
def test_a_discovery_that_breaks_keeps_the_replicas_known_before(
    page: Page, serve: Serve, answer: bytes
) -> None:
    answers = [sd(a=serve(page("vllm-0.6-metrics.txt"))), answer]
    collector = EngineCollector(Settings(discover=serve(lambda: answers.pop(0))))
    for _ in range(2):
        samples = collector.collect(time.monotonic() + 10)
        assert Sample("exaserve_engine_up", ("a",), 1.0) in samples


def test_a_discovery_that_never_answered_is_broken(closed: str) -> None:
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1"):
        EngineCollector(Settings(discover=closed)).collect(time.monotonic() + 5)


def test_no_discovered_replica_is_no_data(serve: Serve) -> None:
    with pytest.raises(NoData):
        EngineCollector(Settings(discover=serve(b"[]"))).collect(time.monotonic() + 5)
