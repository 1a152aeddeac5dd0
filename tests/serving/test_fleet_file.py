"""Replicas from a file: its forms, what is refused, what happens when it changes or breaks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from serving.fleet.discovery import static
from serving.fleet.discovery.file import ReplicaFile, parse


def _seen(content: str) -> list[tuple[str, str, float, str]]:
    return [(r.name, r.url, r.base_weight, r.model) for r in parse(content.encode())]


def test_entries_are_urls_or_mappings() -> None:
    content = """
- http://gpu-0:8100
- b=https://gpu-1
- {name: c, url: "http://[::1]:8100", weight: 2, model: llama}
- url: unix:/run/vllm/d.sock
"""
    assert _seen(content) == [
        ("gpu-0:8100", "http://gpu-0:8100", 1.0, ""),
        ("b", "https://gpu-1", 1.0, ""),
        ("c", "http://[::1]:8100", 2.0, "llama"),
        ("d.sock", "unix:/run/vllm/d.sock", 1.0, ""),
    ]


def test_prometheus_file_sd_is_read() -> None:
    groups = [
        {"targets": ["gpu-0:8100"], "labels": {"replica": "a", "model": "llama"}},
        {"targets": ["gpu-1:8100", "gpu-2:8100"], "labels": {"replica": "ignored", "__scheme__": "https"}},
    ]
    assert _seen(json.dumps(groups)) == [
        ("a", "http://gpu-0:8100", 1.0, "llama"),
        ("gpu-1:8100", "https://gpu-1:8100", 1.0, ""),
        ("gpu-2:8100", "https://gpu-2:8100", 1.0, ""),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "must be a list"),
        (b"{}", "must be a list"),
        (b"[]", "names no replica"),
        (b"- http://a:1\n- 5", "entry 2: must be a URL or"),
        (b"- {name: a}", "entry 1: has no url"),
        (b"- {url: 'http://a:1', wieght: 2}", "entry 1: unknown key 'wieght'"),
        (b"- {url: 'http://a:1', weight: 0}", "weight must be a number above 0"),
        (b"- {url: 'http://a:1', weight: .nan}", "weight must be a number above 0"),
        (b"- {url: 'http://a:1', weight: true}", "weight must be a number above 0"),
        (b"- {url: 'http://a:1', name: 'a b'}", "name 'a b' must be"),
        (b"- {url: 'http://a:1', name: 7}", "name must be text, not a int"),
        (b"- ftp://a:1", "entry 1: 'ftp://a:1': a replica is http://HOST:PORT"),
        (b"- http://a:0", "1 to 65535"),
        (b"- http://[::1", "a replica is"),
        (b"- unix:relative", "a unix socket is unix:/PATH"),
        (b"- {targets: 5}", "targets must be a list"),
        (b"- {targets: [5]}", "a target must be HOST:PORT"),
        (b"- http://a:1\n- http://a:1/", "replica name given twice: a:1"),
        (b"a: [", "line 1: not YAML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_can_t_be_used_is_refused_with_its_place(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as e:
        parse(content)
    assert words in str(e.value)


def _write(path: Path, text: str) -> None:
    """As careful writers do, and with another time even where the clock is coarse."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_a_change_is_seen_once_and_a_broken_one_keeps_what_was(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    source = ReplicaFile(path)
    assert source.changed() is None
    assert source.error == f"{path}: can't be read: No such file or directory"
    _write(path, "- http://a:1\n")
    first = source.changed()
    assert first is not None
    assert [r.name for r in first] == ["a:1"]
    assert source.error is None
    assert source.changed() is None
    _write(path, "- nonsense\n")
    assert source.changed() is None
    assert "entry 1" in (source.error or "")
    assert source.changed() is None
    assert "entry 1" in (source.error or "")  # for as long as it is so
    _write(path, "- http://b:1\n")
    second = source.changed()
    assert second is not None
    assert [r.name for r in second] == ["b:1"]
    again = source.again()
    assert again is not None
    assert source.error is None
    path.unlink()
    assert source.changed() is None
    assert "can't be read" in (source.error or "")


def test_a_file_without_permission_or_of_the_wrong_kind_says_so(tmp_path: Path) -> None:
    source = ReplicaFile(tmp_path)
    assert source.changed() is None
    assert source.error
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 16 * 2**20 + 1)
    source = ReplicaFile(large)
    assert source.changed() is None
    assert source.error == f"{large}: is larger than 16 MiB"


def test_what_stays_keeps_its_object_and_takes_the_new_weight() -> None:
    old = [static.make("a", "http://a:1"), static.make("b", "http://b:1"), static.make("c", "http://c:1")]
    old[0].weight = 0.5  # in its slow start
    new = [
        static.make("a", "http://a:1", weight=2.0),
        static.make("b", "http://elsewhere:1"),
        static.make("d", "http://d:1"),
    ]
    merged = static.merge(old, new)
    assert [r is o for r, o in zip(merged, [old[0], new[1], new[2]], strict=True)] == [True] * 3
    assert (old[0].base_weight, old[0].weight) == (2.0, 1.0)


def test_lines_are_read_as_simulate_replicas_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "replicas.txt"
    path.write_text("# three\nsim-0=http://127.0.0.1:1\n\nhttp://b:2\nc=unix:/run/c\n")
    replicas = ReplicaFile(path).changed()
    assert replicas is not None
    assert [(r.name, r.url) for r in replicas] == [
        ("sim-0", "http://127.0.0.1:1"),
        ("b:2", "http://b:2"),
        ("c", "unix:/run/c"),
    ]
