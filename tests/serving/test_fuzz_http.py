"""A short run of ``fuzz_http.py``; ten minutes of it are a command of its own."""

from __future__ import annotations

import asyncio
import os

import uvloop

from tests.serving.fuzz_http import Fuzz

SECONDS = float(os.environ.get("EXASERVE_FUZZ_SECONDS", "8"))


def test_mutated_http_breaks_nothing_and_leaves_nothing() -> None:
    fuzz = Fuzz(seed=3)
    problems = uvloop.run(asyncio.wait_for(fuzz.run(SECONDS), SECONDS + 60))
    assert problems == []
    assert fuzz.number > 100  # it did run, however busy the machine is
    assert fuzz.seen["status 400"] > 0
    assert fuzz.seen["status 200"] > 0
