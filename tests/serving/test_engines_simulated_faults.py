"""Faults of the simulated replica, each as its client sees it."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from .replica_client import chat, in_background, metric, simulated, wait_for


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
    assert fault(kind="error", status=503).json() == {
        "fault": {"kind": "error", "status": 503.0, "probability": 1.0}
    }
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

    fault(kind="slow", factor=50, seconds=6)
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
    wait_for(lambda: metric(faulty, "num_requests_running") == 0)


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


def raw_post(client: httpx.Client, body: dict[str, Any]) -> socket.socket:
    """A connection on which this has been asked."""
    raw = json.dumps(body).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    sock = socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=20)
    sock.sendall(head % len(raw) + raw)
    return sock


def until_reset(sock: socket.socket) -> bytes:
    """What comes before RST; fails where the connection ends otherwise."""
    got = b""
    try:
        while piece := sock.recv(65536):
            got += piece
    except ConnectionResetError:
        return got
    pytest.fail("the connection ended without RST")


def test_fault_too_many_requests_says_when_to_come_back(
    faulty: httpx.Client, fault: Callable[..., httpx.Response]
) -> None:
    fault(kind="too_many_requests", retry_after=7)
    answer = faulty.post("/v1/chat/completions", json=chat(max_tokens=1))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["code"] == 429


def test_fault_fast_503_leaves_health_as_it_is(
    faulty: httpx.Client, fault: Callable[..., httpx.Response]
) -> None:
    fault(kind="fast_503")
    assert faulty.post("/v1/completions", json={"prompt": "a", "max_tokens": 900}).status_code == 503
    assert faulty.get("/health").status_code == 200
    assert faulty.get("/load").json() == {"server_load": 0}


def test_a_probability_hits_that_share(faulty: httpx.Client, fault: Callable[..., httpx.Response]) -> None:
    fault(kind="fast_503", probability=0.5)
    got = [faulty.post("/v1/embeddings", json={"input": "x"}).status_code for _ in range(60)]
    assert 10 <= got.count(503) <= 50
    assert set(got) == {200, 503}


def test_fault_freeze_answers_nothing_and_then_everything(
    faulty: httpx.Client, fault: Callable[..., httpx.Response]
) -> None:
    with raw_post(faulty, chat(max_tokens=30, stream=True, ignore_eos=True)) as open_stream:
        assert open_stream.recv(1)
        fault(kind="freeze")
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{faulty.base_url}/health", timeout=httpx.Timeout(30, read=0.3))
        with raw_post(faulty, chat(max_tokens=1)) as asked:
            asked.settimeout(0.3)
            with pytest.raises(TimeoutError):
                asked.recv(1)
            fault(kind="none")
            asked.settimeout(20)
            assert asked.recv(65536).startswith(b"HTTP/1.1 200 ")
        got = b""
        while b"[DONE]" not in got:
            got += open_stream.recv(65536)


def test_fault_reset_cuts_streams_and_whole_answers_with_rst(
    faulty: httpx.Client, fault: Callable[..., httpx.Response]
) -> None:
    fault(kind="reset", after_tokens=2)
    for stream in (True, False):
        with raw_post(faulty, chat(max_tokens=9, stream=stream)) as asked:
            got = until_reset(asked)
            assert b"[DONE]" not in got
            assert stream or got.startswith(b"HTTP/1.1 200 ")


def test_fault_reset_idle_resets_kept_connections(
    faulty: httpx.Client, fault: Callable[..., httpx.Response]
) -> None:
    with raw_post(faulty, chat(max_tokens=1)) as kept:
        assert kept.recv(65536).startswith(b"HTTP/1.1 200 ")
        fault(kind="reset_idle")
        with pytest.raises(ConnectionResetError):
            kept.recv(1)
    with raw_post(faulty, chat(max_tokens=1)) as kept:
        assert kept.recv(65536).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ConnectionResetError):
            kept.recv(1)


def test_fault_refuse_closes_the_port_and_opens_it_again(
    faulty: httpx.Client, fault: Callable[..., httpx.Response]
) -> None:
    with raw_post(faulty, chat(max_tokens=400, stream=True, ignore_eos=True)) as open_stream:
        assert open_stream.recv(1)
        with contextlib.suppress(httpx.TransportError):  # the answer to it may be lost, too
            fault(kind="refuse", seconds=5)
        until_reset(open_stream)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{faulty.base_url}/health", timeout=5)

    def back() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{faulty.base_url}/health", timeout=5).status_code == 200
        return False

    wait_for(back)
    assert metric(faulty, "num_requests_running") == 0
