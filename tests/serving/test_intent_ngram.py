"""The first stage: what it reads of a text, how it adds up, and what its files may be."""

import math

import numpy as np
import pytest

from serving.intent import ngram
from serving.intent.ngram import ModelError, NgramModel, load_ngram, save

LABELS = ["general", "legal", "medical"]
FEATURES = {
    "1tenant": (-100, 200, -100),
    "1疼": (-64, -64, 128),
    "2头疼": (-32, -32, 64),
    "~<ill": (-30, -30, 60),
    "2back pain": (0, 0, 0),
    "2backpain": (-128, 0, 256),
}


def model(temperature: float = 1.0) -> NgramModel:
    return NgramModel(LABELS, FEATURES, (26, 0, 0), temperature)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Don't  STOP, it’s 39.8!", ["dont", "stop", "its", "00", "0"]),
        ("我头疼ok吗？", ["我", "头", "疼", "ok", "吗"]),
        ("ＡＢＣ　１", ["abc", "0"]),
        ("café naïve", ["café", "naïve"]),
        ("", []),
        ("?!", []),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert ngram.tokens(text) == tokens


def test_scores_are_sums_of_weights_by_the_root_of_the_token_count() -> None:
    general, legal, medical = model().scores("the tenant")
    assert general == pytest.approx(-100 / 256 / math.sqrt(2) + 26 / 256)
    assert legal == pytest.approx(200 / 256 / math.sqrt(2))
    assert medical == pytest.approx(-100 / 256 / math.sqrt(2))


def test_a_chinese_character_counts_alone_and_with_the_one_before() -> None:
    assert model().scores("头疼")[2] == pytest.approx((128 + 64) / 256 / math.sqrt(2))


def test_two_words_in_a_row_have_a_weight_of_their_own() -> None:
    assert model().scores("back pain")[2] == pytest.approx(256 / 256 / math.sqrt(2))
    assert model().scores("pain back")[2] == 0


def test_an_unknown_word_is_scored_by_its_parts() -> None:
    # <illness> has 7 runs of three, 6 of four and 5 of five characters; one of them is known
    assert model().scores("illness")[2] == pytest.approx(round(60 / 18) / 256)


def test_the_answer_is_the_best_label_with_its_softmax() -> None:
    label, confidence = model(2.0).classify("tenant")
    scores = [(-100 + 26) / 512, 200 / 512, -100 / 512]
    assert label == "legal"
    assert confidence == pytest.approx(math.exp(scores[1]) / sum(map(math.exp, scores)), abs=1e-9)


def test_an_empty_text_gets_the_likeliest_label() -> None:
    assert model().classify("")[0] == "general"


def test_of_a_long_text_the_middle_is_not_read() -> None:
    middle = "x" * 100_000
    assert model().classify(f"tenant {middle}")[0] == "legal"
    assert model().classify(f"{middle} tenant")[0] == "legal"
    assert model().classify(f"{middle} tenant {middle}")[0] == "general"


def test_the_largest_weights_of_the_longest_text_stay_in_their_fields() -> None:
    most = NgramModel(LABELS, {"1疼": (-512, 512, -512), "2疼疼": (-512, 512, -512)}, (0, 0, 0), 1.0)
    text = "疼" * 5000
    read = len(ngram.tokens(text))
    assert ngram.MOST_TOKENS - 5 < read <= ngram.MOST_TOKENS
    scores = most.scores(text)
    assert scores[1] == pytest.approx((read + read - 1) * 512 / 256 / math.sqrt(read))
    assert scores[0] == scores[2] == -scores[1]


def test_more_than_three_labels_work_as_well() -> None:
    labels = [f"label {i}" for i in range(9)]
    weights = {"1a": (5, -5, 0, 0, 0, 0, 0, 0, 200)}
    assert NgramModel(labels, weights, (0,) * 9, 1.0).classify("a")[0] == "label 8"


def test_remembered_words_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "MAX_WORDS", 10)
    made = model()
    words = [f"illness{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(100)]
    before = [made.scores(word) for word in words]
    assert len(made._words) == 10
    assert [made.scores(word) for word in words] == before


@pytest.mark.parametrize("text", ["\ud800", "\x00" * 50, "🤒" * 3000, "a" * 10**6, "́" * 99, "疼\n\t\r疼"])
def test_any_text_gets_an_answer(text: str) -> None:
    label, confidence = model().classify(text)
    assert label in LABELS
    assert 1 / 3 <= confidence <= 1


def test_a_saved_model_answers_as_before(tmp_path) -> None:
    save(tmp_path / "m.npz", LABELS, FEATURES, (26, 0, 0), 1.5, {})
    loaded = load_ngram(tmp_path / "m.npz")
    assert loaded.labels == LABELS
    for text in ("tenant", "头疼", "back pain and illness", ""):
        assert loaded.classify(text) == model(1.5).classify(text)
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]


def test_files_that_are_no_model_are_told_with_name_and_cure(tmp_path) -> None:
    with pytest.raises(ModelError, match=r"none\.npz: no such model file; exaserve intent train makes one"):
        load_ngram(tmp_path / "none.npz")
    with pytest.raises(ModelError, match="directory"):
        load_ngram(tmp_path)
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(ModelError, match=r"text\.npz: not an intent model"):
        load_ngram(text)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ModelError, match="not an intent model"):
        load_ngram(tmp_path / "other.npz")
    whole = tmp_path / "whole.npz"
    save(whole, LABELS, FEATURES, (0, 0, 0), 1.0, {})
    (tmp_path / "cut.npz").write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(ModelError, match="not an intent model"):
        load_ngram(tmp_path / "cut.npz")


def test_a_model_of_another_version_or_kind_is_refused(tmp_path) -> None:
    save(tmp_path / "m.npz", LABELS, FEATURES, (0, 0, 0), 1.0, {})
    header, arrays = ngram.read_header(tmp_path / "m.npz", ngram.FORMAT, ngram.VERSION)
    ngram.write(tmp_path / "new.npz", header | {"version": 9}, arrays)
    with pytest.raises(ModelError, match="version 9; this program reads version 1"):
        load_ngram(tmp_path / "new.npz")
    ngram.write(tmp_path / "other.npz", header | {"format": "x"}, arrays)
    with pytest.raises(ModelError, match="holds x, not exaserve-intent-ngram"):
        load_ngram(tmp_path / "other.npz")
    ngram.write(tmp_path / "bad.npz", header | {"labels": ["a"]}, arrays)
    with pytest.raises(ModelError, match="damaged"):
        load_ngram(tmp_path / "bad.npz")
