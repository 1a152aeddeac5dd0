"""The second stage's arithmetic: a small transformer encoder in numpy, read from one file.

The encoder is BERT's (attention, then a feed-forward block, each added and normalised after), mean-pooled over
the pieces, with one linear layer to the labels. The first stage's scores are added, since the two err on
different texts. Training is not here: ``serving/intent/README.md`` says how the bundled one was made.

The file is an .npz of a JSON header and arrays: the embeddings in 4 bits, blocks of 32 with one scale each, the
layers in 8 bits with a scale per output.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.intent.ngram import ModelError, NgramModel, read_header
from serving.intent.pieces import Pieces

Floats = npt.NDArray[np.float32]

FORMAT = "exaserve-intent-encoder"
VERSION = 1
BLOCK = 32
"""Embedding values that share a scale."""


class Encoder:
    """``classify(text)`` gives label and confidence; ``pooled(text)`` the vector before the last layer, (hidden,).

    ``first`` is the first stage, whose scores are mixed in by the factor that the file says.
    """

    def __init__(self, header: dict[str, Any], arrays: dict[str, Any], first: NgramModel) -> None:
        self.labels = [str(label) for label in header["labels"]]
        if self.labels != first.labels:
            raise ValueError(f"its labels {self.labels} are not the first stage's {first.labels}")
        self._first = first
        self._mix, self._temperature = float(header["mix"]), float(header["temperature"])
        self._heads = int(header["heads"])
        names = bytes(arrays["pieces"]).decode().split("\n")
        replaced = {int(k): str(v) for k, v in header["replaced"].items()}
        self._pieces = Pieces(
            names, arrays["piece_scores"].astype(float).tolist(), replaced, int(header["pieces"])
        )
        self._codes, self._scales = arrays["embedding"], arrays["embedding_scales"]
        if len(self._codes) != len(names) or len(self._scales) != len(names):
            raise ValueError("pieces and embedding disagree")
        self._places = arrays["places"].astype(np.float32)
        self._begin = _norm_of(arrays, "begin")
        self._layers = [_Layer(arrays, i, self._heads) for i in range(int(header["layers"]))]
        self._out, self._out_bias = arrays["out"].astype(np.float32), arrays["out_bias"].astype(np.float32)

    def classify(self, text: str) -> tuple[str, float]:
        """The most likely label and its probability."""
        scores = self._out @ self.pooled(text) + self._out_bias
        scores = scores / self._temperature + self._mix * np.array(self._first.scores(text), dtype=np.float32)
        raised = np.exp(scores - scores.max())
        best = int(raised.argmax())
        return self.labels[best], float(raised[best] / raised.sum())

    def pooled(self, text: str) -> Floats:
        """The text as one vector, shape (hidden,)."""
        numbers = self._pieces.encode(text)
        x = _normalise(self._embed(numbers) + self._places[: len(numbers)], self._begin)
        for layer in self._layers:
            x = layer(x)
        pooled: Floats = x.mean(axis=0)
        return pooled

    def _embed(self, numbers: list[int]) -> Floats:
        """Rows of the 4-bit table: a byte holds value j of its block in the low half, j + 16 in the high half."""
        codes = self._codes[numbers].reshape(-1, BLOCK // 2)
        values = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float32) - 8.0
        values *= self._scales[numbers].astype(np.float32).reshape(-1, 1)
        return values.reshape(len(numbers), -1)


class _Layer:
    """One block of the encoder; weights transposed so that x @ w is a plain product of contiguous arrays."""

    def __init__(self, arrays: dict[str, Any], at: int, heads: int) -> None:
        def weights(name: str) -> Floats:
            whole, scale = arrays[f"{at}.{name}"], arrays[f"{at}.{name}.scale"]
            return np.ascontiguousarray((whole.astype(np.float32) * scale.astype(np.float32)[:, None]).T)

        self._heads = heads
        self._qkv, self._attended = weights("qkv"), weights("attended")
        self._up, self._down = weights("up"), weights("down")
        self._bias = {
            n: arrays[f"{at}.{n}.bias"].astype(np.float32) for n in ("qkv", "attended", "up", "down")
        }
        self._middle, self._end = _norm_of(arrays, f"{at}.middle"), _norm_of(arrays, f"{at}.end")

    def __call__(self, x: Floats) -> Floats:
        length, hidden = x.shape
        width = hidden // self._heads
        projected = (x @ self._qkv + self._bias["qkv"]).reshape(length, 3, self._heads, width)
        q, k, v = np.ascontiguousarray(projected.transpose(1, 2, 0, 3))
        chances = q @ k.transpose(0, 2, 1) * np.float32(width**-0.5)
        chances -= chances.max(axis=-1, keepdims=True)
        np.exp(chances, out=chances)
        chances /= chances.sum(axis=-1, keepdims=True)
        mixed = np.ascontiguousarray((chances @ v).transpose(1, 0, 2)).reshape(length, hidden)
        x = _normalise(x + mixed @ self._attended + self._bias["attended"], self._middle)
        up = x @ self._up + self._bias["up"]
        # GELU by its tanh form, written as a logistic function: one exp instead of an erf that numpy lacks
        bent = np.float32(-1.5957691) * (up + np.float32(0.044715) * up * up * up)
        up /= 1.0 + np.exp(np.minimum(bent, np.float32(60.0)))
        return _normalise(x + up @ self._down + self._bias["down"], self._end)


def _norm_of(arrays: dict[str, Any], name: str) -> tuple[Floats, Floats]:
    return arrays[f"{name}.scale"].astype(np.float32), arrays[f"{name}.bias"].astype(np.float32)


def _normalise(x: Floats, norm: tuple[Floats, Floats]) -> Floats:
    x = x - x.mean(axis=1, keepdims=True)
    spread = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1])
    result: Floats = x / np.sqrt(spread + np.float32(1e-12)) * norm[0] + norm[1]
    return result


def load_encoder(path: Path, first: NgramModel) -> Encoder:
    """Read an encoder file. Raises ModelError where it is missing, damaged, or not for this first stage."""
    header, arrays = read_header(path, FORMAT, VERSION)
    try:
        encoder = Encoder(header, arrays, first)
        encoder.classify("a text to try it on")
        return encoder
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{path}: damaged ({type(error).__name__}: {error})") from None
