"""The lab's file system: rules that are understood or named as wrong, wrong usage, its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chaos.engines import fuse
from chaos.lab import faultrules
from tests.chaos import storage_lab
from tests.chaos.framework import eventually


def parse(*rules: dict[str, Any], **keys: Any) -> list[faultrules.Rule]:
    return faultrules.parse(json.dumps({"rules": list(rules), **keys}), "a.json")


def test_a_rule_has_the_operations_that_make_sense_for_its_fault() -> None:
    latency, error, full = parse(
        {"fault": "latency", "seconds": 0.5}, {"fault": "error", "errno": "EIO"}, {"fault": "full"}
    )
    assert latency.covers("read", "/a/b")
    assert latency.covers("write", "/a/b")
    assert not latency.covers("getattr", "/a/b")
    assert all(error.covers(op, "/") for op in faultrules.ALL)
    assert full.covers("create", "/a")
    assert not full.covers("unlink", "/a")


def test_paths_and_groups_narrow_a_rule() -> None:
    (rule,) = parse({"fault": "error", "errno": "ESTALE", "ops": ["write", "open"], "path": "models/*.bin"})
    assert rule.covers("rename", "/models/a/b.bin")
    assert rule.covers("open", "/models/b.bin")
    assert not rule.covers("read", "/models/b.bin")
    assert not rule.covers("open", "/models/b.json")
    assert not rule.covers("open", "/other/b.bin")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ("[]", "rules: a list is needed"),
        ('{"rules": [], "untill": 1}', "untill: not a key"),
        ('{"rules": [], "until": "soon"}', "until: unix seconds"),
        ('{"rules": ["hang"]}', "fault: one of latency, bandwidth"),
        ('{"rules": [{"fault": "hang", "seconds": 1}]}', "seconds: not a key of hang"),
        ('{"rules": [{"fault": "latency"}]}', "seconds: a number over 0"),
        ('{"rules": [{"fault": "latency", "seconds": -1}]}', "seconds: a number over 0"),
        (
            '{"rules": [{"fault": "error", "errno": "EVIL"}]}',
            "errno: a name such as EIO is needed, not 'EVIL'",
        ),
        ('{"rules": [{"fault": "hang", "share": 2}]}', "share: a number over 0, at most 1"),
        ('{"rules": [{"fault": "hang", "ops": ["sing"]}]}', "ops: 'sing' is none of"),
        ('{"rules": [{"fault": "corrupt", "every": 0}]}', "every: a whole number of bytes, at least 1"),
        ('{"rules": [{"fault": "hang", "path": ""}]}', "path: a pattern"),
    ],
)
def test_a_wrong_file_is_named_by_its_key(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        faultrules.parse(text)


def test_rules_come_and_go_with_their_files_and_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    folder = faultrules.Folder(tmp_path)
    assert not folder.changed()
    (tmp_path / "a.json").write_text('{"rules": [{"fault": "hang"}]}')
    assert folder.changed()
    assert [r.fault for r in folder.rules()] == ["hang"]
    (tmp_path / "a.json").write_text('{"rules": [{"fault": "hang"')
    (tmp_path / "b.json").write_text('{"rules": [{"fault": "full"}]}')
    assert folder.changed()
    assert [r.fault for r in folder.rules()] == ["hang", "full"]
    assert folder.files["a.json"].startswith("no JSON")
    (tmp_path / "a.json").unlink()
    assert folder.changed()
    assert [r.fault for r in folder.rules()] == ["full"]
    assert folder.files == {"b.json": "ok"}


def test_a_file_that_goes_while_the_folder_is_read_takes_no_other_rules_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = faultrules.Folder(tmp_path)
    for name in "abc":
        (tmp_path / f"{name}.json").write_text('{"rules": [{"fault": "hang"}]}')
    folder.changed()
    with os.scandir(tmp_path) as entries:
        first = next(entries).name  # all others come after it
    look = os.stat

    def stat(path: str) -> os.stat_result:
        (tmp_path / first).unlink(missing_ok=True)
        return look(path)

    with monkeypatch.context() as patched:
        patched.setattr(faultrules.os, "stat", stat)
        folder.changed()
    assert [r.source for r in folder.rules()] == sorted({"a.json", "b.json", "c.json"} - {first})


def test_rules_are_over_when_their_time_is(tmp_path: Path) -> None:
    folder = faultrules.Folder(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps({"rules": [{"fault": "hang"}], "until": time.time() - 1}))
    folder.changed()
    assert folder.rules() == []
    assert folder.files == {"a.json": "over"}


def faultfs(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chaos.lab.faultfs", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_wrong_usage_ends_with_a_sentence_and_status_2(tmp_path: Path) -> None:
    backing, mount = tmp_path / "backing", tmp_path / "mount"
    backing.mkdir()
    for argv, why in (
        (["nowhere", str(mount), "--control", "c"], "BACKING: "),
        ([str(backing), str(mount), "--control", "c"], f"MOUNTPOINT: {mount} is no folder"),
        ([str(backing), str(backing), "--control", "c"], "must not lie in each other"),
        ([str(backing)], "required: MOUNTPOINT, --control"),
    ):
        said = faultfs(*argv)
        assert said.returncode == 2
        assert why in said.stderr
    mount.mkdir()
    said = faultfs(str(backing), str(mount), "--control", str(mount / "c"))
    assert said.returncode == 2
    assert "--control: the folder must lie outside of MOUNTPOINT" in said.stderr
    assert "example:" in faultfs("--help").stdout


@pytest.mark.skipif(storage_lab.lacks() is not None, reason=storage_lab.lacks() or "")
def test_sigterm_frees_what_is_held_and_takes_the_mount_away(tmp_path: Path) -> None:
    backing, mount, control = (tmp_path / name for name in ("backing", "mount", "mount.control"))
    backing.mkdir()
    mount.mkdir()
    (backing / "a").write_text("here")
    argv = [sys.executable, "-m", "chaos.lab.faultfs", str(backing), str(mount), "--control", str(control)]
    daemon = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert daemon.stdout is not None
    try:
        assert daemon.stdout.readline() == "ready\n"
        assert (mount / "a").read_text() == "here"
        (mount / "b").write_text("there")
        os.rename(mount / "b", mount / "c")
        assert (backing / "c").read_text() == "there"
        assert sorted(os.listdir(mount)) == ["a", "c"]
        (control / "hang.json").write_text('{"rules": [{"fault": "hang"}]}')
        assert eventually(lambda: fuse.state(str(mount)).get("files") == {"hang.json": "ok"})
        held = subprocess.Popen(["cat", str(mount / "a")], stderr=subprocess.PIPE, text=True)
        assert eventually(lambda: fuse.state(str(mount))["hits"].get("hang.json"))
        assert held.poll() is None
        daemon.terminate()
        assert daemon.wait(60) == 0
        assert held.communicate(timeout=60)[1] != ""
        assert os.listdir(mount) == []
    finally:
        daemon.kill()
        daemon.communicate()
        subprocess.run(["umount", "-l", str(mount)], capture_output=True, check=False)
