"""The simulated replica's metrics page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .replica_client import LABELS, chat, families, samples, simulated

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fast() -> Iterator[httpx.Client]:
    """A replica that answers at once."""
    with simulated("--tokens-per-second", "5000", "--prefill-tokens-per-second", "1e6") as (client, _):
        yield client


def test_its_page_has_only_what_a_real_page_has(fast: httpx.Client) -> None:
    """Names, types and labels against the page that a real vLLM 0.32.0 gave."""
    fast.post("/v1/chat/completions", json=chat(max_tokens=2))
    page = fast.get("/metrics").text
    real = (ROOT / "tests/fixtures/vllm-0.32.0-metrics.txt").read_text()
    ours, theirs = families(page), families(real)
    assert {name: theirs.get(name) for name in ours} == ours
    buckets = [
        line.split(" ")[0] for line in page.splitlines() if line.startswith("vllm:") and "_bucket" in line
    ]
    assert set(buckets) <= {line.split(" ")[0] for line in real.splitlines()}


def test_the_catalogue_is_what_its_command_makes_of_the_page() -> None:
    page = families((ROOT / "tests/fixtures/vllm-0.32.0-metrics.txt").read_text())
    made = {f"{name} {kind} {','.join(sorted(labels))}".rstrip() for name, (kind, labels) in page.items()}
    lines = (ROOT / "exporters/engine_catalog/vllm-0.32.0.txt").read_text().splitlines()
    assert {line for line in lines if not line.startswith("#")} == made


def test_counters_and_histograms_count_the_work() -> None:
    with simulated("--tokens-per-second", "1000") as (client, _):
        usage = [
            client.post("/v1/chat/completions", json=chat(max_tokens=10)).json()["usage"] for _ in range(3)
        ]
        page = samples(client.get("/metrics").text)
    assert page[f"vllm:prompt_tokens_total{LABELS}"] == sum(u["prompt_tokens"] for u in usage)
    assert page[f"vllm:generation_tokens_total{LABELS}"] == 30
    assert page[f"vllm:time_to_first_token_seconds_count{LABELS}"] == 3
    assert page[f"vllm:inter_token_latency_seconds_count{LABELS}"] == 27
    assert (
        page['vllm:request_success_total{engine="0",finished_reason="length",model_name="smollm2-135m"}'] == 3
    )
    assert page[f"vllm:e2e_request_latency_seconds_count{LABELS}"] == 3
    assert page['http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"}'] == 3
    decode = page[f"vllm:request_decode_time_seconds_sum{LABELS}"]
    assert math.isclose(decode, page[f"vllm:inter_token_latency_seconds_sum{LABELS}"], rel_tol=1e-6)
    inference = page[f"vllm:request_inference_time_seconds_sum{LABELS}"]
    assert math.isclose(
        decode + page[f"vllm:request_prefill_time_seconds_sum{LABELS}"], inference, rel_tol=1e-6
    )


def test_some_families_of_the_page_can_be_asked_for(fast: httpx.Client) -> None:
    """As vLLM's page, which prometheus_client serves."""
    names = ["vllm:num_requests_running", "vllm:generation_tokens_total"]
    answer = fast.get("/metrics/", params={"name[]": names})
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert answer.status_code == 200
    assert [line.split("{")[0] for line in lines] == names
    assert len(answer.content) < 1000
