"""Tenants: who a key belongs to, what the file may say, and that it is taken over while running."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving.config_errors import ConfigError
from serving.router import tenants_file
from serving.router.limits import Grant, Refusal
from serving.router.tenants import Tenant, Tenants, digest, unknown_pools

KEY, OTHER = "sk-exa-" + "a" * 40, "sk-exa-" + "b" * 40


def write(folder: Path, text: str) -> Path:
    path = folder / "tenants.yaml"
    path.write_text(text)
    return path


def load(folder: Path, text: str) -> Tenants:
    return Tenants.load(write(folder, text))


@pytest.fixture
def two(tmp_path: Path) -> Tenants:
    return load(
        tmp_path,
        f"tenants:\n- {{name: alice, keys: [{digest(KEY)}], requests_per_minute: 60, priority: 2, pools: [long]}}\n"
        f"- {{name: bob, keys: [{digest(OTHER)}]}}\nprices:\n  m: {{input: 1, output: 2.5}}\n",
    )


def test_a_key_is_known_in_either_header(two: Tenants) -> None:
    alice, bob = two.by_name["alice"], two.by_name["bob"]
    assert two.authenticate(b"Bearer " + KEY.encode(), None) is alice
    assert two.authenticate(b"bEARER  " + KEY.encode() + b" ", None) is alice
    assert two.authenticate(None, OTHER.encode()) is bob
    assert two.authenticate(b"Bearer " + KEY.encode(), OTHER.encode()) is alice
    assert (alice.priority, alice.pools, bob.priority, bob.pools) == (2, frozenset(["long"]), None, None)
    assert alice.budget.requests_per_minute == 60
    assert two.prices["m"].output == 2.5


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "header"),
    [
        pytest.param(None, None, b'www-authenticate: Bearer realm="exaserve"\r\n', id="none"),
        pytest.param(b"Bearer ", None, b'www-authenticate: Bearer realm="exaserve"\r\n', id="empty"),
        pytest.param(b"Basic YTpi", None, b'www-authenticate: Bearer realm="exaserve"\r\n', id="basic"),
        pytest.param(None, b" ", b'www-authenticate: Bearer realm="exaserve"\r\n', id="blank"),
        pytest.param(
            b"Bearer sk-exa-wrong", None,
            b'www-authenticate: Bearer realm="exaserve", error="invalid_token"\r\n', id="wrong",
        ),
        pytest.param(
            b"Bearer " + KEY.encode() + b"a", None,
            b'www-authenticate: Bearer realm="exaserve", error="invalid_token"\r\n', id="longer",
        ),
        pytest.param(
            b"Bearer \xff\x00" + b"x" * 30_000, None,
            b'www-authenticate: Bearer realm="exaserve", error="invalid_token"\r\n', id="huge",
        ),
        pytest.param(
            digest(KEY).encode(), digest(KEY).encode(),
            b'www-authenticate: Bearer realm="exaserve"\r\n', id="the hash is no key",
        ),
    ],
)  # fmt: skip
def test_who_is_not_known_gets_401(
    two: Tenants, authorization: bytes | None, x_api_key: bytes | None, header: bytes
) -> None:
    refusal = two.authenticate(authorization, x_api_key)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code, refusal.reason) == (401, "invalid_api_key", "unauthorized")
    assert refusal.headers == header
    assert b"sk-exa" not in refusal.message.encode()


def test_without_a_file_no_key_is_asked_for() -> None:
    tenants = Tenants.load(None)
    assert tenants.authenticate(None, None) is None
    assert not tenants.changed()
    assert tenants.reload(0.0) == []


def test_a_file_without_tenants_lets_nobody_in(tmp_path: Path) -> None:
    tenants = load(tmp_path, "")
    assert isinstance(tenants.authenticate(b"Bearer x", None), Refusal)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "tenants:\n- name: a\n  request_per_minute: 3\n",
            "3: tenants.0.request_per_minute: unknown key; did you mean requests_per_minute?",
            id="unknown key",
        ),
        pytest.param("tenants:\n- name: a\n- keys: []\n", "3: tenants.1.name: is missing", id="no name"),
        pytest.param(
            "tenants:\n- name: a\n  keys:\n  - sk-exa-secret\n",
            "4: tenants.0.keys.0: has a form that is not allowed here (^[0-9a-f]{64}$)",
            id="not hashed",
        ),
        pytest.param(
            "tenants:\n- name: a\n  max_tokens: 0\n",
            "3: tenants.0.max_tokens: must be at least 1, not 0",
            id="range",
        ),
        pytest.param("tenants:\n- name: a b\n", "2: tenants.0.name: has a form", id="name"),
        pytest.param(
            "prices:\n  m: {input: 1, output: 2, inptu: 2}\n",
            "2: prices.m.inptu: unknown key; did you mean input?",
            id="price key",
        ),
        pytest.param(
            "prices:\n  m: {input: -1, output: 2}\n",
            "2: prices.m.input: must be at least 0, not -1",
            id="price",
        ),
        pytest.param("prizes: {}\n", "1: prizes: unknown key; did you mean prices?", id="unknown section"),
        pytest.param("- a\n", "1: must be tenants: and prices:, not a list", id="a list"),
        pytest.param("tenants: {a: 1}\n", "1: tenants: must be a list", id="no list"),
        pytest.param("tenants: [\n", "not YAML", id="torn"),
        pytest.param(
            "tenants:\n- name: a\n- name: b\n- name: a\n",
            "4: tenants.2.name: a is there twice, first in line 2; give both one entry",
            id="name twice",
        ),
        pytest.param(
            f"tenants:\n- name: a\n  keys: [{'0f' * 32}]\n- name: b\n  keys: [{'0f' * 32}]\n",
            "5: tenants.1.keys.0: 0f0f0f0f… is also a key of a (line 3); a key belongs to one tenant, once",
            id="key twice",
        ),
    ],
)
def test_errors_name_line_key_and_cure(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    [error] = caught.value.errors
    assert expected in error
    assert error.startswith(f"{tmp_path}/tenants.yaml:")


def test_all_errors_come_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "tenants:\n- name: a\n  max_tokens: x\nprices: 3\n")
    assert [e.partition("tenants.yaml:")[2][0] for e in caught.value.errors] == ["3", "4"]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file or directory"):
        Tenants.load(tmp_path / "none.yaml")


def test_a_reload_keeps_what_a_tenant_has_spent_and_open(tmp_path: Path, two: Tenants) -> None:
    alice = two.by_name["alice"]
    assert alice.budget.admit(0.0, 10) is None
    assert not two.changed()
    write(tmp_path, f"tenants:\n- {{name: alice, keys: [{digest(OTHER)}], requests_per_minute: 10}}\n")
    assert two.changed()
    assert two.reload(0.0) == []
    assert not two.changed()
    assert two.authenticate(None, OTHER.encode()) is alice
    assert isinstance(two.authenticate(None, KEY.encode()), Refusal)
    assert (alice.budget.requests, alice.budget.in_flight, alice.pools) == (9.0, 1, None)
    alice.budget.release()
    assert alice.budget.in_flight == 0


def test_a_bad_file_keeps_the_old_tenants_and_is_read_once(tmp_path: Path, two: Tenants) -> None:
    write(tmp_path, "tenants: nobody\n")
    assert "must be a list" in two.reload(0.0)[0]
    assert isinstance(two.authenticate(None, KEY.encode()), Tenant)
    assert not two.changed()
    (tmp_path / "tenants.yaml").unlink()
    assert two.changed()
    assert "can't be read" in two.reload(0.0)[0]
    assert isinstance(two.authenticate(None, KEY.encode()), Tenant)


def test_only_tenants_with_a_limit_are_balanced(two: Tenants) -> None:
    assert list(two.report(0.0)) == ["alice"]
    two.grant({"alice": Grant(0.5, -30.0, 0.0, 2), "gone": Grant(0.5, 0.0, 0.0, 0)})
    budget = two.by_name["alice"].budget
    assert (budget.share, budget.requests, budget.others) == (0.5, 30.0, 2)


def test_a_file_that_everybody_may_write_is_warned_about(tmp_path: Path, two: Tenants) -> None:
    path = tmp_path / "tenants.yaml"
    os.chmod(path, 0o640)
    assert two.warnings() == []
    os.chmod(path, 0o666)
    assert two.warnings() == [f"{path}: everybody on this machine may write it (mode 666); chmod 640 it"]


def test_pools_that_do_not_exist_are_named(tmp_path: Path, two: Tenants) -> None:
    file = tenants_file.read(tmp_path / "tenants.yaml")
    assert unknown_pools(file, ["long", "short"]) == []
    assert unknown_pools(file, ["short"]) == [
        "tenants.0.pools: alice may use long, which is no pool; pools: short"
    ]
