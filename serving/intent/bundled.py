"""``python -m serving.intent.bundled``: makes the bundled model anew from ``data/train.jsonl``, always the same.

First stage: ``models/default.npz``, as ``exaserve intent train`` would. Second stage: only its last layer,
``models/default.head.npz``; the encoder below it stays as it is (the README says how that was made).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from serving.intent import lines, training
from serving.intent.classifier import MODELS
from serving.intent.encoder import HEAD_FORMAT, HEAD_VERSION, load_encoder
from serving.intent.head import regression, vectors_of
from serving.intent.lines import Example
from serving.intent.ngram import NgramModel, load_ngram, save, write

TRAIN = MODELS.parent / "data" / "train.jsonl"

ENCODER_SAW = 8164
"""The encoder was tuned on the first so many texts, and its vectors of those are surer than of any stranger's text:
the last layer is fitted to the later ones alone."""

SHRINK = 0.03
MIX, TEMPERATURE = 0.75, 1.0
"""How much of the first stage's scores is added to the second's, and the divisor of the latter. Chosen, like ``SHRINK``
and ``training.CAUTION``, on folds of the later training texts and on ``data/hard.jsonl``: all values near them do
about as well."""


def make_first(examples: Sequence[Example], say: Callable[[str], None]) -> NgramModel:
    """Train and write ``models/default.npz``."""
    model, features, prior = training.train(examples, say)
    about = {"examples": len(examples)}
    save(MODELS / "default.npz", model.labels, features, prior, model.temperature, about)
    return load_ngram(MODELS / "default.npz")


def make_head(examples: Sequence[Example], first: NgramModel, say: Callable[[str], None]) -> None:
    """Fit and write ``models/default.head.npz``."""
    encoder = load_encoder(MODELS / "default.encoder.npz", first)
    vectors = vectors_of(encoder, examples, say)
    answers = np.array([first.labels.index(e.label) for e in examples])
    middle, spread = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    weights, bias = regression((vectors - middle) / spread, answers, len(first.labels), SHRINK)
    out = (weights / spread).astype(np.float32)
    arrays = {"out": out, "out_bias": (bias - out @ middle).astype(np.float32)}
    header = {"format": HEAD_FORMAT, "version": HEAD_VERSION, "labels": first.labels}
    header |= {"mix": MIX, "temperature": TEMPERATURE, "about": {"examples": len(examples)}}
    write(MODELS / "default.head.npz", header, arrays)


if __name__ == "__main__":
    everything = lines.read(TRAIN)
    make_head(everything[ENCODER_SAW:], make_first(everything, print), print)
