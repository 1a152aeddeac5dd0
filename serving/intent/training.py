"""Trains the first stage in numpy: softmax regression over the features of ``ngram.py`` by AdaGrad.

The same examples and seed give the same model. The temperature comes from folds that the weights had not seen,
so that a confidence of 0.8 is right at least four times out of five.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from serving.intent.augment import variants
from serving.intent.lines import Example
from serving.intent.ngram import LARGEST, PAIR, PART, SCALE, WORD, NgramModel, parts, tokens
from serving.intent.vectors import WordVectors

Floats = npt.NDArray[np.float32]
Say = Callable[[str], None]

VARIANTS = 3
EPOCHS = 12
CAUTION = 1.2
"""The temperature is this much above what the folds ask for: people write other things than the training texts,
and a doubtful text costs a look by the second stage, while a wrong one that seems sure costs the answer."""

FOLDS = 3
_BATCH = 128
_RATE = 0.35
_SHRINK = 2e-5
_LEFT_OUT = 0.3
_VECTOR_RATE = 0.3
_VECTOR_SHRINK = 1e-4
MAX_FEATURES = 160_000
"""Features kept, those with the largest weights: the file stays below 3 MB, and no user's data makes it grow."""
_SMALLEST = 1.5 / SCALE


@dataclass
class Fitted:
    """Weights by feature, shape (features, labels), and the labels' own, shape (labels,)."""

    names: list[str]
    weights: Floats
    prior: Floats
    by_vector: Floats
    """Weights of the word vectors' dimensions, shape (dimensions, labels)."""


def features(text: str) -> tuple[dict[str, float], int]:
    """Each feature of a text with its count (a part's is divided among its word's parts), and the token count."""
    found = tokens(text)
    counted: dict[str, float] = {}

    def add(name: str, much: float) -> None:
        counted[name] = counted.get(name, 0.0) + much

    for word in found:
        add(WORD + word, 1.0)
        runs = parts(word)
        for run in runs:
            add(PART + run, 1.0 / len(runs))
    for pair in pairwise(found):
        add(PAIR + "".join(pair), 1.0)
    return counted, len(found)


