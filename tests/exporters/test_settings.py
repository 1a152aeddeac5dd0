"""Replicas as the command line and service discovery name them."""

from __future__ import annotations

import json

import pytest

from exporters.settings import MAX_REPLICAS, Replica, parse_discovery, parse_replica, without_password


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


def test_discovery_honours_names_scheme_and_path() -> None:
    groups = [
        {"targets": ["h:1"], "labels": {"replica": "replica-0", "model": "m"}},
        {"targets": ["h:2", "h:3"], "labels": {"replica": "shared", "__scheme__": "https"}},
        {"targets": ["h:4"], "labels": {"__metrics_path__": "/x"}},
        {"targets": []},
    ]
    found = parse_discovery(json.dumps(groups).encode())
    assert found.replicas == (
        Replica("replica-0", "http://h:1/metrics"),
        Replica("h:2", "https://h:2/metrics"),
        Replica("h:3", "https://h:3/metrics"),
        Replica("h:4", "http://h:4/x"),
    )
    assert (found.skipped, found.why) == ({"invalid": 0, "duplicate": 0, "too_many": 0}, "")


def test_a_target_or_group_that_cannot_be_used_costs_the_others_nothing() -> None:
    groups = [
        {"targets": ["h:1"], "labels": {"replica": "a"}},
        {"targets": ["h:1"], "labels": {"replica": "a"}},  # the same one again is no mistake
        {"targets": ["h:9"], "labels": {"replica": "a"}},
        {"targets": ["h:0", "h:2", None, "h:3 x", "h:4?q", "me:secret@h:99999"]},
        {"targets": ["h:5"], "labels": {"replica": "no good"}},
        {"targets": ["h:6"], "labels": {"__scheme__": "ftp"}},
        {"targets": ["h:7"], "labels": 3},
        {"targets": "h:8"},
        "h:8",
    ]
    found = parse_discovery(json.dumps(groups).encode())
    assert [r.name for r in found.replicas] == ["a", "h:2"]
    assert found.skipped == {"invalid": 10, "duplicate": 1, "too_many": 0}
    assert found.why == (
        "a is named twice; 'http://h:0' is not the address of a server; write it like http://127.0.0.1:8100;"
        " 'None' is not the address of a server"
    )


@pytest.mark.parametrize("answer", [b"", b"{}", b"nonsense", b"[" * 100_000])
def test_an_answer_that_is_no_list_is_an_error(answer: bytes) -> None:
    with pytest.raises(ValueError, match="service discovery: the answer is not"):
        parse_discovery(answer)


def test_discovery_is_bounded() -> None:
    targets = [f"h{i}:1" for i in range(MAX_REPLICAS + 2)]
    found = parse_discovery(json.dumps([{"targets": targets}]).encode())
    assert len(found.replicas) == MAX_REPLICAS >= 3072
    assert found.skipped == {"invalid": 0, "duplicate": 0, "too_many": 2}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:s3cret@h:1/x", "http://h:1/x"),
        ("http://u:s3@cret@h", "http://h"),
        ("http://u:s3/cret@h:80", "http://h:80"),
        ("http://h:1", "http://h:1"),
    ],
)
def test_a_password_is_not_shown_whatever_it_holds(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_password_is_not_in_the_error() -> None:
    with pytest.raises(ValueError, match="h:0") as error:
        parse_replica("http://me:secret@h:0")
    assert "secret" not in str(error.value)
