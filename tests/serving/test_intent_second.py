"""The second stage: the process, its time limit, and what happens when it is slow, full or dead."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import uvloop

from serving.intent import transformer
from serving.intent.classifier import MODELS, load
from serving.intent.encoder import HEAD_FORMAT, HEAD_VERSION, load_encoder
from serving.intent.ngram import ModelError, load_ngram, read_header, write
from serving.intent.transformer import SecondStage

QUESTION = "ever since the fall she is slow, sleepy and talks nonsense"


def stage(**settings) -> SecondStage:
    files = MODELS / "default.npz", MODELS / "default.encoder.npz"
    return SecondStage(["general", "legal", "medical"], *files, **{"time_limit": 20.0} | settings)


def run(work, loop=asyncio.new_event_loop) -> None:
    async def whole() -> None:
        second = stage()
        try:
            await work(second)
        finally:
            await second.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(whole())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_answers_as_the_encoder_does(loop) -> None:
    async def work(second: SecondStage) -> None:
        assert await second.start()
        here = load_encoder(MODELS / "default.encoder.npz", load_ngram(MODELS / "default.npz"))
        for text in (QUESTION, "房东不肯还我交的钱", "", "x" * 100_000, "\ud800"):
            label, confidence = await second.classify(text)
            assert (label, pytest.approx(confidence, abs=1e-3)) == here.classify(text)
        assert second.answered == second.asked == 5
        assert second.starts == 1

    run(work, loop)


def test_the_first_question_starts_it_and_is_not_kept_waiting() -> None:
    async def work(second: SecondStage) -> None:
        assert second.pid is None
        assert await second.classify(QUESTION) is None
        assert second.failures == 1
        assert await second.start()
        assert await second.classify(QUESTION) is not None

    run(work)


def test_a_late_answer_is_none_and_does_not_answer_the_next_question() -> None:
    async def work(second: SecondStage) -> None:
        await second.start()
        os.kill(second.pid, signal.SIGSTOP)
        second.time_limit = 0.02
        assert await second.classify("房东不肯还我交的钱") is None
        assert second.timeouts == 1
        os.kill(second.pid, signal.SIGCONT)
        second.time_limit = 20.0
        label, _ = await second.classify(QUESTION)
        assert label == "medical"

    run(work)


def test_more_questions_than_it_may_hold_are_refused_at_once() -> None:
    async def work(second: SecondStage) -> None:
        await second.start()
        os.kill(second.pid, signal.SIGSTOP)
        second.time_limit = 0.1
        answers = await asyncio.gather(*(second.classify(QUESTION) for _ in range(10)))
        assert answers == [None] * 10
        assert (second.overloaded, second.timeouts) == (10 - transformer.MAX_WAITING, transformer.MAX_WAITING)
        os.kill(second.pid, signal.SIGCONT)

    run(work)


def test_a_process_that_died_is_started_again() -> None:
    async def work(second: SecondStage) -> None:
        await second.start()
        first = second.pid
        os.kill(first, signal.SIGSTOP)
        asked = asyncio.ensure_future(second.classify(QUESTION))
        await asyncio.sleep(0.05)
        os.kill(first, signal.SIGKILL)
        assert await asked is None
        assert second.failures == 1
        assert await second.start()
        assert second.pid != first
        assert (await second.classify(QUESTION))[0] == "medical"
        assert second.starts == 2

    run(work)


def test_a_process_that_hangs_is_killed(monkeypatch) -> None:
    async def work(second: SecondStage) -> None:
        await second.start()
        first = second.pid
        os.kill(first, signal.SIGSTOP)
        monkeypatch.setattr(transformer, "_STUCK", 0.05)
        second.time_limit = 0.1
        assert await second.classify(QUESTION) is None
        for _ in range(600):
            if not second.ready:
                break
            await asyncio.sleep(0.05)
        assert not second.ready
        assert await second.start()
        assert second.pid != first

    run(work)


def test_one_that_cannot_start_is_not_started_over_and_over(tmp_path, capfd, monkeypatch) -> None:
    now, spawn = 0.0, transformer._spawn

    def slow(*given):
        nonlocal now
        now += 100.0  # longer than the pause, until it has found that it can't run
        return spawn(*given)

    monkeypatch.setattr(transformer, "_spawn", slow)
    monkeypatch.setattr(transformer, "time", SimpleNamespace(monotonic=lambda: now))

    async def work() -> None:
        nonlocal now
        second = SecondStage(["a", "b"], MODELS / "default.npz", tmp_path / "none.npz")
        assert not await second.start()
        for _ in range(50):
            assert await second.classify(QUESTION) is None
            await asyncio.sleep(0)
        assert (second.starts, second._starting) == (1, None)
        assert second.failures == 50
        now += transformer._PAUSE
        assert await second.classify(QUESTION) is None
        assert not await second.start()
        assert second.starts == 2
        await second.close()

    asyncio.run(work())
    assert "none.npz: no such model file" in capfd.readouterr().err


def test_closing_ends_the_process_and_later_questions_get_none() -> None:
    async def work(second: SecondStage) -> None:
        await second.start()
        pid = second.pid
        await second.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert await second.classify(QUESTION) is None
        assert second.pid is None

    run(work)


def test_the_process_ends_when_the_router_is_killed() -> None:
    code = (
        "import asyncio, os\n"
        "from serving.intent import load\n"
        "async def work():\n"
        "    second = load(time_limit=20.0).second\n"
        "    await second.start()\n"
        "    print(second.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(work())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    pid = int(done.stdout)
    for _ in range(1200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            break
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"process {pid} is still there")


def test_the_classifier_asks_it_only_about_what_the_first_stage_is_unsure_of() -> None:
    async def work() -> None:
        classifier = load(time_limit=20.0)
        await classifier.second.start()
        classifier.fast = lambda text: ("general", 0.69 if text == QUESTION else 0.71)
        assert (await classifier.classify(QUESTION))[0] == "medical"
        assert await classifier.classify("hello") == ("general", 0.71)
        assert classifier.second.asked == 1
        await classifier.second.close()

    asyncio.run(work())


def test_a_damaged_second_stage_is_named(tmp_path) -> None:
    first = load_ngram(MODELS / "default.npz")
    header, arrays = read_header(MODELS / "default.encoder.npz", "exaserve-intent-encoder", 1)
    bad = tmp_path / "bad.npz"
    write(bad, header | {"labels": ["a", "b"]}, arrays, compress=False)
    with pytest.raises(ModelError, match=r"bad\.npz: damaged .*labels"):
        load_encoder(bad, first)
    write(bad, header, arrays | {"graph": np.zeros(99, np.uint8)}, compress=False)
    with pytest.raises(ModelError, match=r"bad\.npz: damaged"):
        load_encoder(bad, first)
    with pytest.raises(ModelError, match="holds exaserve-intent-encoder, not exaserve-intent-ngram"):
        load_ngram(MODELS / "default.encoder.npz")


def test_a_long_text_is_read_as_two_halves() -> None:
    pieces = load_encoder(MODELS / "default.encoder.npz", load_ngram(MODELS / "default.npz"))._pieces
    assert [len(w) for w in pieces.windows("a short one")] == [5]
    for count in (22, 23, 44, 45, 300):
        windows = pieces.windows("疼" * count)
        body = [number for window in windows for number in window[1:-1]]
        assert len(windows) == (1 if len(body) <= 22 else 2)
        assert all(len(window) <= 24 for window in windows)
        assert len(body) >= min(count, 44)
        assert {window[0] for window in windows} == {0}
        assert {window[-1] for window in windows} == {2}


def test_a_head_beside_the_encoder_replaces_its_last_layer(tmp_path) -> None:
    first = load_ngram(MODELS / "default.npz")
    (tmp_path / "m.encoder.npz").symlink_to(MODELS / "default.encoder.npz")
    header = {
        "format": HEAD_FORMAT,
        "version": HEAD_VERSION,
        "labels": first.labels,
        "mix": 0.0,
        "temperature": 1.0,
    }
    layer = {"out": np.zeros((3, 384), np.float32), "out_bias": np.array([0, 5, 0], np.float32)}
    write(tmp_path / "m.head.npz", header, layer)
    assert load_encoder(tmp_path / "m.encoder.npz", first).classify(QUESTION)[0] == "legal"
    write(tmp_path / "m.head.npz", header, layer | {"out": np.zeros((3, 2), np.float32)})
    with pytest.raises(ModelError, match=r"m\.head\.npz: damaged"):
        load_encoder(tmp_path / "m.encoder.npz", first)


def test_a_classifier_without_second_stage_has_none(tmp_path) -> None:
    (tmp_path / "m.npz").write_bytes((MODELS / "default.npz").read_bytes())
    assert load(tmp_path / "m.npz").second is None
    assert load(second_stage=False).second is None
    assert json.dumps(load().labels) == '["general", "legal", "medical"]'
