"""Profiles: what they ask, how long it is, that it is unlike everything else and the same again for the same seed."""

from __future__ import annotations

import importlib
import json
import random
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadtest._lib._ask import COMPLETIONS, EMBEDDINGS, Answer, Ask
from loadtest._lib._profiles import _mixed, _questions, _settings, _source, _text
from loadtest._lib._profiles._settings import Settings
from loadtest._lib._profiles._table import PROFILES, lines
from loadtest._lib._refusal import unclear
from loadtest._lib._run import Run
from loadtest._lib._sessions import Sessions

ROOT = Path(__file__).parents[2]
CHATS = ("chat", "multi_turn", "long_document", "code", "batch", "intents")


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    _settings.use(Settings())
    yield
    _settings.use(Settings())


def played(name: str, number: int, seed: int = 1, answer: str = "Yes.") -> list[Ask]:
    """What one session asks if every answer is good."""
    unique = f"{random.Random(f'{seed}/{number}/u').getrandbits(64):016x}"
    session = PROFILES[name].session(random.Random(f"{seed}/{number}"), unique)
    asks = [next(session)]
    try:
        while True:
            asks.append(session.send(Answer(True, answer)))
    except StopIteration:
        return asks


def many(name: str, sessions: int = 200, seed: int = 1) -> list[Ask]:
    return [ask for number in range(sessions) for ask in played(name, number, seed)]


def text_of(ask: Ask) -> str:
    body = ask.body
    if "messages" in body:
        return "\n".join(message["content"] for message in body["messages"])
    return json.dumps(body.get("prompt") or body["input"], ensure_ascii=False)


# -- who plays them


def of_worker(origin: str, seed: int = 3, name: str = "run-1") -> list[str]:
    run = Run(name=name, profile="chat", host="http://127.0.0.1:9", model="m", seed=seed, started=0.0)
    sessions = Sessions(PROFILES["chat"].session, run, origin)
    return [text_of(next(sessions.next())) for _ in range(40)]


def test_workers_and_users_of_a_run_send_nothing_twice() -> None:
    texts = [text for origin in ("0/0", "0/1", "1/0", "1/1", "1/open") for text in of_worker(origin)]
    assert len({text[:16] for text in texts}) == len({text[16:] for text in texts}) == 200


def test_a_second_run_with_the_seed_differs_in_the_unique_digits_alone() -> None:
    first, second = of_worker("0/0"), of_worker("0/0", name="run-2")
    assert of_worker("0/0") == first
    assert [text[16:] for text in second] == [text[16:] for text in first]
    assert not {text[:16] for text in second} & {text[:16] for text in first}
    assert not {text[16:] for text in of_worker("0/0", seed=4)} & {text[16:] for text in first}


# -- what profiles ask


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_same_seed_asks_the_same_and_another_asks_something_else(name: str) -> None:
    assert many(name, 20) == many(name, 20)
    assert [text_of(ask) for ask in many(name, 20)] != [text_of(ask) for ask in many(name, 20, seed=2)]


@pytest.mark.parametrize("name", sorted(set(PROFILES) - {"mixed"}))
def test_asks_carry_their_profile_and_are_small_enough_for_the_default_context(name: str) -> None:
    for ask in many(name):
        assert ask.profile == name
        json.dumps(ask.body)
        if name == "overlong":
            continue
        for content in ask.body.get("input") or [text_of(ask)]:
            language = "zh" if re.search(r"[\u4e00-\u9fff]", content) else "en"
            tokens = (
                _source.estimate(content, "python") if name == "code" else _text.estimate(content, language)
            )
            assert tokens + ask.body.get("max_tokens", 1) + 30 <= 1024


@pytest.mark.parametrize(
    "name", ["chat", "multi_turn", "long_document", "code", "completion", "embedding", "batch"]
)
def test_no_two_sessions_begin_alike(name: str) -> None:
    heads = [text_of(played(name, number)[0]).lstrip('["')[:16] for number in range(300)]
    assert len(set(heads)) == 300
    assert all(re.fullmatch("[0-9a-f]{16}", head) for head in heads)


