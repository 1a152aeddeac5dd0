"""Reading a replica's load, naming replicas, choosing among many."""

from __future__ import annotations

import msgspec
import pytest

from serving.fleet import load
from serving.fleet.discovery import static
from serving.fleet.load import Load

PAGE = b"""# HELP vllm:num_requests_running x
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b"} 3.0
vllm:num_requests_waiting{engine="0",model_name="a}b"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="a}b"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="a}b"} 100.0
vllm:generation_tokens_total{engine="0",model_name="a}b"} 1e+02
"""


def test_the_five_lines_of_a_vllm_page_are_read() -> None:
    assert load.read(PAGE) == Load(running=3, waiting=2, kv_usage=0.25, tokens=200.0)


def test_engines_on_one_page_are_summed_and_the_fullest_cache_counts() -> None:
    second = PAGE.replace(b'engine="0"', b'engine="1"').replace(b"} 0.25", b"} 0.5")
    assert load.read(PAGE + second) == Load(running=6, waiting=4, kv_usage=0.5, tokens=400.0)


@pytest.mark.parametrize(
    "page", [b"", b"\n", b"\nvllm:num_requests_running{", b"\nvllm:num_requests_running{} NaN", b"\xff",
     b"\nvllm:num_requests_running{} +Inf"],
)  # fmt: skip
def test_what_a_page_does_not_say_is_unknown_not_zero(page: bytes) -> None:
    assert load.read(page) == Load(None, None, None, None)


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        (b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="728"} 1.0\n', 11_648),
        (
            b'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="9000",num_gpu_blocks="728"} 1.0\n',
            9_000,
        ),
        (
            b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10"} 1.0\n'
            b'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="20"} 1.0\n',
            480,
        ),
        (b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n', None),
        (PAGE, None),
        (b"", None),
    ],
)
def test_the_size_of_the_kv_cache_is_read_where_the_page_says_it(page: bytes, tokens: int | None) -> None:
    assert load.kv_tokens(page) == tokens


def test_a_last_line_without_newline_and_old_names_are_read() -> None:
    assert load.read(b'\nvllm:gpu_cache_usage_perc{m="x"} 0.5').kv_usage == 0.5


def test_replicas_are_named_by_hand_or_by_address() -> None:
    a, b = static.parse_all(["http://127.0.0.1:8100", "b=http://gpu-1:9000/"])
    assert (a.name, a.host, a.port) == ("127.0.0.1:8100", "127.0.0.1", 8100)
    assert (b.name, b.host, b.port) == ("b", "gpu-1", 9000)
    assert (b.address, static.parse("http://[::1]:8100").address) == ("gpu-1:9000", "[::1]:8100")


def test_a_replica_may_speak_tls_or_listen_on_a_unix_socket() -> None:
    a, b, c = static.parse_all(["https://gpu-1", "b=unix:/run/b.sock", "unix:///run/c.sock"])
    assert (a.scheme, a.host, a.port, a.authority) == ("https", "gpu-1", 443, "gpu-1:443")
    assert (b.name, b.scheme, b.path, b.address, b.authority) == (
        "b", "http", "/run/b.sock", "unix:/run/b.sock", "localhost"
    )  # fmt: skip
    assert (c.name, c.url, c.path) == ("c.sock", "unix:/run/c.sock", "/run/c.sock")


def test_down_and_frozen_stand_above_draining_above_ejected_above_ready() -> None:
    r = static.parse("http://127.0.0.1:1")
    seen = [r.state]
    for change in (
        lambda: r.enter("ready", "one token"),
        lambda: r.eject("fails", 99.0, 1),
        lambda: r.drain(True),
        lambda: r.enter("frozen", "silent"),
        lambda: r.enter("degraded", "slow"),
        lambda: r.drain(False),
        lambda: r.readmit(3, 0.1),
    ):
        change()
        seen.append(r.state)
    assert seen == ["starting", "ready", "ejected", "draining", "frozen", "draining", "ejected", "degraded"]
    assert (r.reason, r.trial, r.weight) == ("slow", 3, 0.1)


def test_its_news_make_an_equal_replica_elsewhere() -> None:
    here, there = static.parse("http://127.0.0.1:1"), static.parse("http://127.0.0.1:1")
    here.enter("ready", "one token")
    here.eject("fails", 99.0, 2)
    here.running, here.waiting, here.kv_usage = 3, 1, 0.5
    assert there.take_state(msgspec.msgpack.decode(msgspec.msgpack.encode(here.state_news())))
    there.take_load(msgspec.msgpack.decode(msgspec.msgpack.encode(here.load_news())))
    a, b = there.view(), here.view()
    assert abs(a.pop("ejected_until") - b.pop("ejected_until")) < 1
    assert a == b


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "at least one"),
        (["gpu-1:8000"], "http://HOST:PORT"),
        (["ftp://gpu-1:8000"], "http://HOST:PORT"),
        (["http://user@gpu-1:8000"], "http://HOST:PORT"),
        (["http://[::1:8000"], "http://HOST:PORT"),
        (["http://gpu 1:8000"], "http://HOST:PORT"),
        (["unix:run/v.sock"], "unix:/PATH"),
        (["unix:/" + "x" * 110], "107 bytes"),
        (["http://gpu-1:8000/v1"], "without a path"),
        (["http://gpu-1:99999"], "1 to 65535"),
        (["a=http://x:1", "a=http://x:2"], "name given twice: a"),
        (["a=http://x:1", "b=http://x:1"], "url given twice"),
    ],
)
def test_a_replica_that_can_t_be_understood_is_refused_with_the_cure(texts: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as e:
        static.parse_all(texts)
    assert words in str(e.value)
