"""The simulated replica over HTTP: answers, streams, errors, queueing, KV blocks, faults, its end."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from serving.config import Config
from serving.engines import command

from .replica_client import chat, events, families, samples, shape, simulated, stream_shape

ROOT = Path(__file__).parents[2]
LABELS = '{engine="0",model_name="smollm2-135m"}'


@pytest.fixture(scope="module")
def fast() -> Iterator[httpx.Client]:
    """A replica that answers at once."""
    with simulated("--tokens-per-second", "5000", "--prefill-tokens-per-second", "1e6") as (client, _):
        yield client


def metric(client: httpx.Client, name: str, labels: str = LABELS) -> float:
    return samples(client.get("/metrics").text)[f"vllm:{name}{labels}"]


def wait_for(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline, "it did not happen within 20 s"
        time.sleep(0.02)


def in_background(client: httpx.Client, count: int, **more: Any) -> list[threading.Thread]:
    def ask(i: int) -> None:
        with contextlib.suppress(httpx.TransportError):  # the replica may be ended under it
            httpx.post(f"{client.base_url}/v1/chat/completions", json=chat(f"number {i}", **more), timeout=60)

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_a_stream_says_what_the_whole_answer_says(fast: httpx.Client) -> None:
    whole = fast.post("/v1/chat/completions", json=chat(max_tokens=20)).json()
    streamed = events(fast.post("/v1/chat/completions", json=chat(max_tokens=20, stream=True)).text)
    assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert streamed[-1] == "[DONE]"
    text = "".join(e["choices"][0]["delta"]["content"] for e in streamed[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert len(streamed) == 1 + 20 + 1
    assert [e["choices"][0]["finish_reason"] for e in streamed[:-1]] == [None] * 20 + ["length"]
    assert whole["usage"]["completion_tokens"] == 20
    assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + 20


def test_usage_comes_before_done_when_asked_for(fast: httpx.Client) -> None:
    body = chat(max_completion_tokens=3, stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = events(fast.post("/v1/chat/completions", json=body).text)
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 3, "[DONE]")
    assert all("usage" not in chunk for chunk in chunks)


def test_an_answer_ends_by_itself_unless_told_to_go_on(fast: httpx.Client) -> None:
    whole = fast.post("/v1/chat/completions", json=chat()).json()
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert 32 <= whole["usage"]["completion_tokens"] <= 128
    longer = fast.post("/v1/chat/completions", json=chat(max_tokens=300, ignore_eos=True)).json()
    assert (longer["choices"][0]["finish_reason"], longer["usage"]["completion_tokens"]) == ("length", 300)


def test_a_stop_string_ends_the_answer_before_it(fast: httpx.Client) -> None:
    text = fast.post("/v1/chat/completions", json=chat(max_tokens=20)).json()["choices"][0]["message"][
        "content"
    ]
    stop = text.split()[5]
    choice = fast.post("/v1/chat/completions", json=chat(max_tokens=20, stop=[stop])).json()["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_the_seed_decides_the_answer(fast: httpx.Client) -> None:
    ask = chat(max_tokens=20)
    same = {
        fast.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"]
        for _ in range(2)
    }
    with simulated("--seed", "1", "--tokens-per-second", "5000") as (other, _):
        same.add(other.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"])
    assert len(same) == 2


def test_a_list_of_prompts_gives_a_choice_each(fast: httpx.Client) -> None:
    answer = fast.post("/v1/completions", json={"prompt": ["a river", "b"], "max_tokens": 2}).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 4
    ids = fast.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 2}).json()
    assert ids["usage"]["prompt_tokens"] == 3


def test_embeddings_are_unit_vectors_the_same_in_both_formats(fast: httpx.Client) -> None:
    body: dict[str, Any] = {"input": ["hello", "world"]}
    plain = fast.post("/v1/embeddings", json=body).json()
    packed = fast.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()
    vector = plain["data"][0]["embedding"]
    assert len(vector) == 384
    assert math.isclose(sum(v * v for v in vector), 1.0, rel_tol=1e-9)
    assert vector != plain["data"][1]["embedding"]
    unpacked = struct.unpack("<384f", base64.b64decode(packed["data"][0]["embedding"]))
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(vector, unpacked, strict=True))


def test_the_openai_client_is_content(fast: httpx.Client) -> None:
    client = openai.OpenAI(
        base_url=f"{fast.base_url}/v1",
        api_key="x",
    )
    assert [m.id for m in client.models.list()] == ["smollm2-135m"]
    messages: Any = [{"role": "user", "content": "Hi"}]
    whole = client.chat.completions.create(model="smollm2-135m", messages=messages, max_tokens=5)
    stream = client.chat.completions.create(
        model="smollm2-135m",
        messages=messages,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        == whole.choices[0].message.content
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert len(client.embeddings.create(model="smollm2-135m", input="x").data[0].embedding) == 384


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param"),
    [
        ("chat/completions", {"messages": None}, 400, "BadRequestError", None),
        ("chat/completions", {}, 400, "Bad Request", "body.messages"),
        ("chat/completions", {"messages": "x"}, 400, "Bad Request", "body.messages"),
        ("chat/completions", {"messages": []}, 400, "BadRequestError", None),
        ("chat/completions", {"messages": [3]}, 400, "Bad Request", "body.messages.0"),
        ("chat/completions", chat(model="nope"), 404, "NotFoundError", "model"),
        ("chat/completions", chat("word " * 2000), 400, "BadRequestError", "input_tokens"),
        ("chat/completions", chat(max_tokens=5000), 400, "BadRequestError", "max_tokens"),
        ("chat/completions", chat(max_tokens=0), 400, "BadRequestError", "max_tokens"),
        ("chat/completions", chat(max_tokens="x"), 400, "Bad Request", "body.max_tokens"),
        ("chat/completions", chat(temperature=-1), 400, "BadRequestError", "temperature"),
        ("chat/completions", chat(n=2), 400, "BadRequestError", "n"),
        ("chat/completions", chat(stop=[3]), 400, "Bad Request", "body.stop"),
        ("chat/completions", chat(stream_options={}), 400, "BadRequestError", "stream_options"),
        ("chat/completions", [1], 400, "Bad Request", "body"),
        ("completions", {}, 400, "BadRequestError", "prompt"),
        ("completions", {"prompt": 5}, 400, "Bad Request", "body.prompt"),
        ("completions", {"prompt": []}, 400, "BadRequestError", None),
        ("embeddings", {}, 400, "Bad Request", "body.input"),
        ("embeddings", {"input": "x", "encoding_format": 3}, 400, "Bad Request", "body.encoding_format"),
    ],
)
def test_bad_requests_get_vllms_errors(
    fast: httpx.Client, path: str, body: Any, status: int, kind: str, param: str | None
) -> None:
    answer = fast.post(f"/v1/{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"], error["param"]) == (status, status, kind, param)


def test_broken_json_is_told_where(fast: httpx.Client) -> None:
    answer = fast.post(
        "/v1/chat/completions", content=b'{"model":', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body.9"


@pytest.mark.parametrize("raw", [b"\xff\xfe{}", b"[" * 100_000, b'{"messages": [' + b"9" * 5000 + b"]}"])
def test_bytes_that_are_no_request_never_break_it(fast: httpx.Client, raw: bytes) -> None:
    answer = fast.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert fast.get("/health").status_code == 200


def test_unknown_routes_and_methods(fast: httpx.Client) -> None:
    assert (fast.get("/nope").status_code, fast.get("/nope").json()) == (404, {"detail": "Not Found"})
    answer = fast.get("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert fast.post("/_sim/fault", json={"kind": "stuck"}).status_code == 404


def raw_exchange(client: httpx.Client, data: bytes, end: bytes) -> bytes:
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=20) as s:
        s.sendall(data)
        got = b""
        while end not in got and (piece := s.recv(65536)):
            got += piece
        return got


def test_pipelined_requests_are_answered_in_order(fast: httpx.Client) -> None:
    body = json.dumps(chat(max_tokens=3)).encode()
    asked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    asked += b"content-length: %d\r\n\r\n" % len(body) + body
    asked += b"GET /load HTTP/1.1\r\nhost: x\r\n\r\n" * 30 + b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    got = raw_exchange(fast, asked, b'"version"')
    assert got.index(b"chat.completion") < got.index(b"server_load") < got.index(b'"version"')
    assert got.count(b"server_load") == 30


def test_what_is_not_http_is_refused(fast: httpx.Client) -> None:
    assert raw_exchange(fast, b"\x16\x03\x01 hello\r\n\r\n", b"never").startswith(b"HTTP/1.1 400 ")
    huge = b"GET /health HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n"
    assert raw_exchange(fast, huge, b"never").startswith(b"HTTP/1.1 431 ")


def test_an_old_client_gets_an_unchunked_stream_and_a_closed_connection(fast: httpx.Client) -> None:
    body = json.dumps(chat(max_tokens=2, stream=True)).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    got = raw_exchange(fast, head % len(body) + body, b"never")
    assert b"transfer-encoding" not in got
    assert got.endswith(b"data: [DONE]\n\n")


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


def test_requests_beyond_the_batch_wait() -> None:
    with simulated("--max-num-seqs", "2") as (client, _):
        in_background(client, 5, max_tokens=400, ignore_eos=True)
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
    few = ("--kv-blocks", "9", "--max-model-len", "128", "--tokens-per-second", "2000")
    with simulated(*few) as (client, _):
        for thread in in_background(client, 3, max_tokens=100, ignore_eos=True):
            thread.join()
        assert metric(client, "num_preemptions_total") >= 1
        assert metric(client, "generation_tokens_total") == 300
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
        assert process.wait(20) == 0


def test_a_port_in_use_and_bad_arguments_are_said() -> None:
    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "serving.engines.simulated", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, said = run("--port", str(taken.getsockname()[1]))
        assert status == 1
        assert "can't listen on 127.0.0.1:" in said
    assert run("--port", "0", "--tokens-per-second", "-1")[0] == 2
    status, said = run("--port", "0", "--kv-blocks", "10")
    assert (status, "at least 65 are needed" in said) == (2, True)
    assert run("--port", "99999")[0] == 2


@pytest.fixture(scope="module")
def faulty() -> Iterator[httpx.Client]:
    with simulated("--faults", "--tokens-per-second", "200") as (client, _):
        yield client


@pytest.fixture
def fault(faulty: httpx.Client) -> Iterator[Callable[..., httpx.Response]]:
    yield lambda **body: faulty.post("/_sim/fault", json=body)
    faulty.post("/_sim/fault", json={"kind": "none"})


def test_fault_error_answers_with_its_status(
    faulty: httpx.Client, fault: Callable[..., httpx.Response]
) -> None:
    assert fault(kind="error", status=503).json() == {"fault": {"kind": "error", "status": 503.0}}
    assert faulty.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 503
    assert faulty.get("/health").status_code == 200
    fault(kind="none")
    assert faulty.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 200


def test_fault_stuck_answers_nothing_until_it_ends(
    faulty: httpx.Client, fault: Callable[..., httpx.Response]
) -> None:
    fault(kind="stuck")
    threads = in_background(faulty, 1, max_tokens=2)
    wait_for(lambda: metric(faulty, "num_requests_waiting") == 1)
    time.sleep(0.3)
    assert threads[0].is_alive()
    assert faulty.get("/health").status_code == 200
    fault(kind="none")
    threads[0].join(20)
    assert not threads[0].is_alive()


def test_fault_slow_ends_by_itself(faulty: httpx.Client, fault: Callable[..., httpx.Response]) -> None:
    def seconds() -> float:
        start = time.monotonic()
        faulty.post("/v1/chat/completions", json=chat(max_tokens=5))
        return time.monotonic() - start

    fault(kind="slow", factor=50, seconds=2)
    assert seconds() >= 1.0  # 4 tokens at 0.25 s; 0.02 s without the fault
    wait_for(lambda: faulty.get("/_sim/fault").json() == {"fault": {"kind": "none"}})


def test_fault_die_mid_stream_cuts_the_connection(
    faulty: httpx.Client, fault: Callable[..., httpx.Response]
) -> None:
    fault(kind="die_mid_stream", after_tokens=2)
    got = bytearray()
    with (
        faulty.stream("POST", "/v1/chat/completions", json=chat(max_tokens=9, stream=True)) as stream,
        pytest.raises(httpx.TransportError),
    ):
        got.extend(piece for chunk in stream.iter_raw() for piece in chunk)
    assert b"[DONE]" not in got
    assert metric(faulty, "num_requests_running") == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "kind"),
        ({"kind": []}, "kind"),
        ({"kind": "slow", "factor": 0}, "factor"),
        ({"kind": "slow", "status": 500}, "status"),
        ({"kind": "stuck", "seconds": True}, "seconds"),
    ],
)
def test_a_bad_fault_is_refused_by_field(
    faulty: httpx.Client, fault: Callable[..., httpx.Response], body: dict[str, Any], param: str
) -> None:
    answer = fault(**body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert faulty.get("/_sim/fault").json() == {"fault": {"kind": "none"}}


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


def test_shapes_keep_the_order_of_keys() -> None:
    assert shape({"a": 1, "b": [{"c": 2}]}) == [("a", None), ("b", [[("c", None)]])]
    assert shape({"a": 1, "b": 2}) != shape({"b": 2, "a": 1})
    assert stream_shape([{"a": 1}, {"a": 2}, "[DONE]"]) == [[("a", None)], "[DONE]"]
