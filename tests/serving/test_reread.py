"""The stack's configuration file while it runs: what the router gets, what waits, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving import reread
from serving.config import Config, load
from serving.reread import Reread


class Stack:
    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.write(text)
        self.said: list[str] = []
        self.taken: list[Config] = []
        self.full = False
        options: dict[str, tuple[object, str]] = {"router.port": (8123, "--port")}
        self.reread = Reread(
            load(path, options), path, lambda: load(path, options), self._take, self.said.append
        )

    def _take(self, config: Config) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.taken.append(config)

    def write(self, text: str) -> None:
        new = self.path.with_name("new")
        new.write_text(text)
        os.replace(new, self.path)

    def change(self, text: str) -> None:
        self.write(text)
        self.reread.look()


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setattr(reread, "EVERY_SECONDS", 0.0)
    return Stack(tmp_path / "exaserve.yaml", "router: {max_queue_depth: 8}\n")


def test_nothing_happens_while_the_file_stays(stack: Stack) -> None:
    stack.reread.look()
    assert (stack.said, stack.taken) == ([], [])


def test_the_routers_sections_are_handed_on_with_the_options_of_the_command_line(stack: Stack) -> None:
    stack.change("router: {max_queue_depth: 9}\n")
    (taken,) = stack.taken
    assert (taken.router.max_queue_depth, taken.router.port) == (9, 8123)
    assert "the router takes it over" in stack.said[0]
    stack.reread.look()
    assert len(stack.said) == 1


def test_other_sections_are_named_and_not_handed_on(stack: Stack) -> None:
    stack.change("router: {max_queue_depth: 9}\nfleet: {replicas_per_node: 5}\n")
    assert stack.taken[0].fleet.replicas_per_node == 2
    assert stack.said[1] == "not taken over before exaserve down and up: fleet"


def test_a_bad_file_changes_nothing_and_a_good_one_after_it_does(stack: Stack) -> None:
    stack.change("router: {max_queue_depth: 0}\n")
    assert stack.taken == []
    assert "router.max_queue_depth" in stack.said[0]
    stack.change("router: {max_queue_depth: 7}\n")
    assert stack.taken[0].router.max_queue_depth == 7


def test_a_file_that_is_gone_changes_nothing(stack: Stack) -> None:
    stack.path.unlink()
    stack.reread.look()
    assert (stack.said, stack.taken) == ([], [])


def test_a_disk_that_takes_nothing_is_said(stack: Stack) -> None:
    stack.full = True
    stack.change("router: {max_queue_depth: 9}\n")
    assert "No space left" in stack.said[0]