class Table:
    """The features of many texts as rows of numbers: ``columns`` and ``values``, text i from ``starts[i]``."""

    def __init__(
        self, texts: Sequence[str], vectors: WordVectors, known: dict[str, int] | None = None, least: int = 1
    ) -> None:
        rows = [features(text) for text in texts]
        self.dense = np.stack([vectors.total(counted) / max(n, 1) ** 0.5 for counted, n in rows])
        if known is None:
            seen = Counter(name for counted, _ in rows for name in counted)
            known = {name: i for i, name in enumerate(sorted(n for n, c in seen.items() if c >= least))}
        self.known = known
        columns: list[int] = []
        values: list[float] = []
        starts = [0]
        for counted, length in rows:
            divisor = max(length, 1) ** 0.5
            for name, much in counted.items():
                column = known.get(name)
                if column is not None:
                    columns.append(column)
                    values.append(much / divisor)
            starts.append(len(columns))
        self.columns = np.array(columns, dtype=np.int64)
        self.values = np.array(values, dtype=np.float32)
        self.starts = np.array(starts, dtype=np.int64)

    def rows(
        self, which: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
        """Row (position in ``which``), column and value of every entry of those texts."""
        lengths = self.starts[which + 1] - self.starts[which]
        row = np.repeat(np.arange(len(which)), lengths)
        at = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at += np.repeat(self.starts[which], lengths)
        return row, self.columns[at], self.values[at]


def fit(table: Table, targets: Floats, weight: Floats, epochs: int, seed: int, say: Say) -> Fitted:
    """Softmax regression; ``targets`` (texts, labels) rows of probabilities, ``weight`` (texts,) their weight."""
    labels = targets.shape[1]
    chance = np.random.default_rng(seed)
    weights = np.zeros((len(table.known), labels), dtype=np.float32)
    squares = np.full_like(weights, 1e-3)
    prior, prior_squares = np.zeros(labels, np.float32), np.full(labels, 1e-3, np.float32)
    by_vector = np.zeros((table.dense.shape[1], labels), dtype=np.float32)
    vector_squares = np.full_like(by_vector, 1e-3)
    for epoch in range(epochs):
        order = chance.permutation(len(targets))
        lost = 0.0
        rate = _RATE * (1 - epoch / epochs)
        for start in range(0, len(order), _BATCH):
            which = order[start : start + _BATCH]
            row, column, value = table.rows(which)
            kept = value * (chance.random(len(value)) > _LEFT_OUT) if _LEFT_OUT else value
            dense = table.dense[which]
            scores = _sums(row, weights[column] * kept[:, None], len(which)) + prior + dense @ by_vector
            chances = _softmax(scores)
            lost -= float((weight[which, None] * targets[which] * np.log(chances + 1e-9)).sum())
            wrong = (chances - targets[which]) * weight[which, None]
            touched, place = np.unique(column, return_inverse=True)
            slope = (
                _sums(place, wrong[row] * kept[:, None], len(touched))
                + _SHRINK * len(which) * weights[touched]
            )
            squares[touched] += slope**2
            weights[touched] -= rate * slope / np.sqrt(squares[touched])
            slope_vector = dense.T @ wrong + _VECTOR_SHRINK * len(which) * by_vector
            vector_squares += slope_vector**2
            by_vector -= _VECTOR_RATE * rate * slope_vector / np.sqrt(vector_squares)
            slope_prior = wrong.sum(axis=0)
            prior_squares += slope_prior**2
            prior -= 0.1 * rate * slope_prior / np.sqrt(prior_squares)
        say(f"epoch {epoch + 1}/{epochs}: loss {lost / max(float(weight.sum()), 1e-9):.3f}")
    return Fitted(list(table.known), weights, prior, by_vector)


def train(
    examples: Sequence[Example], say: Say = lambda _: None, seed: int = 0
) -> tuple[NgramModel, dict[str, tuple[int, ...]], tuple[int, ...]]:
    """The first stage for these examples: the model, and the weights that ``ngram.save`` writes.

    Labels are sorted. Raises ValueError for fewer than two labels, or a label with fewer than two examples.
    """
    labels = label_names(examples)
    vectors = WordVectors.bundled()
    chance = random.Random(seed)  # noqa: S311  not for secrets
    copies = [[e.text, *variants(e.text, e.lang, VARIANTS, chance)] for e in examples]
    answers = np.array([labels.index(e.label) for e in examples])
    balance = _balance(examples)
    fold = np.random.default_rng(seed).integers(0, FOLDS, len(examples))
    outside = np.zeros((len(examples), len(labels)), dtype=np.float32)
    for held in range(FOLDS):
        inside = np.flatnonzero(fold != held)
        rest = np.flatnonzero(fold == held)
        if not len(inside) or not len(rest):
            continue
        fitted = _fit_copies(
            [copies[i] for i in inside],
            answers[inside],
            balance[inside],
            len(labels),
            seed,
            lambda _: None,
            vectors,
        )
        table = Table([copies[i][0] for i in rest], vectors, {n: i for i, n in enumerate(fitted.names)})
        outside[rest] = predict(table, fitted)
        say(f"fold {held + 1}/{FOLDS}: {float((outside[rest].argmax(1) == answers[rest]).mean()):.1%} right")
    temperature = CAUTION * fit_temperature(outside, answers)
    say(f"all folds: {float((outside.argmax(1) == answers).mean()):.1%} right, temperature {temperature:.2f}")
    fitted = _fit_copies(copies, answers, balance, len(labels), seed, say, vectors)
    kept = to_whole(fitted, vectors)
    prior = tuple(round(float(p) * SCALE) for p in fitted.prior)
    return NgramModel(labels, kept, prior, temperature), kept, prior


def label_names(examples: Sequence[Example]) -> list[str]:
    """The labels, sorted. Raises ValueError where there are too few to tell apart, or more than 64."""
    seen = Counter(e.label for e in examples)
    if not 2 <= len(seen) <= 64:
        raise ValueError(f"label: 2 to 64 different ones are needed, there are {len(seen)}")
    rare = [label for label, count in seen.items() if count < 2]
    if rare:
        raise ValueError(f"label: {rare[0]!r} has one example; two are the least, some hundreds are better")
    return sorted(seen)


def predict(table: Table, fitted: Fitted) -> Floats:
    """Scores, shape (texts, labels), before temperature."""
    row, column, value = table.rows(np.arange(len(table.starts) - 1))
    sparse = _sums(row, fitted.weights[column] * value[:, None], len(table.starts) - 1)
    scores: Floats = (sparse + fitted.prior + table.dense @ fitted.by_vector).astype(np.float32)
    return scores


def fit_temperature(scores: npt.NDArray[np.floating], answers: npt.NDArray[np.integer]) -> float:
    """The divisor of the scores, 0.2 to 20, at which their softmax loses least on these answers."""
    tried = np.geomspace(0.2, 20, 201)
    at = np.arange(len(answers))
    losses = [-np.log(_softmax(scores / t)[at, answers] + 1e-9).mean() for t in tried]
    return float(tried[int(np.argmin(losses))])


def to_whole(fitted: Fitted, vectors: WordVectors) -> dict[str, tuple[int, ...]]:
    """The weights as whole numbers of 1/256, the smallest left out, centred so that each feature's sum is 0."""
    known = {name: i for i, name in enumerate(fitted.names)}
    new = [name for name in vectors.names if name not in known]
    names = fitted.names + new
    weights = np.concatenate([fitted.weights, np.zeros((len(new), fitted.weights.shape[1]), np.float32)])
    known |= {name: len(fitted.names) + i for i, name in enumerate(new)}
    if vectors.names:
        weights[[known[name] for name in vectors.names]] += vectors.values @ fitted.by_vector
    centred = weights - weights.mean(axis=1, keepdims=True)
    size = np.abs(centred).max(axis=1)
    least = max(_SMALLEST, float(np.sort(size)[-MAX_FEATURES]) if len(size) > MAX_FEATURES else 0.0)
    whole = np.clip(np.rint(centred * SCALE), -LARGEST, LARGEST).astype(int)
    return {names[i]: tuple(whole[i].tolist()) for i in np.flatnonzero(size >= least)}


def _fit_copies(
    copies: Sequence[Sequence[str]],
    answers: npt.NDArray[np.int64],
    balance: Floats,
    labels: int,
    seed: int,
    say: Say,
    vectors: WordVectors,
) -> Fitted:
    texts = [text for versions in copies for text in versions]
    each = [len(versions) for versions in copies]
    targets = np.full((len(texts), labels), 0.05 / labels, dtype=np.float32)
    targets[np.arange(len(texts)), np.repeat(answers, each)] += 0.95
    return fit(Table(texts, vectors), targets, np.repeat(balance, each), EPOCHS, seed, say)


def _balance(examples: Sequence[Example]) -> Floats:
    """Weights by which each language counts about alike, none above four times another; labels as they come."""
    seen = Counter(e.lang for e in examples)
    most = max(seen.values())
    return np.array([min(most / seen[e.lang], 4.0) for e in examples], dtype=np.float32)


def _sums(place: npt.NDArray[np.int64], values: Floats, count: int) -> Floats:
    columns = [np.bincount(place, weights=column, minlength=count) for column in values.T]
    return np.stack(columns, axis=1).astype(np.float32)


def _softmax(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)
