"""Options of profiles: what they set, what they refuse, and what a run's processes agree on."""

from __future__ import annotations

import random
import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from loadtest._lib import _profile_options as options
from loadtest._lib._profiles import _settings, _text
from loadtest._lib._profiles._settings import Settings


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    yield
    _settings.use(Settings())


def given(**changed: Any) -> Namespace:
    values = {
        "context": "", "shared_prefix": "0", "turns": "3-8", "think": "2", "chinese": "0", "document_tokens": "6000",
        "mix": "chat=60,code=40", "max_tokens": "", "tokenize": False,
        "api_key": "", "api_key_file": "",
    }  # fmt: skip
    return Namespace(**{**values, **changed})


def test_options_become_settings() -> None:
    read = options.read(
        given(context="4096", shared_prefix="300", turns="4", think="0.5", chinese="0.25", max_tokens="9")
    )
    assert (read.context, read.shared_tokens, read.turns, read.think) == (4096, 300, (4, 4), 0.5)
    assert (read.chinese, read.answer, read.mix) == (0.25, (9, 9), {"chat": 0.6, "code": 0.4})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"context": "12"}, "--context: '12' is not a number of tokens from 256 up"),
        ({"context": "1k"}, "--context: '1k' is not a number"),
        (
            {"context": "1000", "shared_prefix": "251"},
            "--shared-prefix: 251 of the 1000 tokens .* the most is 250",
        ),
        (
            {"context": "1000", "max_tokens": "20-501"},
            "--max-tokens: 501 of the 1000 tokens .* the most is 500",
        ),
        ({"shared_prefix": "-1"}, "--shared-prefix: '-1' is not a number of tokens from 0 up"),
        ({"turns": "8-3"}, "--turns: '8-3' is neither"),
        ({"think": "nan"}, "--think: 'nan' is not a number of seconds"),
        ({"chinese": "50%"}, "--chinese: '50%' is not a share from 0 to 1"),
        ({"document_tokens": "7"}, "--document-tokens: '7' is not a number of tokens from 16 up"),
        (
            {"mix": "chat=60,chats=40"},
            "--mix: 'chats=40' is no PROFILE=PARTS with a profile of chat, multi_turn",
        ),
        ({"mix": "chat"}, "--mix: 'chat' is no PROFILE=PARTS"),
        ({"mix": "chat=60,chat=40"}, "--mix: chat is there twice"),
        ({"mix": "chat=-1"}, "--mix: the parts of chat must be a number from 0 up"),
        ({"mix": "chat=0"}, "--mix: all parts are 0"),
        ({"mix": "mixed=1"}, "--mix: 'mixed=1' is no PROFILE=PARTS"),
    ],
)
def test_a_wrong_option_is_named_with_its_cure(changed: dict[str, Any], message: str) -> None:
    assert re.match(message, options.problem(given(**changed)) or "")


def test_right_options_have_no_problem_and_a_mix_may_have_dashes_and_noughts() -> None:
    assert options.problem(given()) is None
    assert options.problem(given(shared_prefix="9000")) is None, (
        "fits some model; judged when the context is known"
    )
    assert options.mix_of("multi-turn=1, batch=3,code=0") == {"multi_turn": 0.25, "batch": 0.75}


class Running:
    """What a run has when it begins."""

    def __init__(self, max_model_len: int | None, notes: dict[str, Any] | None = None) -> None:
        self.seed, self.model, self.host = 3, "m", "http://127.0.0.1:9"
        self.max_model_len, self.notes = max_model_len, notes or {}


def begun(run: Running, **changed: Any) -> Settings:
    options.begin(Namespace(parsed_options=given(**changed)), run)  # type: ignore[arg-type]
    return _settings.now()


def test_the_context_is_the_servers_unless_one_is_given() -> None:
    run = Running(2048)
    assert begun(run).context == 2048
    assert run.notes["lengths"] == {"context": 2048, "context_from": "/v1/models", "tokens_per_estimate": {}}
    assert begun(Running(2048), context="512").context == 512
    assert begun(Running(None)).context == 1024
    with pytest.raises(ValueError, match="--shared-prefix: 300 of the 1024"):
        begun(Running(None), shared_prefix="300")
    with pytest.raises(ValueError, match="--context: a context of 128 tokens has no room"):
        begun(Running(128))


def test_a_worker_takes_the_note_of_the_process_that_holds_the_run() -> None:
    note = {"context": 4000, "context_from": "/v1/models", "tokens_per_estimate": {"en": 2.0}}
    settings = begun(Running(99, {"lengths": note}), shared_prefix="100")
    assert (settings.context, settings.ratio) == (4000, {"en": 2.0})
    assert _text.estimate(settings.shared) == 50


def test_lengths_follow_the_servers_own_count() -> None:
    ratio = _settings.ratios(lambda text: len(text) // 2)
    assert set(ratio) == {"en", "zh", "python", "javascript"}
    settings = replace(Settings(), ratio=ratio)
    for kind in ("en", "zh"):
        assert len(settings.text(random.Random(1), 500, kind)) / 2 == pytest.approx(500, rel=0.06)
    assert len(settings.source(random.Random(1), 500, "python")) / 2 == pytest.approx(500, rel=0.1)
    with pytest.raises(ValueError, match="0 tokens for a text of about 2,000"):
        _settings.ratios(lambda text: 0)


def test_tokenize_says_why_it_got_no_count() -> None:
    with pytest.raises(
        ValueError, match=r"--tokenize: /tokenize can't be asked: .*refused.*; without it, tokens are"
    ):
        begun(Running(1024), tokenize=True)
