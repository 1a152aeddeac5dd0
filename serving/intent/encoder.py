"""The second stage's arithmetic: a small transformer encoder, read from one file and run by onnxruntime.

The encoder is BERT's (attention, then a feed-forward block, each added and normalised after), mean-pooled over
the pieces, with one linear layer to the labels. The first stage's scores are added, since the two err on
different texts. Training is not here: ``serving/intent/README.md`` says how the bundled one was made.

The file is an .npz of a JSON header and arrays: the embeddings in 4 bits, blocks of 32 with one scale each; the
layers as an ONNX graph with 8-bit weights, from (pieces, hidden) to (hidden,). NAME.head.npz beside NAME.encoder.npz, if
there, has the last layer instead, so that a new one does not take a copy of the layers below. Onnxruntime and not numpy, since
numpy's products, made for large matrices, take four times as long here: measured 7.1 ms to 1.6 ms a question.
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
HEAD_FORMAT = "exaserve-intent-head"
HEAD_VERSION = 1
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
        names = bytes(arrays["pieces"]).decode().split("\n")
        replaced = {int(k): str(v) for k, v in header["replaced"].items()}
        scores = arrays["piece_scores"].astype(float).tolist()
        self._pieces = Pieces(names, scores, replaced, int(header["pieces"]))
        self._codes, self._scales = arrays["embedding"], arrays["embedding_scales"]
        if len(self._codes) != len(names) or len(self._scales) != len(names):
            raise ValueError("pieces and embedding disagree")
        self._places = arrays["places"].astype(np.float32)
        self._norm = arrays["norm_scale"].astype(np.float32), arrays["norm_bias"].astype(np.float32)
        self._run = _session(arrays["graph"].tobytes()).run
        self._out, self._out_bias = arrays["out"].astype(np.float32), arrays["out_bias"].astype(np.float32)

    def classify(self, text: str) -> tuple[str, float]:
        """The most likely label and its probability."""
        scores = self._out @ self.pooled(text) + self._out_bias
        scores = scores / self._temperature + self._mix * np.array(self._first.scores(text), dtype=np.float32)
        raised = np.exp(scores - scores.max())
        best = int(raised.argmax())
        return self.labels[best], float(raised[best] / raised.sum())

    def pooled(self, text: str) -> Floats:
        """The text as one vector, shape (hidden,); of a long text the mean of its two halves' vectors."""
        windows = [self._window(numbers) for numbers in self._pieces.windows(text)]
        return windows[0] if len(windows) == 1 else (windows[0] + windows[1]) / np.float32(2)

    def _window(self, numbers: list[int]) -> Floats:
        x = self._embed(numbers) + self._places[: len(numbers)]
        x = x - x.mean(axis=1, keepdims=True)
        x /= np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-12))
        pooled: Floats = self._run(None, {"x": x * self._norm[0] + self._norm[1]})[0]
        return pooled

    def _embed(self, numbers: list[int]) -> Floats:
        """Rows of the 4-bit table: a byte holds value j of its block in the low half, j + 16 in the high half."""
        codes = self._codes[numbers].reshape(-1, BLOCK // 2)
        values = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float32) - 8.0
        values *= self._scales[numbers].astype(np.float32).reshape(-1, 1)
        return values.reshape(len(numbers), -1)


def load_encoder(path: Path, first: NgramModel) -> Encoder:
    """Read an encoder file. Raises ModelError where it is missing, damaged, or not for this first stage."""
    header, arrays = read_header(path, FORMAT, VERSION)
    head = head_beside(path)
    if head.is_file():
        own, layer = read_header(head, HEAD_FORMAT, HEAD_VERSION)
        header, arrays, path = header | own, arrays | layer, head
    try:
        encoder = Encoder(header, arrays, first)
        encoder.classify("a text to try it on")
        return encoder
    except ImportError as error:
        raise ModelError(f"{path}: the second stage needs onnxruntime ({error})") from None
    except Exception as error:  # onnxruntime has a dozen of its own
        said = str(error).splitlines()[0] if str(error) else ""
        raise ModelError(f"{path}: damaged ({type(error).__name__}: {said})") from None


def head_beside(path: Path) -> Path:
    """Where a last layer of its own of an encoder's file would lie: ``mine.encoder.npz`` → ``mine.head.npz``."""
    return path.with_name(f"{path.name.removesuffix('.npz').removesuffix('.encoder')}.head.npz")


def _session(graph: bytes) -> Any:
    """One thread: products this small gain nothing from more, and the other cores belong to the router."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