@pytest.mark.parametrize("name", CHATS)
def test_a_shared_prefix_comes_first_in_every_prompt(name: str) -> None:
    shared = _settings.shared_prefix(7, 100, {})
    assert _text.estimate(shared) == 100
    assert shared == _settings.shared_prefix(7, 100, {}) != _settings.shared_prefix(8, 100, {})
    _settings.use(Settings(shared=shared, shared_tokens=100))
    for ask in many(name, 50):
        first = ask.body["messages"][0]
        assert first["role"] == "system"
        assert first["content"].startswith(shared)
    assert all(ask.body["prompt"].startswith(shared) for ask in many("completion", 50))


def test_chat_prompts_have_the_stated_median_and_answers_their_range() -> None:
    asks = many("chat", 2000)
    tokens = [_text.estimate(ask.body["messages"][0]["content"]) for ask in asks]
    assert statistics.median(tokens) == pytest.approx(92, abs=8)  # the unique text and its colon are 2 here
    assert {ask.body["max_tokens"] for ask in asks} == set(range(16, 65))
    assert all(ask.stream and ask.path.endswith("/chat/completions") for ask in asks)


def test_half_of_the_chats_are_chinese_if_asked_for() -> None:
    _settings.use(Settings(chinese=0.5))
    chinese = sum(bool(re.search(r"[\u4e00-\u9fff]", text_of(ask))) for ask in many("chat", 400))
    assert 160 <= chinese <= 240


def test_a_conversation_repeats_what_was_said_and_grows() -> None:
    asks = next(
        asks for asks in (played("multi_turn", n, answer="So it was.") for n in range(50)) if len(asks) >= 4
    )
    for before, after in pairwise(asks):
        said = before.body["messages"]
        assert after.body["messages"][: len(said)] == said
        assert after.body["messages"][len(said)] == {"role": "assistant", "content": "So it was."}
        assert after.body["messages"][len(said) + 1]["role"] == "user"
        assert len(after.body["messages"]) == len(said) + 2
    assert len({ask.session for ask in asks}) == 1
    assert asks[0].think == 0
    assert all(ask.think > 0 for ask in asks[1:])


def test_conversations_have_the_turns_and_pauses_that_were_asked_for() -> None:
    _settings.use(Settings(context=131_072, turns=(3, 8), think=2.0))
    sessions = [played("multi_turn", n) for n in range(600)]
    assert {len(asks) for asks in sessions} == set(range(3, 9))
    assert statistics.mean(map(len, sessions)) == pytest.approx(PROFILES["multi_turn"].asks, abs=0.3)
    assert statistics.mean(ask.think for asks in sessions for ask in asks[1:]) == pytest.approx(2.0, rel=0.1)


def test_a_conversation_ends_at_a_failed_answer_and_where_the_context_ends() -> None:
    session = PROFILES["multi_turn"].session(random.Random(1), "u")
    next(session)
    with pytest.raises(StopIteration):
        session.send(Answer(False))
    _settings.use(Settings(turns=(1000, 1000)))
    for ask in many("multi_turn", 20):
        assert (
            sum(_text.estimate(m["content"]) for m in ask.body["messages"]) + ask.body["max_tokens"] <= 1024
        )


def test_documents_are_long_where_the_model_takes_them_and_scaled_where_not() -> None:
    small = [_text.estimate(text_of(ask)) for ask in many("long_document", 300)]
    assert 300 <= statistics.median(small) <= 450
    assert max(small) > 600
    _settings.use(Settings(context=131_072))
    large = [_text.estimate(text_of(ask)) for ask in many("long_document", 300)]
    assert statistics.median(large) == pytest.approx(6000, rel=0.06)
    assert 2000 <= min(large) < max(large) <= 12_100
    _settings.use(Settings(context=131_072, document=30_000))
    assert statistics.median(_text.estimate(text_of(ask)) for ask in many("long_document", 60)) > 25_000


def test_code_is_fenced_and_parses_but_for_where_it_is_cut() -> None:
    languages = Counter()
    for ask in many("code", 200):
        match = re.search(r"```(\w+)\n(.*)\n```$", text_of(ask), re.DOTALL)
        assert match
        languages[match[1]] += 1
        if match[1] == "python":
            *whole, _ = match[2].split("\n\n\n")
            for function in whole:
                compile(function, "prompt", "exec")
    assert set(languages) == set(_source.LANGUAGES)
    assert min(languages.values()) > 60
    for function in _source._pool("python")[0]:
        compile(function, "pool", "exec")


