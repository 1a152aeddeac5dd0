"""Files of hosts, and long lists of nodes in few words."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporters.doctor.hosts import Host, fold, read


def test_a_host_a_line_with_options_of_ssh_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("# rack 1\ngpu-001\n\nops@gpu-002 -p 2222 -i '/keys/my key'  # the odd one\n10.0.0.7\n")

    assert read(file) == [
        Host("gpu-001"),
        Host("ops@gpu-002", ("-p", "2222", "-i", "/keys/my key")),
        Host("10.0.0.7"),
    ]


def test_a_file_of_another_system(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_bytes(b"\xef\xbb\xbfgpu-1\r\ngpu-2 -p 22\r\n")

    assert read(tmp_path / "nodes") == [Host("gpu-1"), Host("gpu-2", ("-p", "22"))]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no host in it; write one a line"),
        ("# nobody\n", "no host in it; write one a line"),
        ("a\na\n", ":2: a is there twice"),
        ("-oProxyCommand=x\n", ":1: '-oProxyCommand=x' is no host"),
        ("a 'b\n", ":1: No closing quotation"),
        ("a;b\n", ":1: 'a;b' is no host"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "nodes"
    file.write_text(text)

    with pytest.raises(ValueError, match="nodes") as error:
        read(file)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([f"gpu-{i:03d}" for i in range(1, 257)], "gpu-[001-256]"),
        (["gpu-001", "gpu-003", "gpu-002", "gpu-007"], "gpu-[001-003,007]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["a1.x", "a2.x", "b1.x"], "a[1-2].x, b1.x"),
        (["rack1-node1", "rack1-node2", "rack2-node1"], "rack1-node[1-2], rack2-node1"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.1, 10.0.0.2"),
        (["login", "gpu-1"], "gpu-1, login"),
        (["localhost:9420", "localhost:9421"], "localhost:[9420-9421]"),
        (list("abcdefgh"), "a, b, c, d, e, f and 2 more"),
        ([f"n{i}" for i in range(0, 60, 2)], "n[0,2,4,6,8,10,12,14,16,18,20,22,… (18 more)]"),
        ([], ""),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert fold(names) == folded
