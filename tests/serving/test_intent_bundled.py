"""The bundled model: its figures in the README, and what they must be better than."""

from pathlib import Path

import pytest

from serving.intent import evaluate, lines, load
from serving.intent.classifier import MODELS
from serving.intent.ngram import FORMAT, PART, VERSION, read_header

pytestmark = pytest.mark.xdist_group("bundled intents")  # one worker sets up what they share

FOLDER = MODELS.parent
HELDOUT = FOLDER / "data" / "heldout.jsonl"
HARD = FOLDER / "data" / "hard.jsonl"


@pytest.fixture(scope="module", params=[HELDOUT, HARD], ids=lambda path: path.stem)
def figures(request) -> dict:
    return evaluate.evaluate(load(), lines.read(request.param), 0.7)


def test_the_readme_has_what_eval_prints(figures) -> None:
    readme = (FOLDER / "README.md").read_text()
    assert evaluate.table(figures) in readme


def test_both_stages_beat_the_first_alone_and_that_beats_keywords(figures) -> None:
    for part in (figures, *figures["languages"].values()):
        assert part["accuracy"] > part["first_stage"]["accuracy"] > part["keyword_baseline"]["accuracy"] + 0.2


def test_every_label_is_found_in_every_language(figures) -> None:
    for part in figures["languages"].values():
        for label in part["labels"].values():
            assert label["recall"] > 0.75
            assert label["precision"] > 0.75


def test_no_held_out_text_is_trained_on() -> None:
    seen = {e.text.lower() for e in lines.read(FOLDER / "data" / "train.jsonl")}
    held_out = [e.text.lower() for path in (HELDOUT, HARD) for e in lines.read(path)]
    assert seen.isdisjoint(held_out)
    assert len(set(held_out)) == len(held_out) >= 800


def test_the_training_data_has_both_languages_and_all_labels_in_numbers() -> None:
    examples = lines.read(FOLDER / "data" / "train.jsonl")
    for lang in ("en", "zh"):
        for label in ("general", "legal", "medical"):
            assert sum(e.lang == lang and e.label == label for e in examples) >= 500


def test_files_stay_small() -> None:
    sizes = {path.name: path.stat().st_size / 1e6 for path in Path(MODELS).glob("*.npz")}
    assert sizes["default.npz"] < 3
    assert sizes["words.npz"] < 3
    assert sizes["default.encoder.npz"] < 16
    assert sizes["default.head.npz"] < 0.02


def test_the_compiled_table_of_the_first_stage_stays_at_two_megabytes() -> None:
    _, arrays = read_header(MODELS / "default.npz", FORMAT, VERSION)
    names = bytes(arrays["names"]).decode().split("\n")
    assert sum(not name.startswith(PART) for name in names) <= 2**17  # half of the slots, of 8 bytes each


def test_the_second_stage_is_asked_about_less_than_a_quarter_even_of_these(figures) -> None:
    assert figures["second_stage_share"] < 0.25


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("my dad keeps forgetting where he lives", "medical"),
        ("the landlord won't give back what I paid when I moved in", "legal"),
        ("how do I write a doctor character for my novel", "general"),
        ("what was the Nuremberg trial about", "general"),
        ("best law school movie", "general"),
        ("my car is coughing when it starts", "general"),
        ("房东不退我搬进来时交的钱", "legal"),
        ("奶奶把钥匙放进冰箱里，还问今天星期几", "medical"),
        ("写一首关于秋天的诗", "general"),
    ],
)
def test_questions_that_keywords_get_wrong(text: str, label: str) -> None:
    assert load(second_stage=False).fast(text)[0] == label
