"""Fits the second stage to other labels: the bundled encoder as it is, with a new last layer.

No torch: each text is encoded once, and a softmax regression on the vectors is fitted in numpy. How much of the
first stage's scores is mixed in, and the temperature, come from folds that the layer had not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from serving.intent.classifier import MODELS
from serving.intent.encoder import FORMAT, VERSION, Encoder, load_encoder
from serving.intent.lines import Example
from serving.intent.ngram import NgramModel, load_ngram, read_header, write

Floats = npt.NDArray[np.float32]

FOLDS = 5
_STEPS = 300
_SHRINK = 0.01


def fit_second(
    examples: Sequence[Example], model: NgramModel, to: Path, say: Callable[[str], None] = lambda _: None
) -> None:
    """Write the second stage for the first stage ``model``. Raises ModelError if the bundled one is damaged."""
    bundled = MODELS / "default.encoder.npz"
    encoder = load_encoder(bundled, load_ngram(MODELS / "default.npz"))
    vectors = vectors_of(encoder, examples, say)
    answers = np.array([model.labels.index(e.label) for e in examples])
    middle, spread = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    scaled = (vectors - middle) / spread
    fold = np.random.default_rng(0).integers(0, FOLDS, len(examples))
    outside = np.zeros((len(examples), len(model.labels)), dtype=np.float32)
    for held in range(FOLDS):
        inside = fold != held
        if inside.any() and not inside.all():
            weights, bias = regression(scaled[inside], answers[inside], len(model.labels))
            outside[~inside] = scaled[~inside] @ weights.T + bias
    say(f"all folds: {float((outside.argmax(1) == answers).mean()):.1%} right without the n-grams")
    weights, bias = regression(scaled, answers, len(model.labels))
    header, arrays = read_header(bundled, FORMAT, VERSION)
    arrays["out"] = (weights / spread).astype(np.float32)
    arrays["out_bias"] = (bias - arrays["out"] @ middle).astype(np.float32)
    from serving.intent.training import fit_temperature

    header |= {"labels": model.labels, "mix": 0.0, "temperature": fit_temperature(outside, answers)}
    header["about"] = {"examples": len(examples), "encoder": "bundled"}
    write(to, header, arrays, compress=False)


def vectors_of(encoder: Encoder, examples: Sequence[Example], say: Callable[[str], None]) -> Floats:
    """Each text's vector, shape (texts, hidden)."""
    vectors = np.empty((len(examples), len(encoder.pooled("a"))), dtype=np.float32)
    for i, example in enumerate(examples):
        vectors[i] = encoder.pooled(example.text)
        if i % 500 == 499:
            say(f"{i + 1} of {len(examples)} texts encoded")
    return vectors


def regression(
    x: Floats, answers: npt.NDArray[np.int64], labels: int, shrink: float = _SHRINK
) -> tuple[Floats, Floats]:
    """Softmax regression by accelerated gradient descent; weights (labels, hidden) and bias (labels,)."""
    target = np.eye(labels, dtype=np.float32)[answers]
    weights, bias = np.zeros((labels, x.shape[1]), np.float32), np.zeros(labels, np.float32)
    ahead = weights.copy()
    # The loss curves at most by half the largest eigenvalue of the vectors' second moment.
    rate = 1.0 / (0.5 * float(np.linalg.norm(x.T @ x / len(x), 2)) + shrink)
    for step in range(_STEPS):
        scores = x @ ahead.T + bias
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        wrong = raised / raised.sum(axis=1, keepdims=True) - target
        new = ahead - rate * (wrong.T @ x / len(x) + shrink * ahead)
        bias = bias - wrong.mean(axis=0)
        ahead = new + step / (step + 3) * (new - weights)
        weights = new
    return weights, bias
