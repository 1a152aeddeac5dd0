"""What runs is read again when its files change; what is refused changes nothing and says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving.config_errors import ConfigError
from serving.fleet.discovery import static
from serving.fleet.replica import Replica
from serving.router.members import Members
from serving.router.process import within_file_limit
from serving.router.reload import Reloader, Source
from serving.router.shared import MAX_REPLICAS

KEY = "0" * 64


def write(path: Path, text: str) -> None:
    """As editors do: another inode, so that two writes within a tick of the clock differ too."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    os.replace(new, path)


def reloader(path: Path, text: str, **given: object) -> Reloader:
    write(path, text)
    source = Source(path, given)
    return Reloader(source, source.load())


def test_nothing_is_read_while_nothing_changes(tmp_path: Path) -> None:
    r = reloader(tmp_path / "c.yaml", "router: {max_queue_depth: 8}\n")
    assert r.poll() is None
    assert r.successful


def test_a_change_is_taken_and_named(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    r = reloader(path, "router: {max_queue_depth: 8}\n")
    since = r.since
    write(path, "router: {max_queue_depth: 9, retry: {budget: 0.2}}\n")
    change = r.poll()
    assert change
    assert change.config is not None
    assert change.config.router.max_queue_depth == 9
    assert change.lines == ["router.max_queue_depth: 8 -> 9", "router.retry.budget: 0.1 -> 0.2"]
    assert r.config is change.config
    assert r.since >= since
    assert r.poll() is None


@pytest.mark.parametrize("bad", ["router: {max_queue_depth: 0}\n", "router: [\n", "rooter: {}\n", "\x00"])
def test_a_bad_file_keeps_what_runs_until_it_is_good_again(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "c.yaml"
    r = reloader(path, "router: {max_queue_depth: 8}\n")
    before = r.config
    write(path, bad)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        r.poll()
    assert not r.successful
    assert r.config is before
    assert r.poll() is None, "it is not read again before it changes"
    write(path, "router: {max_queue_depth: 8}\n")
    change = r.poll()
    assert change is not None
    assert not change
    assert r.successful


def test_a_file_that_is_gone_keeps_what_runs(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    r = reloader(path, "{}")
    path.unlink()
    with pytest.raises(ConfigError):
        r.poll()
    assert r.poll() is None


def test_keys_that_need_a_restart_are_named_and_stay_as_they_run(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    r = reloader(path, "router: {port: 8000, workers: 2}\n")
    write(path, "router: {port: 8010, workers: 4, max_queue_depth: 9}\n")
    change = r.poll()
    assert change
    assert change.config is not None
    assert (change.config.router.port, change.config.router.workers) == (8000, 2)
    assert change.lines[-1] == "not taken before a restart: router.port, router.workers"


def test_options_go_on_to_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    r = reloader(path, "router: {max_queue_depth: 8}\n", port=8123, max_queue_depth=5)
    write(path, "router: {max_queue_depth: 9, max_connections: 10}\n")
    change = r.poll()
    assert change
    assert change.config is not None
    assert (change.config.router.port, change.config.router.max_queue_depth) == (8123, 5)


def test_a_bad_option_is_named_as_an_option() -> None:
    with pytest.raises(ConfigError, match=r"^--admin-port: "):
        Source(None, {"admin_port": 0}).load()


def test_a_change_of_the_tenants_is_noticed_and_a_bad_one_refused(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.yaml"
    write(tenants, f"tenants: [{{name: a, keys: ['{KEY}']}}]\n")
    tenants.chmod(0o600)
    r = reloader(tmp_path / "c.yaml", "tenants: {file: tenants.yaml}\n")
    write(tenants, f"tenants: [{{name: b, keys: ['{KEY}']}}]\n")
    change = r.poll()
    assert change
    assert (change.config, change.tenants, change.access) == (None, True, False)
    write(tenants, "tenants: [{name: b, keys: [short]}]\n")
    with pytest.raises(ConfigError, match=r"tenants\.yaml"):
        r.poll()
    write(tenants, "tenants: [{name: b, pools: [no-such-pool]}]\n")
    with pytest.raises(ConfigError, match="no-such-pool"):
        r.poll()


def test_certificates_and_tokens_that_are_not_there_are_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "router: {tls: {certificate: a.pem, key: b.pem}, replica_token_file: t, admin_token_file: u}\n"
    )
    with pytest.raises(ConfigError) as error:
        Source(path).load()
    text = str(error.value)
    assert all(key in text for key in ("router.tls", "router.replica_token_file", "router.admin_token_file"))


def test_a_changed_token_is_noticed_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    write(token, "first-secret")
    token.chmod(0o600)
    r = reloader(tmp_path / "c.yaml", "router: {replica_token_file: token}\n")
    write(token, "second-secret")
    change = r.poll()
    assert change
    assert change.access
    assert not any("secret" in line for line in change.lines)
    write(token, "two words-secret")
    with pytest.raises(ConfigError) as error:
        r.poll()
    assert "secret" not in str(error.value)


def test_forced_reading_says_so_even_if_nothing_changed(tmp_path: Path) -> None:
    r = reloader(tmp_path / "c.yaml", "{}")
    change = r.poll(forced=True)
    assert change is not None
    assert not change
    assert change.lines == []


# --- replicas ---


class File:
    """A replica file by hand."""

    def __init__(self, *names: str) -> None:
        self.error: str | None = None
        self.next: list[Replica] | None = None
        self.forced = 0

    def say(self, *texts: str) -> None:
        self.next = static.parse_all(list(texts))

    def changed(self) -> list[Replica] | None:
        found, self.next = self.next, None
        return found

    def again(self) -> list[Replica] | None:
        self.forced += 1
        return self.changed()


def members(*texts: str) -> tuple[Members, File]:
    file = File()
    return Members(static.parse_all(list(texts)), file), file


def poll(m: Members, *workers: int) -> tuple[list[Replica], list[Replica]]:
    """(added, removed)."""
    new = m.read(False)
    assert new is not None
    return m.take(new, workers)


def names(replicas: list[Replica]) -> list[str]:
    return [r.name for r in replicas]


def test_a_replica_that_stays_is_the_same_object_with_the_same_number() -> None:
    m, file = members("a=http://x:1", "b=http://x:2")
    a, b = m.current
    file.say("b=http://x:2", "c=http://x:3")
    added, removed = poll(m, 0)
    assert (names(added), names(removed)) == (["c"], ["a"])
    assert m.current[0] is b
    assert (b.index, added[0].index) == (1, 2)
    assert m.at(0) is a, "its number is still its own"


def test_a_new_weight_is_taken_by_the_replica_that_stays() -> None:
    m, file = members("a=http://x:1")
    a = m.current[0]
    file.say("a=http://x:1")
    assert file.next is not None
    file.next[0].base_weight = file.next[0].weight = 2.0
    assert poll(m, 0) == ([], [])
    assert m.current == [a]
    assert (a.base_weight, a.weight) == (2.0, 2.0)


def test_a_number_is_free_when_every_worker_has_let_go() -> None:
    m, file = members("a=http://x:1", "b=http://x:2")
    a = m.current[0]
    file.say("b=http://x:2")
    poll(m, 0, 1)
    assert m.forgotten(0, a.index) is None
    assert names(m.shown()) == ["b", "a"]
    assert m.forgotten(1, a.index) is a
    assert m.forgotten(1, a.index) is None, "said twice"
    assert names(m.shown()) == ["b"]
    file.say("b=http://x:2", "c=http://x:3")
    added, _ = poll(m, 0, 1)
    assert added[0].index == 0


def test_another_address_under_the_same_name_is_another_replica_shown_once() -> None:
    m, file = members("a=http://x:1")
    file.say("a=http://x:9")
    added, removed = poll(m, 0)
    assert (added[0].url, removed[0].url) == ("http://x:9", "http://x:1")
    assert [r.url for r in m.shown()] == ["http://x:9"], "two series of one name would spoil the page"
    assert m.named("a") is added[0]


def test_old_replicas_stay_while_no_new_one_takes_requests() -> None:
    m, _ = members("a=http://x:1", "b=http://x:2")
    b = m.current[1]
    new = static.parse_all(["b=http://x:2", "c=http://x:3"])
    for state, expected in (("down", ["a", "b", "c"]), ("ready", ["b", "c"])):
        b.enter(state, "by hand")
        assert names(m.bridge(new)) == expected
    assert names(m.bridge(static.parse_all(["b=http://x:9"]))) == ["a", "b", "b"]
    moved = static.parse_all(["b=http://x:9"])
    m.take(m.bridge(moved), [0])
    assert [r.url for r in m.shown()] == ["http://x:1", "http://x:9"], "one series a name"
    assert m.named("b") is moved[0]
    assert m.bridge([]) == []


def test_a_replica_file_that_breaks_is_said_once_and_changes_nothing() -> None:
    m, file = members("a=http://x:1")
    file.error = "line 3: nonsense"
    assert m.read(False) is None
    assert m.complaint() == "line 3: nonsense"
    assert m.read(True) is None
    assert m.complaint() is None
    assert file.forced == 1
    assert names(m.current) == ["a"]


def test_more_replicas_than_there_are_numbers_are_refused() -> None:
    m, file = members("a=http://x:1")
    file.next = [static.parse(f"http://x{i}:1") for i in range(MAX_REPLICAS + 1)]
    with pytest.raises(ValueError, match=str(MAX_REPLICAS)):
        poll(m, 0)
    assert names(m.current) == ["a"]


# --- limits of the system ---


def test_too_small_a_limit_of_open_files_lowers_max_connections_and_names_the_cure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = within_file_limit(Source().load(), 1024)
    assert config.router.max_connections == 320
    said = capsys.readouterr().err
    assert "ulimit -n 20384" in said
    assert "LimitNOFILE" in said
    assert "router.max_connections" in said


def test_a_limit_that_is_large_enough_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    config = Source().load()
    assert within_file_limit(config, 1 << 20) is config
    assert capsys.readouterr().err == ""
