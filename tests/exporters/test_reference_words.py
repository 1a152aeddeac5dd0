"""``exaserve intent reference``: what it says of addresses, servers and files tells no secret and moves no cursor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.intent import reference
from serving.intent.reference import NoReference, Reference


@pytest.mark.parametrize("password", ["s3cret", "s3@cret", "s3/cret", "s3cret@x@y"])
def test_no_password_in_what_is_said_or_saved(password: str, serve: Callable[..., str]) -> None:
    page = b'exaserve_router_classifications_total{intent="general"} 3000\n'
    host = serve(page).removeprefix("http://")
    said = ""
    try:
        said = reference.from_router(f"http://me:{password}@{host}").source
    except NoReference as error:
        said = str(error)
    assert "cret" not in said
    with pytest.raises(NoReference) as caught:
        reference.from_router(f"ftp://me:{password}@{host}")
    assert "cret" not in str(caught.value)


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    page = b'exaserve_router_classifications_total{intent="general"} 3000\n'
    assert reference.from_router(serve(page)).counts == {"general": 3000}


@pytest.mark.parametrize(
    "row",
    [
        {"metric": [], "value": [0, "1"]},
        {"metric": "x", "value": [0, "1"]},
        {"metric": {}, "value": 3},
        {"metric": {}, "value": [0, {}]},
        [],
    ],
)
def test_rows_of_something_that_is_no_prometheus(row: object, serve: Callable[..., str]) -> None:
    body = json.dumps({"data": {"result": [row]}}).encode()
    with pytest.raises(NoReference, match="is not a Prometheus"):
        reference.from_prometheus(serve(body), "-1d")


@pytest.mark.parametrize("key", ["counts", "from", "to"])
def test_a_number_of_400_digits_is_damage(key: str, tmp_path: Path) -> None:
    data = {"format": reference.FORMAT, "version": 1, "counts": {"a": 3}, "from": 1, "to": 2}
    data[key] = {"a": 10**400} if key == "counts" else 10**400
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(NoReference, match="damaged"):
        reference.read(tmp_path / "r.json")


def test_what_a_file_says_moves_no_cursor() -> None:
    odd = Reference({"a\x1b[2J": 3, "b\n": 1}, None, 2.0, "m\x1b]0;x\x07", "s\r", "0")
    shown = reference.table(odd)
    assert not [c for c in shown if not c.isprintable() and c != "\n"]
    assert [line.split()[-2:] for line in shown.splitlines()[-3:]] == [
        ["3", "75.0%"],
        ["1", "25.0%"],
        ["all", "4"],
    ]
