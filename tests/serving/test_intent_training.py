"""Training on one's own texts, the figures of ``eval``, and the command line around both."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.intent import evaluate, keywords, lines, training
from serving.intent.augment import variants
from serving.intent.classifier import load
from serving.intent.cli import app
from serving.intent.lines import Example, LinesError

RUN = CliRunner()
FRUIT = ["apple", "pear", "plum", "cherry", "grape", "melon"]
METAL = ["iron", "copper", "zinc", "nickel", "cobalt", "silver"]
SENTENCES = ["i like {}", "where do i buy {}", "is {} heavy", "my {} fell", "{} and more {}", "a box of {}"]


def examples() -> list[Example]:
    return [
        Example(s.format(word, word), label, "en")
        for label, words in (("fruit", FRUIT), ("metal", METAL))
        for word in words
        for s in SENTENCES
    ]


def write(path: Path, rows: list[Example]) -> Path:
    path.write_text("\n".join(json.dumps({"text": e.text, "label": e.label}) for e in rows))
    return path


def test_training_learns_what_tells_the_labels_apart() -> None:
    said: list[str] = []
    model, _, _ = training.train(examples(), said.append)
    assert model.labels == ["fruit", "metal"]
    assert model.classify("that cherry there")[0] == "fruit"
    assert model.classify("that nickel there")[0] == "metal"
    assert model.classify("that nickle there")[0] == "metal"
    assert said[-1].startswith("epoch 12/12: loss 0.")


def test_the_same_examples_give_the_same_model() -> None:
    assert training.train(examples())[1] == training.train(examples())[1]


def test_variants_are_the_same_for_the_same_seed_and_change_the_text() -> None:
    made = variants("where do i buy iron", "en", 20, random.Random(1))
    assert made == variants("where do i buy iron", "en", 20, random.Random(1))
    assert len(set(made)) > 10
    assert all(variants("我头疼", "zh", 20, random.Random(1)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "a", "label": "x"}\n{"text": "b"}', ":2: label: missing"),
        (b'{"text": "a", "label": "x"}\n\n{"text": 5, "label": "x"}', ":3: text: must be a string"),
        (b'{"text": " ", "label": "x"}', ":1: text: must be a string that is not empty"),
        (b'{"text": "a", "label": "x", "lang": 3}', ":1: lang: must be a string"),
        (b'{"text": "a", "label": "' + b"x" * 65 + b'"}', ":1: label: at most 64"),
        (b"[1]", ":1: a JSON object with text and label is needed, not list"),
        (b"{", ":1: not JSON"),
        (b'{"text": "\xff", "label": "x"}', ":1: not UTF-8"),
        (b'{"text": "\\ud800", "label": "x"}', ":1: text: half a character"),
        (b"[" * 100_000, ":1: not JSON"),
        (b"x" * (lines.MAX_LINE + 1), ":1: line of more than 1048576 bytes"),
        (b"\n \n", "no examples in it"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_key(tmp_path, content: bytes, said: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    with pytest.raises(LinesError) as error:
        lines.read(path)
    assert str(error.value).startswith(str(path))
    assert said in str(error.value)


def test_the_language_is_taken_from_the_letters_where_the_file_does_not_say() -> None:
    assert lines.language("我的iPhone坏了") == "zh"
    assert lines.language("what does 你好 mean in english, please") == "en"
    assert lines.language("?") == "en"


def test_train_writes_both_stages_and_eval_and_classify_use_them(tmp_path) -> None:
    data, model = write(tmp_path / "in.jsonl", examples()), tmp_path / "mine.npz"
    made = RUN.invoke(app, ["train", str(data), "--out", str(model)])
    assert made.exit_code == 0, made.output
    assert sorted(p.name for p in tmp_path.glob("*.npz")) == ["mine.encoder.npz", "mine.npz"]
    found = RUN.invoke(app, ["eval", str(data), "--model", str(model), "--json"])
    figures = json.loads(found.stdout)
    assert figures["accuracy"] > 0.95
    assert figures["second_stage"] is not None
    assert figures["keyword_baseline"] is None
    assert figures["labels"]["fruit"]["examples"] == 36
    assert sum(figures["confusion"]["metal"].values()) == 36
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    one = RUN.invoke(app, ["classify", "a ripe plum", "--model", str(model)])
    assert one.stdout.startswith("fruit ")


def test_train_without_second_stage_says_what_an_old_one_means(tmp_path) -> None:
    data = write(tmp_path / "in.jsonl", examples())
    (tmp_path / "m.encoder.npz").write_text("old")
    made = RUN.invoke(app, ["train", str(data), "--out", str(tmp_path / "m.npz"), "--no-second"])
    assert made.exit_code == 0
    assert "m.encoder.npz is there from an earlier training" in made.output
    found = RUN.invoke(app, ["classify", "plum", "--model", str(tmp_path / "m.npz")])
    assert found.exit_code == 1
    assert "m.encoder.npz: not an intent model" in found.output


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["train", "none.jsonl"], 1, "none.jsonl: No such file"),
        (["train", "in.jsonl", "--out", "model.bin"], 2, "must end in .npz"),
        (["train", "in.jsonl", "--out", "no/model.npz"], 2, "there is no folder no"),
        (["train", "one.jsonl"], 1, "one.jsonl: label: 2 to 64 different ones are needed, there are 1"),
        (["eval", "in.jsonl", "--model", "none.npz"], 1, "none.npz: no such model file"),
        (["eval", "in.jsonl", "--threshold", "2"], 2, "threshold"),
        (["eval", "bad.jsonl"], 1, "bad.jsonl:1: not JSON"),
        (["classify"], 2, "Missing argument"),
    ],
)
def test_errors_are_one_line_and_a_status(tmp_path, monkeypatch, arguments, status, said) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", examples())
    write(tmp_path / "one.jsonl", [Example("a", "x", "en"), Example("b", "x", "en")])
    (tmp_path / "bad.jsonl").write_text("nonsense")
    found = RUN.invoke(app, arguments)
    assert found.exit_code == status
    assert said in found.output
    assert "Traceback" not in found.output


def test_figures_of_a_known_outcome() -> None:
    classifier = load(second_stage=False)
    classifier.fast = {"a": ("legal", 0.9), "b": ("legal", 0.9), "c": ("general", 0.9)}.__getitem__
    rows = [Example("a", "legal", "en"), Example("b", "medical", "en"), Example("c", "general", "zh")]
    found = evaluate.evaluate(classifier, rows, 0.7)
    assert found["accuracy"] == 0.6667
    assert found["confusion"]["medical"] == {"general": 0, "legal": 1, "medical": 0}
    assert found["labels"]["legal"] == {"examples": 1, "recall": 1.0, "precision": 0.5}
    assert found["labels"]["medical"] == {"examples": 1, "recall": 0.0, "precision": None}
    assert found["languages"]["zh"]["accuracy"] == 1.0
    assert found["second_stage"] is None
    assert "| all | 3 | 66.7% | 66.7% | 33.3% |" in evaluate.table(found)


def test_the_baseline_counts_words() -> None:
    assert keywords.classify("My doctor says the fever is an infection") == "medical"
    assert keywords.classify("can I sue my landlord") == "legal"
    assert keywords.classify("房东不退押金，能起诉吗") == "legal"
    assert keywords.classify("how do I boil an egg") == "general"
