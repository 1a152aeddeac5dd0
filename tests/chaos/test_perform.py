"""Children that end with whoever started them: the load beside an experiment, and helpers of faults."""

from __future__ import annotations

import os
import signal
import time

import pytest

from chaos import perform


@pytest.mark.parametrize("parent_dies", [False, True])
def test_a_child_whose_parent_died_before_it_could_ask_to_be_told_does_not_begin(parent_dies: bool) -> None:
    ours, theirs = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            in_child, us = perform.dies_with_us(signal.SIGTERM), os.getpid()
            if os.fork():
                if parent_dies:
                    os._exit(0)
                os.wait()
            else:
                while parent_dies and os.getppid() == us:
                    time.sleep(0.001)
                in_child()
                os.write(theirs, b"began")
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(parent, 0)
    with os.fdopen(ours, "rb") as said:
        assert said.read() == (b"" if parent_dies else b"began")