def test_embeddings_batch_and_completions_use_their_own_forms() -> None:
    embeddings = many("embedding", 300)
    assert {ask.path for ask in embeddings} == {EMBEDDINGS}
    assert not any(ask.stream for ask in embeddings)
    assert {len(ask.body["input"]) for ask in embeddings} == set(range(1, 17))
    assert len({text for ask in embeddings for text in ask.body["input"]}) == sum(
        len(ask.body["input"]) for ask in embeddings
    )
    for ask in many("batch", 50):
        assert not ask.stream
        assert ask.headers == {"x-exaserve-pool": "batch"}
        assert 64 <= ask.body["max_tokens"] <= 256  # 128 to 512, scaled to a quarter of the context
    assert {ask.path for ask in many("completion", 5)} == {COMPLETIONS}


def test_max_tokens_replaces_the_answers_of_every_profile() -> None:
    _settings.use(Settings(answer=(5, 7)))
    for name in (*CHATS, "completion"):
        assert {ask.body["max_tokens"] for ask in many(name, 60)} == {5, 6, 7}


def test_a_mix_has_its_parts_of_requests_not_of_sessions() -> None:
    _settings.use(Settings(context=131_072, mix={"chat": 0.5, "multi_turn": 0.4, "batch": 0.1}))
    asks = many("mixed", 3000)
    shares = {name: n / len(asks) for name, n in Counter(ask.profile for ask in asks).items()}
    assert shares == pytest.approx({"chat": 0.5, "multi_turn": 0.4, "batch": 0.1}, abs=0.03)
    assert set(_mixed.PARTS) == set(PROFILES) - {"mixed"}


@pytest.mark.real
def test_prompts_of_each_profile_fit_the_default_context_by_the_real_tokenizer(
    smollm2: Callable[[list[str]], list[int]],
) -> None:
    for name in (*CHATS, "completion"):
        asks = many(name, 100, seed=7)
        counted = smollm2([text_of(ask) for ask in asks])
        # SmolLM2's template: 21 of a default system message, 9 around a message with the answer's beginning.
        used = [
            n + 30 + 5 * len(ask.body.get("messages", ())) + ask.body["max_tokens"]
            for n, ask in zip(counted, asks, strict=True)
        ]
        assert max(used) <= 1024, name


# -- too long


def test_overlong_asks_lie_on_both_sides_of_the_models_limit() -> None:
    kinds: Counter[tuple[int, str]] = Counter()
    for ask in many("overlong", 500):
        assert not ask.stream
        body, limit = ask.body, 1024
        if ask.path == COMPLETIONS:
            assert len(body["prompt"]) == (limit + 1 if ask.expect == 400 else limit - 1)
            assert body["max_tokens"] == 1
            kinds[ask.expect, "numbers"] += 1
        elif body["max_tokens"] > 1:
            assert (body["max_tokens"], ask.expect) == (limit + 1, 400)
            kinds[ask.expect, "answer"] += 1
        else:
            tokens = _text.estimate(text_of(ask))
            assert (
                0.8 * limit < tokens < 0.9 * limit
                if ask.expect == 200
                else 1.45 * limit < tokens < 3.1 * limit
            )
            kinds[ask.expect, "text"] += 1
    assert set(kinds) == {(400, "numbers"), (200, "numbers"), (400, "answer"), (200, "text"), (400, "text")}
    assert min(kinds.values()) > 60


