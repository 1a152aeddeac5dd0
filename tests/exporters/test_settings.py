"""Replicas as the command line and service discovery name them."""

from __future__ import annotations

import json

import pytest

from exporters.settings import MAX_REPLICAS, Replica, parse_discovery, parse_replica


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("http://127.0.0.1:8100", "127.0.0.1:8100", "http://127.0.0.1:8100/metrics"),
        ("127.0.0.1:8100", "127.0.0.1:8100", "http://127.0.0.1:8100/metrics"),
        ("replica-0=http://127.0.0.1:8100/", "replica-0", "http://127.0.0.1:8100/metrics"),
        ("a=gpu-1:8000/metrics", "a", "http://gpu-1:8000/metrics"),
        ("https://gpu-1/llm", "gpu-1", "https://gpu-1/llm/metrics"),
        ("http://[::1]:8100", "[::1]:8100", "http://[::1]:8100/metrics"),
        ("http://gpu-1/a=b", "gpu-1", "http://gpu-1/a=b/metrics"),
    ],
)
def test_a_replica_is_a_url_with_or_without_a_name(text: str, name: str, url: str) -> None:
    assert parse_replica(text) == Replica(name, url)


@pytest.mark.parametrize(
    "text",
    ["", "a=", "ftp://x", "http://", "http://x:0", "http://x:99999", "http://x y", "a b=x:1", "x:1?q=1"],
)
def test_what_is_no_address_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it like http://127\.0\.0\.1:8100|use letters"):
        parse_replica(text)


def test_discovery_honours_names_scheme_and_path_and_drops_duplicates() -> None:
    groups = [
        {"targets": ["h:1"], "labels": {"replica": "replica-0", "model": "m"}},
        {"targets": ["h:9"], "labels": {"replica": "replica-0"}},
        {"targets": ["h:2", "h:3"], "labels": {"replica": "shared", "__scheme__": "https"}},
        {"targets": ["h:4"], "labels": {"__metrics_path__": "/x"}},
        {"targets": []},
    ]
    assert parse_discovery(json.dumps(groups).encode()) == (
        Replica("replica-0", "http://h:1/metrics"),
        Replica("h:2", "https://h:2/metrics"),
        Replica("h:3", "https://h:3/metrics"),
        Replica("h:4", "http://h:4/x"),
    )


def test_discovery_is_bounded() -> None:
    with pytest.raises(ValueError, match="more than"):
        parse_discovery(json.dumps([{"targets": [f"h{i}:1" for i in range(MAX_REPLICAS + 1)]}]).encode())
