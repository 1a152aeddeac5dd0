"""``exaserve tenants``: keys get into the file as the user wrote it, and nothing else changes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from serving.config_errors import ConfigError
from serving.router.tenants import Tenant, Tenants, digest
from serving.tenants_cli import app
from serving.tenants_edit import EditError, add_key

H = "0f" * 32


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def write(folder: Path, text: str) -> Path:
    path = folder / "t.yaml"
    path.write_text(text)
    return path


def test_a_new_key_is_printed_once_and_lets_its_tenant_in(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "t.yaml"
    found = run("key", "alice", "--new", "--file", str(path))
    assert found.exit_code == 0, found.output
    key = found.stdout.strip()
    assert len(key) == len("sk-exa-") + 40
    assert key not in path.read_text()
    assert key not in found.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    tenants = Tenants.load(path)
    tenant = tenants.authenticate(b"Bearer " + key.encode(), None)
    assert isinstance(tenant, Tenant)
    assert tenant.name == "alice"
    second = run("key", "alice", "--file", str(path)).stdout.strip()
    assert tenants.reload(0.0) == []
    assert tenants.authenticate(None, second.encode()) is tenants.authenticate(None, key.encode()) is tenant


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", "tenants:\n- name: alice\n  keys:\n  - KEY\n", id="empty"),
        pytest.param("# mine", "# mine\ntenants:\n- name: alice\n  keys:\n  - KEY\n", id="a comment"),
        pytest.param("tenants:  # who\n", "tenants:  # who\n- name: alice\n  keys:\n  - KEY\n", id="nobody"),
        pytest.param(
            f"tenants:\n  - name: alice   # first\n    keys:\n      - {H}  # laptop\n\n  # next\n  - name: bob\n",
            f"tenants:\n  - name: alice   # first\n    keys:\n      - {H}  # laptop\n      - KEY\n\n"
            "  # next\n  - name: bob\n",
            id="a further key",
        ),
        pytest.param(
            "tenants:\n- name: alice # x\n  max_tokens: 5\n",
            "tenants:\n- name: alice # x\n  keys:\n  - KEY\n  max_tokens: 5\n",
            id="no keys yet",
        ),
        pytest.param(
            "tenants:\n- max_tokens: 5\n  name: alice\n  keys:\n  priority: 1",
            "tenants:\n- max_tokens: 5\n  name: alice\n  keys:\n  - KEY\n  priority: 1",
            id="keys without one",
        ),
        pytest.param(
            f"tenants: [{{name: alice, keys: [{H}]}}] # flow\n",
            f"tenants: [{{name: alice, keys: [{H}, KEY]}}] # flow\n",
            id="flow",
        ),
        pytest.param(
            "tenants: [{name: alice}]\n", "tenants: [{name: alice, keys: [KEY]}]\n", id="flow without keys"
        ),
        pytest.param(
            "tenants: []\nprices: {}\n",
            "tenants: [{name: alice, keys: [KEY]}]\nprices: {}\n",
            id="empty flow",
        ),
        pytest.param(
            "tenants:\n- name: bob\n  keys: []\n  pools: [a, b] # c\n# end\nprices: {m: {input: 1, output: 2}}\n",
            "tenants:\n- name: bob\n  keys: []\n  pools: [a, b] # c\n- name: alice\n  keys:\n  - KEY\n# end\n"
            "prices: {m: {input: 1, output: 2}}\n",
            id="a further tenant",
        ),
        pytest.param(
            "prices: {m: {input: 1, output: 2}}\n",
            "prices: {m: {input: 1, output: 2}}\ntenants:\n- name: alice\n  keys:\n  - KEY\n",
            id="prices only",
        ),
        pytest.param(
            "tenants:\r\n- name: alice\r\n  keys:\r\n  - " + H + "\r\n",
            "tenants:\r\n- name: alice\r\n  keys:\r\n  - " + H + "\r\n  - KEY\n",
            id="CRLF",
        ),
    ],
)
def test_the_file_stays_as_it_was_written(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(before.encode())
    made = add_key(path, "alice", new=True)
    assert path.read_bytes().decode() == after.replace("KEY", digest(made.key))
    assert made.rewritten is None
    assert isinstance(Tenants.load(path).authenticate(None, made.key.encode()), Tenant)


def test_a_layout_that_cannot_be_edited_is_written_anew_and_kept_beside(tmp_path: Path) -> None:
    text = f"# mine\n{{tenants: [{{name: alice, keys: [{H},]}}]}}\n"
    path = write(tmp_path, text)
    made = add_key(path, "alice", new=False)
    assert made.rewritten == tmp_path / "t.yaml.before"
    assert made.rewritten.read_text() == text
    assert yaml.safe_load(path.read_text()) == {"tenants": [{"name": "alice", "keys": [H, digest(made.key)]}]}


@pytest.mark.parametrize("name", ["yes", "007", "1e3", "null"])
def test_names_that_yaml_would_read_otherwise_are_quoted(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.yaml"
    made = add_key(path, name, new=True)
    tenant = Tenants.load(path).authenticate(None, made.key.encode())
    assert isinstance(tenant, Tenant)
    assert tenant.name == name
    assert add_key(path, name, new=False).keys == 2


@pytest.mark.parametrize(
    ("name", "new", "said"),
    [
        ("bob", False, "no tenant bob (there are: alice); --new makes it"),
        ("a b", True, "'a b' can't be a tenant's name"),
    ],
)
def test_a_name_that_is_unknown_or_none_changes_nothing(
    tmp_path: Path, name: str, new: bool, said: str
) -> None:
    path = write(tmp_path, "tenants:\n- name: alice\n")
    with pytest.raises(EditError) as caught:
        add_key(path, name, new)
    assert said in str(caught.value)
    assert path.read_text() == "tenants:\n- name: alice\n"


def test_a_file_with_errors_is_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path, "tenants:\n- name: alice\n  max_tokens: none\n")
    with pytest.raises(ConfigError, match=r"t.yaml:3: tenants.0.max_tokens"):
        add_key(path, "alice", new=False)
    assert "none" in path.read_text()


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    real = write(tmp_path, "tenants:\n- name: alice\n")
    os.chmod(real, 0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(real)
    add_key(link, "alice", new=False)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640


def test_two_at_once_lose_no_key(tmp_path: Path) -> None:
    path = write(tmp_path, "tenants:\n- name: alice\n")
    threads = [threading.Thread(target=add_key, args=(path, "alice", False)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert len(yaml.safe_load(path.read_text())["tenants"][0]["keys"]) == 8


def test_the_list_shows_limits_and_no_keys(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"tenants:\n- name: alice\n  keys: [{H}]\n  requests_per_minute: 6000\n  pools: [long]\n- name: bob\n",
    )
    os.chmod(path, 0o666)
    found = run("list", "--file", str(path))
    assert [line.split() for line in found.stdout.splitlines()[1:]] == [
        ["alice", "1", "6,000", "-", "-", "-", "-", "long"],
        ["bob", "0", "-", "-", "-", "-", "-", "all"],
    ]
    assert H[:8] not in found.stdout
    assert "everybody on this machine may write it" in found.stderr
    assert '"keys": 1' in run("list", "--file", str(path), "--json").stdout


def test_check_says_what_is_fine_and_who_cannot_ask(tmp_path: Path) -> None:
    path = write(tmp_path, "tenants:\n- name: alice\n")
    found = run("check", str(path))
    assert (found.exit_code, found.stdout) == (0, f"{path}: fine (1 tenants, 0 keys, 0 prices)\n")
    assert "alice has no key" in found.stderr
    path.write_text("tenants: 3\n")
    assert isinstance(run("check", str(path)).exception, ConfigError)  # main makes lines and status 2 of it


def test_the_file_comes_from_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nowhere = run("list")
    assert nowhere.exit_code == 2
    assert "set tenants.file in exaserve.yaml" in nowhere.stderr
    write(tmp_path, "tenants:\n- name: alice\n")
    (tmp_path / "exaserve.yaml").write_text("tenants: {file: t.yaml}\n")
    assert "alice" in run("list").stdout