def test_overlong_follows_the_context() -> None:
    _settings.use(Settings(context=8192))
    lengths = {len(ask.body["prompt"]) for ask in many("overlong", 60) if ask.path == COMPLETIONS}
    assert lengths == {8191, 8193}


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (400, {"error": {"message": "This model's maximum context length is 1024 tokens."}}, None),
        (400, {"error": {"message": "max_tokens=1025 cannot be greater than max_model_len=1024."}}, None),
        (200, {"choices": []}, "HTTP 200 where a clear 400 was due"),
        (500, {"error": {"message": "maximum context length is 1024"}}, "HTTP 500 where a clear 400 was due"),
        (400, {"detail": "maximum context length is 1024"}, "HTTP 400 without an OpenAI-shaped error in it"),
        (400, {"error": "too long: 1024"}, "HTTP 400 without an OpenAI-shaped error in it"),
        (400, {"error": {"message": "Bad request"}}, "HTTP 400 whose message names no limit"),
        (
            400,
            {"error": {"message": "max_tokens must be at least 1, got 0."}},
            "HTTP 400 whose message names no limit",
        ),
        (400, {"error": {"message": "prompt too long"}}, "HTTP 400 whose message names no limit"),
    ],
)
def test_a_refusal_is_clear_if_it_names_the_limit(status: int, body: dict[str, Any], why: str | None) -> None:
    assert unclear(status, json.dumps(body).encode(), 400) == why
    assert unclear(400, b"\xff<html>", 400) == "HTTP 400 without an OpenAI-shaped error in it"


# -- intents


@pytest.mark.parametrize("language", _questions.LANGUAGES)
@pytest.mark.parametrize("label", _questions.LABELS)
def test_there_are_hundreds_of_questions_of_each_intent(label: str, language: str) -> None:
    questions = _questions.every(label, language)
    assert len(questions) == len(set(questions)) >= 300
    chinese = [bool(re.search(r"[\u4e00-\u9fff]", question)) for question in questions]
    assert all(chinese) if language == "zh" else not any(chinese)
    drawn = {_questions.question(random.Random(n), label, language) for n in range(300)}
    assert drawn <= set(questions)


def test_no_question_is_one_that_the_classifier_was_trained_or_judged_on() -> None:
    known = {
        json.loads(line)["text"].strip().lower()
        for file in (ROOT / "serving/intent/data").glob("*.jsonl")
        for line in file.read_text().splitlines()
    }
    assert len(known) > 10_000
    for label in _questions.LABELS:
        for language in _questions.LANGUAGES:
            assert not known & {question.lower() for question in _questions.every(label, language)}


def test_intents_are_a_third_each_and_the_question_stands_alone() -> None:
    asks = many("intents", 1200)
    shares = Counter(ask.intent for ask in asks)
    assert set(shares) == {"medical", "legal", "general"}
    assert min(shares.values()) > 340
    everything = {
        (label, q)
        for label in _questions.LABELS
        for g in _questions.LANGUAGES
        for q in _questions.every(label, g)
    }
    for ask in asks:
        assert (ask.intent, ask.body["messages"][-1]["content"]) in everything
    assert len({ask.body["messages"][0]["content"] for ask in asks}) == 1200


# -- locustfiles


def locust(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", f"{ROOT}/loadtest/", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_locust_takes_all_locustfiles_together_and_no_shape_takes_over(tmp_path: Path) -> None:
    run = locust("--list", cwd=tmp_path)
    names = re.findall(r"\b(\w+User)\b", run.stdout)
    assert sorted(names) == sorted(
        "".join(map(str.capitalize, name.split("_"))) + "User" for name in PROFILES
    )
    assert "Shape" not in run.stdout
    assert "Traceback" not in run.stderr
    assert run.returncode == 0


def test_a_wrong_mix_ends_locust_with_one_line_that_names_the_cure(tmp_path: Path) -> None:
    run = locust(
        "MixedUser",
        "--headless",
        "-t",
        "1s",
        "-H",
        "http://127.0.0.1:9",
        "--mix",
        "chat=1,bath=2",
        cwd=tmp_path,
    )
    assert run.returncode == 2
    assert "argument --mix: 'bath=2' is no PROFILE=PARTS with a profile of chat" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_each_profile_has_a_locustfile_that_states_its_sizes(name: str) -> None:
    source = (ROOT / "loadtest" / f"{name}.py").read_text()
    assert f"_{name}.session" in source
    for what, lengths in PROFILES[name].sizes:
        if isinstance(lengths, str):
            continue
        assert re.search(rf"^{re.escape(what)} +.*{re.escape(str(lengths))}", source, re.MULTILINE), what
    assert (PROFILES[name].name, PROFILES[name].about) == (name, lines()[list(PROFILES).index(name)][1])
    module = importlib.import_module(f"loadtest._lib._profiles._{name}")
    assert module.session is PROFILES[name].session
