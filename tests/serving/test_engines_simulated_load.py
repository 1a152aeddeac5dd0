"""The simulated replica under load, its end, its command line."""

from __future__ import annotations

import itertools
import json
import math
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from serving.config import Config
from serving.engines import command

from .replica_client import chat, events, in_background, metric, simulated, wait_for


@pytest.fixture(scope="module")
def fast() -> Iterator[httpx.Client]:
    """A replica that answers at once."""
    with simulated("--tokens-per-second", "5000", "--prefill-tokens-per-second", "1e6") as (client, _):
        yield client


def test_requests_beyond_the_batch_wait() -> None:
    with simulated("--max-num-seqs", "2") as (client, _):
        in_background(client, 5, max_tokens=900, ignore_eos=True)
        wait_for(lambda: client.get("/load").json() == {"server_load": 5})
        wait_for(lambda: metric(client, "num_requests_running") == 2)
        assert metric(client, "num_requests_waiting") == 3
        used = metric(client, "kv_cache_usage_perc") * 727
        assert math.isclose(used, round(used), abs_tol=1e-9)
        assert used >= 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_blocks(stream: bool) -> None:
    body = json.dumps(chat(max_tokens=900, ignore_eos=True, stream=stream)).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    with simulated() as (client, _):
        with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as sock:
            sock.sendall(head % len(body) + body)
            wait_for(lambda: metric(client, "num_requests_running") == 1)
            assert metric(client, "kv_cache_usage_perc") > 0
        wait_for(lambda: metric(client, "num_requests_running") == 0)
        assert metric(client, "kv_cache_usage_perc") == 0
        assert client.get("/load").json() == {"server_load": 0}
        abort = '{engine="0",finished_reason="abort",model_name="smollm2-135m"}'
        assert metric(client, "request_success_total", abort) == 0  # vLLM counts none either


def test_running_out_of_blocks_preempts_and_everyone_still_finishes() -> None:
    few = ("--kv-blocks", "9", "--max-model-len", "128", "--tokens-per-second", "200")
    # One request with three prompts, so that they are at it together.
    ask = {"prompt": [f"number {i}" for i in range(3)], "max_tokens": 90, "ignore_eos": True}
    with simulated(*few) as (client, _):
        usage = client.post("/v1/completions", json=ask).json()["usage"]
        assert usage["completion_tokens"] == 270
        assert metric(client, "num_preemptions_total") >= 1
        assert metric(client, "generation_tokens_total") == 270
        assert metric(client, "kv_cache_usage_perc") == 0


def test_a_load_report_comes_with_the_answer_when_asked_for(fast: httpx.Client) -> None:
    ask = chat(max_tokens=1)
    answer = fast.post("/v1/chat/completions", json=ask, headers={"endpoint-load-metrics-format": "JSON"})
    expected = 'JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}'
    assert answer.headers["endpoint-load-metrics"] == expected
    answer = fast.post("/v1/chat/completions", json=ask, headers={"endpoint-load-metrics-format": "TEXT"})
    expected = "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0"
    assert answer.headers["endpoint-load-metrics"] == expected


def test_told_to_end_it_ends_streams_with_an_error_and_exits_0() -> None:
    with simulated() as (client, process):
        body = chat(max_tokens=900, stream=True, ignore_eos=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as stream:
            raw = stream.iter_raw()
            got = next(raw)
            process.send_signal(signal.SIGTERM)
            got += b"".join(raw)
        *_, error, done = events(got.decode())
        assert (error["error"]["type"], error["error"]["code"], done) == (
            "InternalServerError",
            500,
            "[DONE]",
        )
        assert process.wait(60) == 0


def test_a_port_in_use_and_bad_arguments_are_said() -> None:
    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "serving.engines.simulated", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, said = run("--port", str(taken.getsockname()[1]))
        assert status == 1
        assert "can't listen on 127.0.0.1:" in said
    assert run("--port", "0", "--tokens-per-second", "-1")[0] == 2
    status, said = run("--port", "0", "--kv-blocks", "10")
    assert (status, "at least 65 are needed" in said) == (2, True)
    assert run("--port", "99999")[0] == 2


def test_its_command_comes_from_the_configuration() -> None:
    config = Config.model_validate(
        {"engine": {"kind": "simulated", "args": ["--tokens-per-second", "100"], "env": {"A": "b"}}}
    )
    launch = command(config, 3, 8103)
    assert launch.argv[:3] == [sys.executable, "-m", "serving.engines.simulated"]
    pairs = dict(itertools.pairwise(launch.argv))
    assert (pairs["--port"], pairs["--kv-blocks"], pairs["--tokens-per-second"]) == ("8103", "728", "100")
    assert launch.env == {"A": "b"}


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"args": ["--enforce-eager"]}, r"engine\.args: .*--enforce-eager.*--help"),
        ({"kv_cache_memory": "1M"}, r"engine\.kv_cache_memory is 1M.*needs 23M: raise it"),
    ],
)
def test_what_it_would_refuse_is_refused_before_it_starts(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        command(Config.model_validate({"engine": {"kind": "simulated", **engine}}), 0, 8100)
